"""The launcher's wire against a kernel played by hand, over memory streams on the virtual clock.

Source: spec 10 §2–§8; 05 §8.
"""

from __future__ import annotations

from typing import Any

import trio
from tests.support.scripted_kernel import ScriptedKernel, Silence
from trio.testing import MockClock

from kite_launcher.edge.journal import Journal
from kite_launcher.edge.wire import KernelWire


def _wire(kernel: ScriptedKernel) -> KernelWire:
    wire = KernelWire(token=lambda: "t0ken", journal=Journal(), random=lambda: 0.0, open_stream=kernel.open_stream)
    wire.url = "ws://127.0.0.1:7390"
    wire.methods = ("status",)
    return wire


async def test_opens_registers_and_says_ready(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        kernel = ScriptedKernel(nursery)
        wire = _wire(kernel)
        nursery.start_soon(wire.serve)
        await wire.pulse.until(lambda: wire.connected)
        await trio.sleep(1)
        assert kernel.auths[0]["token"] == "t0ken"
        assert kernel.auths[0]["module_id"] == "launcher"
        assert kernel.auths[0]["protocol"] == 2
        assert [name for _, name, _ in kernel.calls][:2] == ["event.subscribe", "registry.register"]
        assert kernel.events("module.ready") == [{"module_id": "launcher"}]
        nursery.cancel_scope.cancel()


async def test_cut_wire_comes_back_by_the_table_and_resumes(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        kernel = ScriptedKernel(nursery)
        kernel.resume = True
        wire = _wire(kernel)
        nursery.start_soon(wire.serve)
        await wire.pulse.until(lambda: wire.connected)
        await trio.sleep(1)
        kernel.cut()
        await wire.pulse.until(lambda: not wire.connected)
        lost = trio.current_time()
        wire.publish("launcher.alarm", {"lost": True})
        await wire.pulse.until(lambda: wire.connected)
        assert 0.4 < trio.current_time() - lost < 1.0
        assert kernel.auths[1]["instance"] == kernel.auths[0]["instance"]
        assert kernel.auths[1]["resume"]["session"] == "s1"
        # A resumed session stands: it is not registered twice, and nothing said while away is made up.
        assert len(kernel.times("registry.register")) == 1
        nursery.cancel_scope.cancel()


async def test_never_verdict_is_answered_by_a_slow_pace_and_not_by_giving_up(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        kernel = ScriptedKernel(nursery)
        kernel.close_before_auth = (4001, "token unknown")
        wire = _wire(kernel)
        nursery.start_soon(wire.serve)
        await trio.sleep(35)
        assert len(kernel.auths) == 4
        kernel.close_before_auth = None
        wire.come_back()
        await wire.pulse.until(lambda: wire.connected)
        nursery.cancel_scope.cancel()


async def test_calls_answer_events_reach_and_orders_are_served(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:

        def silent(params: dict[str, Any]) -> object:
            raise Silence

        kernel = ScriptedKernel(nursery, {"kernel.shutdown_module": lambda p: {}, "kernel.info": silent})
        wire = _wire(kernel)
        heard: list[tuple[str, Any]] = []
        wire.on_event = lambda event, data: heard.append((event, data))

        async def on_call(method: str, params: Any, caller: str) -> dict[str, Any]:
            return {"result": [method, params, caller]}

        wire.on_call = on_call
        nursery.start_soon(wire.serve)
        assert await wire.call("kernel.info", {}, timeout_s=1.0) is None
        await wire.pulse.until(lambda: wire.connected)
        assert await wire.shutdown_module("x", "module_stop", 8.0)
        begin = trio.current_time()
        await wire.call("kernel.info", {}, timeout_s=1.0)
        assert trio.current_time() - begin <= 1.1
        await kernel.tell("module.ready", {"module_id": "x"})
        await kernel.tell("system.ping", {"ping_time": 1.5, "received": 2})
        await kernel.ask(7, "status", {"a": 1})
        await trio.sleep(1)
        assert ("module.ready", {"module_id": "x"}) in heard
        assert kernel.events("system.pong")[0]["ping_time"] == 1.5
        assert kernel.answered[-1]["result"] == ["status", {"a": 1}, ""]
        nursery.cancel_scope.cancel()


async def test_leaving_says_the_last_word_first_and_stays_away(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        kernel = ScriptedKernel(nursery)
        wire = _wire(kernel)
        nursery.start_soon(wire.serve)
        await wire.pulse.until(lambda: wire.connected)
        wire.publish("module.exiting", {"module_id": "launcher", "reason": "down"})
        await wire.leave()
        await trio.sleep(60)
        assert kernel.events("module.exiting") == [{"module_id": "launcher", "reason": "down"}]
        assert len(kernel.auths) == 1
        assert not wire.connected
        nursery.cancel_scope.cancel()


async def test_absent_kernel_costs_nothing_but_time(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        kernel = ScriptedKernel(nursery)
        kernel.refuse_connects = True
        wire = _wire(kernel)
        nursery.start_soon(wire.serve)
        await trio.sleep(100)
        assert not wire.connected
        assert await wire.shutdown_module("x", "module_stop", 8.0) is False
        wire.publish("launcher.alarm", {})
        kernel.refuse_connects = False
        wire.come_back()
        await wire.pulse.until(lambda: wire.connected, trio.current_time() + 5)
        assert wire.connected
        nursery.cancel_scope.cancel()
