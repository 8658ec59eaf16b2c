"""Coming back by the table, with one line per change of state. Source: spec 10-wire §3-4, cases W-52, W-53."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from kite_modules.sdk import CallError, Module, NotConnected
from kite_modules.sdk.reconnect import Policy
from kite_modules.sdk.session import State
from kite_modules.sdk.testing import Hub

Clock = trio.testing.MockClock
STEADY = Policy(jitter="none")


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "kite" and record.levelno == level]


async def connect_to(hub: Hub) -> float:
    """Connect once and leave; returns how long it took."""
    start = trio.current_time()
    async with hub.client("me", policy=STEADY):
        return trio.current_time() - start


async def test_a_mere_connect_resets_nothing(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """0.5, 1, 2, 4, 8, 10, 10 … whatever the server says before its auth answer."""
    async with Hub() as hub:
        hub.refuse_next(*[1011] * 8)
        assert await connect_to(hub) == pytest.approx(0.5 + 1 + 2 + 4 + 8 + 10 + 10 + 10, abs=0.5)
        assert hub.authentications == 9
    assert said(caplog, logging.WARNING) == ["connection lost, coming back by itself"]


@pytest.mark.parametrize("code", [1000, 1002, 1008, 4001, 4003, 4004, 4010])
async def test_a_final_code_is_one_try_and_one_line(
    code: int, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Hub() as hub:
        hub.refuse_next(code)
        with pytest.raises(NotConnected) as caught:
            await connect_to(hub)
        assert hub.authentications == 1
    assert caught.value.close_code == code
    assert said(caplog, logging.ERROR) == [f"[module] 致命错误 (code {code})，退出"]


async def test_rate_limiting_cools_down_five_times_and_then_ends(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    start = trio.current_time()
    async with Hub() as hub:
        hub.refuse_next(*[4020] * 6)
        with pytest.raises(NotConnected):
            await connect_to(hub)
    assert trio.current_time() - start == pytest.approx(50, abs=0.5)
    wanted = [f"[module] 速率限制，10s 后重试 ({attempt}/5)" for attempt in range(1, 6)]
    assert said(caplog, logging.WARNING) == wanted
    assert said(caplog, logging.ERROR) == ["[module] 致命错误 (code 4020)，退出"]


async def test_a_cooldown_that_ends_well_starts_anew(autojump_clock: Clock) -> None:
    async with Hub() as hub:
        hub.refuse_next(4020, 4020)
        assert await connect_to(hub) == pytest.approx(20, abs=0.5)


async def test_a_session_that_ends_later_ends_the_block(autojump_clock: Clock) -> None:
    async def be_revoked(hub: Hub) -> None:
        async with hub.client("me"):
            await hub.close("me", 4001, "revoked")
            await trio.sleep_forever()

    async with Hub() as hub:
        with pytest.raises(NotConnected) as caught:
            await be_revoked(hub)
        assert caught.value.close_code == 4001


async def test_waiting_shows_its_due_time_and_can_be_cut_short(autojump_clock: Clock) -> None:
    async with Hub() as hub, hub.client("me", policy=STEADY) as kite:
        shown: list[State] = []

        async def watch() -> None:
            async for state in kite.states():
                shown.append(state)  # noqa: PERF401  # it never ends: what came must be seen meanwhile

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(lambda: hub.restart(away_s=12.0))
            await trio.sleep(11)  # 0.5, 1, 2, 4 and 8 seconds apart: the fifth wait
            assert kite.state is State.WAITING
            assert kite.due_in_s == pytest.approx(4.5, abs=0.2)
            assert "try 5" in kite.reason
            await trio.sleep(1.5)
            assert kite.retry_now()
            with trio.fail_after(0.5):
                await kite.wait_open()
            assert not kite.retry_now()
            nursery.cancel_scope.cancel()
        assert shown[0] is State.OPEN
        order = [State.CONNECTING, State.AUTHENTICATING, State.SYNCING, State.OPEN]
        assert shown[-4:] == order
        assert kite.statistics()["reconnects"] == {"transport": 5}


async def test_the_network_coming_back_ends_the_wait_at_once(autojump_clock: Clock) -> None:
    async with Hub() as hub, hub.client("me", policy=STEADY) as kite, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: hub.restart(away_s=9.0))
        await trio.sleep(9.5)  # the next try would be at 15.5
        assert kite.state is State.WAITING
        assert not kite.network("offline")
        assert kite.network("online")
        assert not kite.network("online")
        with trio.fail_after(0.5):
            await kite.wait_open()
        assert kite.statistics()["attempt"] == 0


async def test_another_path_replaces_the_wire_and_loses_no_call(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    module = Module("a")

    @module.method
    async def slow() -> str:
        await trio.sleep(3)
        return "done"

    async with Hub() as hub, hub.running(module), hub.client("me") as kite, trio.open_nursery() as nursery:
        answers: list[str] = []

        async def call() -> None:
            answers.append(await kite.call("a.slow"))

        nursery.start_soon(call)
        await trio.sleep(1)
        assert kite.network("online", path_changed=True)
        assert kite.state is State.CONNECTING
        await trio.sleep(3)
        assert answers == ["done"]
        assert kite.statistics()["resumes"] == 1
    assert said(caplog, logging.WARNING) == []


async def test_open_comes_only_after_subscribe_and_register(autojump_clock: Clock) -> None:
    module = Module("a")
    async with Hub() as hub, hub.running(module):
        assert hub.state("a") in ("registered", "ready")
        await hub.wait_state("a", "ready", timeout_s=1)


async def test_a_kernel_that_falls_silent_is_left(autojump_clock: Clock) -> None:
    async with Hub(ping_s=5) as hub, hub.client("me") as kite:
        hub.drop("me")
        start = trio.current_time()
        while kite.state is State.OPEN:
            await trio.sleep(0.5)
        assert 10 < trio.current_time() - start <= 20
        await kite.wait_open()
        assert await kite.call("kernel.info")


async def test_a_module_that_the_kernel_refuses_to_register_ends_with_one_line(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Hub() as hub:

        def refuse(peer: Any, params: Any) -> Any:
            from kite_modules.sdk.testing.desk import Failure

            raise Failure(-32602, "invalid_params", field="methods")

        monkeypatch.setitem(hub._desk._methods, "registry.register", refuse)
        with pytest.raises(NotConnected):
            async with hub.running(Module("a")):
                await trio.sleep_forever()
    assert len(said(caplog, logging.ERROR)) == 1
    assert "registry.register" in said(caplog, logging.ERROR)[0]


async def test_a_slow_wire_delays_and_breaks_nothing(autojump_clock: Clock) -> None:
    async with Hub() as hub, hub.client("me") as kite:
        hub.delay("me", 1.5)
        start = trio.current_time()
        await kite.call("kernel.info")
        assert trio.current_time() - start == pytest.approx(3.0, abs=0.1)
        hub.heal("me")


async def test_kept_publishes_are_bounded_and_the_refusal_is_said(autojump_clock: Clock) -> None:
    async with Hub() as hub, hub.client("me") as kite:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: hub.restart(away_s=5.0))
            await trio.sleep(1)
            for number in range(1000):
                kite.publish_nowait("x.y", number)
            with pytest.raises(CallError) as caught:
                kite.publish_nowait("x.y", 1000)
            assert (caught.value.code, caught.value.reason, caught.value.outcome) == (-32005, "queue_full", "not_sent")
        await kite.wait_open()
        await trio.sleep(1)
        assert [data for _, name, data in hub.events if name == "x.y"] == list(range(1000))


async def test_a_thousand_calls_at_once_stay_below_the_kernels_bound(autojump_clock: Clock) -> None:
    module = Module("a")
    most = 0
    now = 0

    @module.method
    async def wait() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.sleep(0.1)
        now -= 1

    async with Hub() as hub, hub.running(module), hub.client("me") as kite, trio.open_nursery() as nursery:
        for _ in range(1100):
            nursery.start_soon(kite.call, "a.wait")
    assert most == 64


async def test_a_flood_is_refused_and_health_still_answers(autojump_clock: Clock) -> None:
    module = Module("a", concurrency=2)

    @module.method
    async def wait() -> None:
        await trio.sleep(50)

    async with Hub() as hub, hub.running(module), hub.client("x") as one, hub.client("y") as two:
        codes: list[int] = []

        async def call(kite: Any) -> None:
            try:
                await kite.call("a.wait", timeout=5)
            except CallError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for kite in (one, two):
                for _ in range(550):
                    nursery.start_soon(call, kite)
            await trio.sleep(2)
            assert await one.call("a.health", timeout=1) == {"status": "ok"}
        assert codes.count(-32005) == 1100 - 1002
        assert codes.count(-32003) == 1002
