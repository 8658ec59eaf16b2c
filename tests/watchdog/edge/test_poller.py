"""Modules are asked, told apart and restarted: the whole watchdog, a kernel played by hand, the virtual clock.

Source: spec 60-watchdog §1; cases S-75, S-76; wire as in spec 10.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from tests.support.scripted_kernel import Refuse, ScriptedKernel, Silence
from trio.testing import MockClock

from kite_watchdog.core.options import Options
from kite_watchdog.main import Settings, Watchdog

PID = 4_000_000  # above pid_max's default: nobody's process is ever looked at


class House:
    """A watchdog, its kernel, and one module `x` whose health the test plays."""

    def __init__(self, kernel: ScriptedKernel, watchdog: Watchdog, folder: Path) -> None:
        self.kernel, self.watchdog, self.folder = kernel, watchdog, folder
        self.health: Any = {"status": "ok"}
        self.running = True

    def answer_health(self, params: dict[str, Any]) -> Any:
        if isinstance(self.health, Exception):
            raise self.health
        return self.health

    def status(self, params: dict[str, Any]) -> Any:
        state = "running" if self.running else "backoff"
        return {"modules": [{"name": "x", "state": state, "pid": PID if self.running else None}]}

    def verdicts(self) -> list[str]:
        return [data["verdict"] for data in self.kernel.events("watchdog.module")]

    @property
    def restarts(self) -> list[dict[str, Any]]:
        return [params for _, method, params in self.kernel.calls if method == "launcher.restart"]


@pytest.fixture
def options() -> Options:
    return Options(health={"x": 15.0}, restarts=0)  # of fresh instances: it has no part in the health of modules


@pytest.fixture
async def house(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path, options: Options
) -> AsyncIterator[House]:
    kernel = ScriptedKernel(nursery)
    settings = Settings(tmp_path, "ws://127.0.0.1:1/ws", "t0ken", "mark", options)
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    watchdog = Watchdog(settings, log, open_stream=kernel.open_stream, rng=lambda: 0.0)
    house = House(kernel, watchdog, tmp_path)
    (tmp_path / "modules" / "x").mkdir(parents=True)
    kernel.answers |= {
        "registry.list_modules": lambda p: {"modules": [{"module_id": "x", "state": "ready", "methods": ["health"]}]},
        "x.health": house.answer_health,
        "launcher.restart": lambda p: {},
        "launcher.status": house.status,
    }
    nursery.start_soon(watchdog.run)
    await until(lambda: bool(kernel.times("x.health")))
    yield house
    nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object], *, within_s: float = 300.0) -> None:
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.01)


def gaps_of(times: list[float]) -> list[float]:
    return [round(b - a, 1) for a, b in itertools.pairwise(times)]


def hung() -> Silence:
    return Silence()


async def test_a_healthy_module_is_asked_every_15_seconds(house: House, autojump_clock: MockClock) -> None:
    await trio.sleep(100)
    assert set(gaps_of(house.kernel.times("x.health"))) == {15.0}
    assert house.verdicts() == ["healthy"]
    assert house.restarts == []


async def test_failures_are_followed_after_5_and_2_seconds_and_the_third_asks_the_launcher(
    house: House, autojump_clock: MockClock
) -> None:
    house.health = Refuse(7, "database gone")
    await until(lambda: house.restarts)
    assert gaps_of(house.kernel.times("x.health"))[:3] == [15.0, 5.0, 2.0]
    assert house.restarts[0]["module"] == "x"
    assert "database gone" in house.restarts[0]["reason"]
    assert house.verdicts() == ["healthy", "suspect", "unhealthy"]
    assert house.kernel.events("watchdog.restart")[0]["module_id"] == "x"


async def test_two_errors_and_a_good_answer_restart_nothing(house: House, autojump_clock: MockClock) -> None:
    house.health = Refuse(7)
    await until(lambda: len(house.kernel.times("x.health")) == 3)
    house.health = {"status": "ok"}
    await trio.sleep(120)
    assert house.restarts == []
    assert house.verdicts() == ["healthy", "suspect", "healthy"]


async def test_degraded_is_told_with_its_reason_and_not_restarted(house: House, autojump_clock: MockClock) -> None:
    house.health = {"status": "degraded", "why": "disk is slow"}
    await trio.sleep(300)
    assert house.restarts == []
    told = house.kernel.events("watchdog.module")[-1]
    assert (told["verdict"], told["why"]) == ("degraded", "disk is slow")


@pytest.mark.parametrize("said", [None, "ok", [], {"status": 7}, {"status": "ok", "details": "x" * 200_000}])
async def test_an_answer_of_the_wrong_kind_or_size_is_a_failure(
    house: House, said: Any, autojump_clock: MockClock
) -> None:
    house.health = said
    await until(lambda: house.restarts)
    assert "unhealthy" in house.verdicts()


async def test_a_hung_module_is_told_apart_from_an_unhealthy_one(house: House, autojump_clock: MockClock) -> None:
    house.health = hung()
    await until(lambda: house.restarts)
    assert house.verdicts() == ["healthy", "suspect", "hung"]
    assert house.restarts[0]["reason"].startswith("hung")


async def test_a_hung_modules_own_stacks_are_kept_before_it_is_restarted(
    house: House, autojump_clock: MockClock
) -> None:
    rows = [{"module_id": "x", "state": "ready", "methods": ["health", "debug.stacks"]}]
    house.kernel.answers["registry.list_modules"] = lambda p: {"modules": rows}
    house.kernel.answers["x.debug.stacks"] = lambda p: {"stacks": "main.py line 7 in loop"}
    await house.kernel.tell("module.ready", {"module_id": "x"})
    house.health = hung()
    await until(lambda: house.restarts)
    (kept,) = (house.folder / "modules" / "x").glob("stacks-*.txt")
    assert "main.py line 7 in loop" in kept.read_text()
    assert kept.name in house.restarts[0]["reason"]
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_one_hung_module_holds_up_no_other(house: House, autojump_clock: MockClock) -> None:
    rows = [{"module_id": name, "state": "ready", "methods": ["health"]} for name in ("x", "y")]
    house.kernel.answers["registry.list_modules"] = lambda p: {"modules": rows}
    house.kernel.answers["y.health"] = lambda p: {"status": "ok"}
    house.health = hung()
    await house.kernel.tell("module.ready", {"module_id": "y"})
    await trio.sleep(100)
    assert set(gaps_of(house.kernel.times("y.health"))) == {15.0}


async def test_missed_because_the_watchdog_stood_still_is_not_counted(house: House, autojump_clock: MockClock) -> None:
    house.health = hung()
    for _ in range(12):
        asked = len(house.kernel.times("x.health"))
        await until(lambda asked=asked: len(house.kernel.times("x.health")) > asked)  # type: ignore[misc]
        autojump_clock.jump(30)
    assert house.restarts == []
    assert "hung" not in house.verdicts()


async def test_missed_because_the_kernel_stood_still_is_not_counted(house: House, autojump_clock: MockClock) -> None:
    frozen = trio.Event()

    async def stopped(params: dict[str, Any]) -> Any:
        await trio.sleep(4.0)
        return {"module_id": "watchdog", "state": "ready"}

    house.health = hung()
    house.kernel.answers["registry.get_module"] = stopped
    await trio.sleep(200)
    assert house.restarts == []
    house.kernel.answers["registry.get_module"] = lambda p: {"state": "ready"}
    await until(lambda: house.restarts, within_s=40)
    frozen.set()


async def test_gone_is_told_and_left_to_the_launcher_while_nothing_runs(
    house: House, autojump_clock: MockClock
) -> None:
    def offline(params: dict[str, Any]) -> Any:
        raise Refuse(-32001, "module offline", {"reason": "offline", "outcome": "not_sent"})

    house.running = False
    house.kernel.answers["x.health"] = offline
    await house.kernel.tell("module.offline", {"module_id": "x", "reason": "lost"})
    await trio.sleep(200)
    assert house.verdicts() == ["healthy", "gone"]
    assert house.restarts == []


async def test_off_the_wire_with_a_living_process_is_restarted_after_a_while(
    house: House, autojump_clock: MockClock
) -> None:
    def offline(params: dict[str, Any]) -> Any:
        raise Refuse(-32001, "module offline", {"reason": "offline", "outcome": "not_sent"})

    house.kernel.answers["x.health"] = offline
    begin = trio.current_time()
    await house.kernel.tell("module.offline", {"module_id": "x", "reason": "lost"})
    await until(lambda: house.restarts)
    assert 15.0 <= trio.current_time() - begin < 25.0
    assert house.restarts[0]["reason"].startswith("gone")


async def test_a_cut_within_the_debounce_is_told_to_nobody(house: House, autojump_clock: MockClock) -> None:
    def debounce(params: dict[str, Any]) -> Any:
        raise Refuse(-32001, "module offline", {"reason": "debounce", "outcome": "not_sent"})

    house.kernel.answers["x.health"] = debounce
    await trio.sleep(30)
    assert house.verdicts() == ["healthy"]


async def test_after_a_restart_it_is_asked_every_2_seconds_until_three_good_answers(
    house: House, autojump_clock: MockClock
) -> None:
    await house.kernel.tell("module.offline", {"module_id": "x", "reason": "lost"})
    await house.kernel.tell("module.ready", {"module_id": "x"})
    begin = trio.current_time()
    await trio.sleep(30)
    times = [t for t in house.kernel.times("x.health") if t >= begin]
    assert gaps_of(times)[:3] == [2.0, 2.0, 15.0]
    assert house.verdicts() == ["healthy", "gone", "unknown", "healthy"]


async def test_a_deaf_module_is_told_apart(house: House, autojump_clock: MockClock) -> None:
    rows = [{"module_id": "x", "ping": {"status": "timeout", "unanswered": 2}}]
    house.kernel.answers["kernel.get_connection_stats"] = lambda p: {"modules": rows}
    await trio.sleep(60)
    assert house.verdicts() == ["healthy", "deaf"]
    assert house.restarts == []
    rows[0]["ping"] = {"status": "ok", "unanswered": 0}
    await trio.sleep(60)
    assert house.verdicts()[-1] == "healthy"


async def test_a_launcher_that_refuses_is_not_hammered_and_somebody_is_told(
    house: House, autojump_clock: MockClock
) -> None:
    def refuse(params: dict[str, Any]) -> Any:
        raise Refuse(2, "x used up its restarts", {"exit": 2, "hint": "start it by hand"})

    house.kernel.answers["launcher.restart"] = refuse
    house.health = Refuse(7)
    await trio.sleep(600)
    assert len(house.restarts) == 1
    gave_up = house.kernel.events("watchdog.gave_up")
    assert len(gave_up) == 1
    assert gave_up[0]["module_id"] == "x"
    assert "used up its restarts" in gave_up[0]["why"]
    assert house.verdicts()[-1] == "failed"


async def test_a_launcher_that_is_away_for_a_moment_is_asked_again_and_never_twice_at_work(
    house: House, autojump_clock: MockClock
) -> None:
    def away(params: dict[str, Any]) -> Any:
        if len(house.restarts) < 3:
            raise Refuse(-32001, "module offline", {"reason": "debounce", "outcome": "not_sent"})
        raise Silence  # it is at work: no answer within the deadline

    house.kernel.answers["launcher.restart"] = away
    house.health = Refuse(7)
    await until(lambda: house.restarts)
    await trio.sleep(90)
    assert len(house.restarts) == 3


async def test_a_module_that_does_not_come_back_is_failed_and_one_restart_was_asked(
    house: House, autojump_clock: MockClock
) -> None:
    house.health = Refuse(7)
    await trio.sleep(600)
    assert len(house.restarts) == 1
    assert house.verdicts()[-1] == "failed"


async def test_restarts_that_never_help_end_at_the_limit(house: House, autojump_clock: MockClock) -> None:
    async def restart(params: dict[str, Any]) -> Any:
        await house.kernel.tell("module.offline", {"module_id": "x", "reason": "restart"})
        await house.kernel.tell("module.ready", {"module_id": "x"})
        return {}

    house.kernel.answers["launcher.restart"] = restart
    house.health = Refuse(7)
    await trio.sleep(1200)
    assert len(house.restarts) == 5
    assert len(house.kernel.events("watchdog.gave_up")) == 1


async def test_a_module_that_takes_its_health_back_is_asked_no_more(house: House, autojump_clock: MockClock) -> None:
    def unknown(params: dict[str, Any]) -> Any:
        raise Refuse(-32601, "method not found", {"reason": "unknown_method", "outcome": "not_sent"})

    house.kernel.answers["x.health"] = unknown
    await trio.sleep(200)
    assert house.restarts == []


async def test_no_restart_is_asked_while_the_instance_ends(house: House, autojump_clock: MockClock) -> None:
    house.health = Refuse(7)
    await house.kernel.tell("module.shutdown", {"reason": "instance_stop", "deadline_s": 10})
    await trio.sleep(60)
    assert house.restarts == []
    assert house.kernel.events("module.shutdown_ack") == [{"module_id": "watchdog"}]


async def test_a_kernel_that_answers_nothing_on_an_open_wire_is_given_up_and_tried_anew(
    house: House, autojump_clock: MockClock
) -> None:
    async def dead(params: dict[str, Any]) -> Any:
        await trio.sleep_forever()

    house.kernel.answers["kernel.get_connection_stats"] = dead
    house.kernel.answers["registry.get_module"] = dead
    await until(lambda: len(house.kernel.auths) == 2, within_s=60)


async def test_its_own_status_tells_each_module_and_its_health_is_ok(house: House, autojump_clock: MockClock) -> None:
    await house.kernel.ask(1, "status", {})
    await house.kernel.ask(2, "health", {})
    await until(lambda: len(house.kernel.answered) == 2)
    status, health = (frame["result"] for frame in house.kernel.answered)
    assert [m["module_id"] for m in status["modules"]] == ["x"]
    assert status["modules"][0]["verdict"] == "healthy"
    assert health == {"status": "ok"}


async def test_modules_of_a_thousand_names_are_asked_within_their_interval(
    house: House, autojump_clock: MockClock
) -> None:
    rows = [{"module_id": f"m{i}", "state": "ready", "methods": ["health"]} for i in range(1000)]
    house.kernel.answers["registry.list_modules"] = lambda p: {"modules": rows}
    for i in range(1000):
        house.kernel.answers[f"m{i}.health"] = lambda p: {"status": "ok"}
    await house.kernel.tell("module.ready", {"module_id": "m0"})
    await trio.sleep(16)
    assert all(house.kernel.times(f"m{i}.health") for i in range(0, 1000, 50))
