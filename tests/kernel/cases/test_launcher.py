"""Case W-45: a launcher that is silent, whose wire is cut, that is gone; and W-58 without a process."""

from __future__ import annotations

from typing import Any

import trio
from tests.support.raw_peer import is_event
from tests.support.stage import stage


def about_launcher(event: str) -> Any:
    return lambda m: is_event(event)(m) and m["params"]["data"]["module_id"] == "launcher"


async def test_w45_a_silent_launcher_is_called_degraded_and_starts_no_clock() -> None:
    async with stage("a", "launcher", standalone=False) as on:
        on.launcher.stop_reading()
        async with trio.open_nursery() as nursery:

            async def keep_calling() -> None:
                while True:
                    await on.a.settle()
                    await trio.sleep(2)

            nursery.start_soon(keep_calling)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert [row for row in on.hub.board.closed if row["module_id"] == "launcher"] == []
        assert [m for m in on.a.take() if about_launcher("module.offline")(m)] == []
        assert on.lines("degraded")
        assert on.lines("degraded")[0]["log_level"] in ("warning", "error")
        assert (await on.a.result("registry.get_module", {"module_id": "launcher"}))["grade"] != "healthy"
        on.launcher.read_again(on.nursery)
        await on.launcher.settle()
        assert not on.life.over.is_set()


async def test_w45_a_launcher_that_comes_back_after_twenty_seconds_is_announced_again() -> None:
    async with stage("a", "launcher", standalone=False) as on:
        on.a.take()
        began = trio.current_time()
        await on.launcher.cut()
        await on.a.until(about_launcher("module.offline"))
        assert 4.5 < trio.current_time() - began < 7
        await trio.sleep_until(began + 20)
        await on.connect("launcher")
        await on.a.until(about_launcher("module.ready"))
        assert trio.current_time() - began < 23
        await trio.sleep(40)
        assert not on.life.over.is_set()
        assert [m for m in on.a.take() if is_event("module.shutdown")(m)] == []


async def test_w45_a_launcher_back_within_the_debounce_is_no_event_at_all() -> None:
    async with stage("a", "launcher", standalone=False) as on:
        on.a.take()
        await on.launcher.cut()
        await trio.sleep(3)
        await on.connect("launcher")
        await trio.sleep(60)
        await on.a.settle()
        assert [m for m in on.a.take() if m.get("method") == "event"] == []
        assert not on.life.over.is_set()


async def test_w45_without_its_launcher_the_kernel_ends_by_the_clock() -> None:
    async with stage("a", "b", "launcher", standalone=False) as on:
        began = trio.current_time()
        await on.launcher.cut()
        told = await on.a.event("module.shutdown", 60)
        assert 34 < trio.current_time() - began < 38
        assert told["data"]["reason"] == "launcher_lost"
        assert told["data"]["deadline_s"] == 10
        await on.a.notify("module.shutdown_ack", {"module_id": "a"})
        await on.a.goodbye()
        assert (await on.b.end(30)).code == 1001
        await on.life.over.wait()
        assert trio.current_time() - began < 50
        assert on.life.reason == "launcher_lost"


async def test_w45_a_launcher_that_left_on_purpose_is_told_apart() -> None:
    async with stage("a", "launcher", standalone=False) as on:
        await on.launcher.publish("module.exiting", {"reason": "instance_stop"})
        exiting = await on.a.event("module.exiting")
        assert exiting["data"]["module_id"] == "launcher"
        await on.launcher.goodbye()
        await on.a.until(about_launcher("module.offline"))
        await on.a.event("module.shutdown", 60)
        await on.a.goodbye()
        await on.life.over.wait()


async def test_a_standalone_kernel_has_no_launcher_rule() -> None:
    async with stage("a", "launcher") as on:
        await on.launcher.cut()
        await trio.sleep(120)
        await on.a.settle()
        assert not on.life.over.is_set()
        assert [m for m in on.a.take() if is_event("module.shutdown")(m)] == []


async def test_w58_the_end_waits_for_the_polite_and_cuts_the_rest() -> None:
    async with stage("a", "b") as on:
        began = trio.current_time()
        on.kernel.stop("kernel_stop")
        assert (await on.a.event("module.shutdown"))["data"]["reason"] == "kernel_stop"
        await on.a.goodbye()
        assert (await on.b.end()).code == 1001
        await on.life.over.wait()
        assert 9 < trio.current_time() - began < 12.5


async def test_w58_with_everybody_gone_the_end_waits_for_nothing() -> None:
    async with stage("a") as on:
        began = trio.current_time()
        on.kernel.stop("kernel_stop")
        await on.a.event("module.shutdown")
        await on.a.goodbye()
        await on.life.over.wait()
        assert trio.current_time() - began < 3
