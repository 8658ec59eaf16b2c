"""One unit's life on the virtual clock: budget, back-off, ladder, refusals, dependencies.

Source: cases S-12, S-13, S-29 … S-33, S-35 … S-37, S-54, S-76; spec 50 §2, §3.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.fake_machine import Program, World, world
from trio.testing import MockClock

from kite_launcher.core.child import State, story
from kite_launcher.core.keeper_orders import SpawnFailed
from kite_launcher.edge.memory import watch_trees
from kite_launcher.edge.statedir import StateDir

EXIT_1 = 1 << 8


@pytest.fixture
async def w(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[World]:
    state = StateDir.open(str(tmp_path / "state"))
    async with trio.open_nursery() as nursery:
        with world(nursery, state) as made:
            # The book's disk is real and its thread would stop the virtual clock: keep records in memory.
            made.house.book.flush = _no_disk  # type: ignore[method-assign]
            yield made
            nursery.cancel_scope.cancel()
    state.close()


async def _no_disk() -> None:
    await trio.lowlevel.checkpoint()


def _delays(w: World, name: str, life_s: float) -> list[float]:
    return [round(later - earlier - life_s, 3) for earlier, later in pairwise(w.machine.starts[name])]


@pytest.mark.parametrize("status", [EXIT_1, 0])
async def test_budget_of_five_allows_six_starts_then_failed_with_one_alarm(
    w: World, autojump_clock: MockClock, status: int
) -> None:
    x = w.add("x", Program(ends_after_s=0.0, status=status, ready_after_s=None), backoff_s=0.1, backoff_max_s=1.0)
    w.start()
    await trio.sleep(3600)
    assert len(w.machine.starts["x"]) == 6
    gaps = _delays(w, "x", 0.0)
    for gap, expected in zip(gaps, [0.1, 0.2, 0.4, 0.8, 1.0], strict=True):
        assert expected <= gap < expected * 1.2 + 0.1
    assert x.child.state is State.FAILED
    assert [alarm[:2] for alarm in w.alarms] == [("x", "failed")]
    assert "5 restarts in 60 s" in w.alarms[0][2]


async def test_back_off_starts_again_after_healthy_time(w: World, autojump_clock: MockClock) -> None:
    lives = {1: 0.1, 2: 0.1, 3: 0.1, 4: 60.0, 5: 3600.0}
    w.add("x", lambda run: Program(ends_after_s=lives[run], status=EXIT_1))
    w.start()
    await trio.sleep(600)
    starts = w.machine.starts["x"]
    delays = [later - earlier - lives[run] for run, (earlier, later) in enumerate(pairwise(starts), 1)]
    for delay, expected in zip(delays, [0.05, 0.1, 0.2, 0.05], strict=True):
        assert expected <= delay < expected + 0.05


@pytest.mark.parametrize(
    ("policy", "status", "state", "starts"),
    [
        ("on-failure", 0, State.STOPPED, 1),
        ("on-failure", 3 << 8, State.RUNNING, 2),
        ("on-failure", 15, State.RUNNING, 2),
        ("never", 0, State.STOPPED, 1),
        ("never", EXIT_1, State.FAILED, 1),
    ],
)
async def test_policy_decides_what_an_end_means(
    w: World, autojump_clock: MockClock, policy: str, status: int, state: State, starts: int
) -> None:
    x = w.add("x", lambda run: Program(ends_after_s=1.0 if run == 1 else None, status=status), restart=policy)
    w.start()
    await trio.sleep(60)
    assert x.child.state is state
    assert len(w.machine.starts["x"]) == starts


async def test_memory_and_crash_take_from_one_budget_and_why_tells_each(w: World, autojump_clock: MockClock) -> None:
    def program(run: int) -> Program:
        if run % 2:
            return Program(ends_after_s=2.0, status=EXIT_1)
        return Program(memory=50 << 20, child=True)

    x = w.add("x", program)
    ceiling = 64 << 20
    w.nursery.start_soon(_watch_memory, w, ceiling)
    w.start()
    await trio.sleep(600)
    assert len(w.machine.starts["x"]) == 6
    assert x.child.state is State.FAILED
    causes = [entry.cause for entry in x.child.timeline if entry.event in ("back-off", "failed")]
    assert causes == ["exit", "memory", "exit", "memory", "exit", "memory"]
    assert w.machine.living("x") == []


async def _watch_memory(w: World, ceiling: int) -> None:
    from tests.support.module_spec import module_spec

    for unit in w.units.values():
        import attrs

        unit.spec = attrs.evolve(unit.spec, module=module_spec(unit.name, memory_max_bytes=ceiling))
    await watch_trees(w.house, w.units.values)


async def test_hopeless_start_fails_at_once_and_makes_no_storm(w: World, autojump_clock: MockClock) -> None:
    why = "argument list too long (3000000 bytes)"
    x = w.add("x", Program(fails=SpawnFailed("x", errno.E2BIG, why)))
    y = w.add("y", Program())
    w.start()
    await trio.sleep(600)
    assert (x.child.state, x.child.why) == (State.FAILED, why)
    assert len(w.machine.starts["x"]) == 1
    assert y.child.state is State.RUNNING


async def test_passing_shortage_is_tried_again(w: World, autojump_clock: MockClock) -> None:
    full = SpawnFailed("x", errno.EAGAIN, "try again")
    x = w.add("x", lambda run: Program(fails=full) if run < 3 else Program())
    w.start()
    await trio.sleep(10)
    assert x.child.state is State.RUNNING
    assert len(w.machine.starts["x"]) == 3


async def test_stop_in_back_off_is_at_once_and_start_by_hand_refreshes_the_budget(
    w: World, autojump_clock: MockClock
) -> None:
    x = w.add("x", Program(ends_after_s=0.0, status=EXIT_1, ready_after_s=None), backoff_s=20.0, max_restarts=3)
    w.start()
    await trio.sleep(1)
    told = story(x.child, rule=x.spec.rule, now=trio.current_time())
    assert told["state"] == "backoff"
    assert 15 < told["next_try_s"] < 20
    assert told["budget"] == {"left": 2, "of": 3, "within_s": 60.0}
    assert any("exit 1" in entry["detail"] for entry in told["timeline"])
    x.order_stop("by hand")
    assert x.child.state is State.STOPPED
    await trio.sleep(600)
    assert len(w.machine.starts["x"]) == 1
    x.want("by hand", fresh=True)
    await trio.sleep(0.1)
    assert len(w.machine.starts["x"]) == 2
    assert story(x.child, rule="", now=trio.current_time())["budget"]["left"] == 2


async def test_what_outlives_kill_is_named_and_never_called_stopped(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program(term_s=None, immortal=True))
    w.wire.deaf.add("x")
    w.start()
    await trio.sleep(1)
    process = w.machine.living("x")[0]
    begin = trio.current_time()
    x.order_stop("by hand")
    await w.house.changed.until(lambda: bool(x.child.refusers), begin + 10)
    assert trio.current_time() - begin < 2.5
    assert process.signals.count(9) == 1
    assert x.child.state is State.STOPPING
    assert str(process.pid) in x.child.why
    assert ("x", "refused") in [alarm[:2] for alarm in w.alarms]
    await trio.sleep(30)
    assert x.child.state is State.STOPPING
    assert process.signals.count(9) == 1
    # The instance's end does not wait for it for ever.
    x.close("down")
    await trio.sleep(2)
    assert x.child.refusers
    assert len(w.machine.starts["x"]) == 1


async def test_refuser_that_goes_at_last_lets_the_module_start_again(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", lambda run: Program(term_s=None, immortal=run == 1))
    w.wire.deaf.add("x")
    w.start()
    await trio.sleep(1)
    x.order_restart("by hand")
    await trio.sleep(5)
    assert len(w.machine.starts["x"]) == 1
    stuck = w.machine.living("x")[0]
    w.machine._end(stuck, 9)
    await trio.sleep(5)
    assert len(w.machine.starts["x"]) == 2
    assert x.child.state is State.RUNNING


async def test_ladder_of_a_kite_module_word_then_signal_at_half_then_kill(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program(term_s=None), stop_timeout_s=4.0)
    w.wire.deaf.add("x")
    w.start()
    await trio.sleep(1)
    process = w.machine.living("x")[0]
    begin = trio.current_time()
    x.order_stop("by hand")
    await trio.sleep(1.9)
    assert w.wire.said == [("module.shutdown", ("x", "module_stop"))]
    assert process.signals == []
    await trio.sleep(0.5)
    assert process.signals[0] == 15
    await w.house.changed.until(lambda: x.child.state is State.STOPPED)
    assert process.signals[-1] == 9
    assert 4.0 <= trio.current_time() - begin < 5.0


async def test_plain_program_gets_its_signal_at_once(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program(), speaks_kite=False)
    w.start("x")
    await trio.sleep(1)
    x.heard_ready()
    begin = trio.current_time()
    x.order_stop("by hand")
    await w.house.changed.until(lambda: x.child.state is State.STOPPED)
    assert trio.current_time() - begin < 0.2
    assert w.wire.said == []


async def test_hurry_kills_at_once(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program(term_s=None), stop_timeout_s=60.0)
    w.wire.deaf.add("x")
    w.start()
    await trio.sleep(1)
    begin = trio.current_time()
    x.order_stop("by hand")
    await trio.sleep(0.5)
    x.press(2)
    await w.house.changed.until(lambda: x.child.state is State.STOPPED)
    assert trio.current_time() - begin < 1.0


async def test_helper_of_a_crashed_leader_ends_before_the_next_start(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", lambda run: Program(ends_after_s=1.0 if run == 1 else None, status=EXIT_1, child=run == 1))
    w.start()
    await trio.sleep(0.5)
    helper = next(process for process in w.machine.living("x") if process.program.term_s is None)
    await w.house.changed.until(lambda: x.child.run == 2)
    assert helper.ended.is_set()
    assert helper.signals[0] == 15
    assert helper.signals[-1] == 9


async def test_requires_waits_for_ready_and_after_for_settled(w: World, autojump_clock: MockClock) -> None:
    w.add("x", Program(ends_after_s=0.5, status=3 << 8, ready_after_s=None), restart="never")
    y = w.add("y", Program(), after=("x",), requires=("x",))
    z = w.add("z", Program(), after=("x",))
    w.start()
    await trio.sleep(0.4)
    assert [unit.child.state.value for unit in (y, z)] == ["waiting", "waiting"]
    await trio.sleep(10)
    assert [unit.child.state.value for unit in (y, z)] == ["waiting", "running"]
    assert "y" not in w.machine.starts
    assert y.gate().hopeless


async def test_who_requires_a_stopped_one_goes_back_to_waiting(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program())
    y = w.add("y", Program(), after=("x",), requires=("x",))
    w.start()
    await trio.sleep(1)
    assert y.child.state is State.RUNNING
    x.order_stop("by hand")
    await trio.sleep(2)
    assert (x.child.state, y.child.state) == (State.STOPPED, State.WAITING)
    x.want("by hand", fresh=True)
    await trio.sleep(2)
    assert {x.child.state, y.child.state} == {State.RUNNING}


async def test_stop_while_a_start_is_under_way_is_carried_out(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program(ready_after_s=None))
    w.start()
    await trio.sleep(0.001)
    x.order_stop("by hand")
    await trio.sleep(5)
    assert x.child.state is State.STOPPED
    assert w.machine.living("x") == []


async def test_slow_retry_goes_on_where_it_is_configured(w: World, autojump_clock: MockClock) -> None:
    x = w.add("x", Program(ends_after_s=0.0, status=EXIT_1, ready_after_s=None), max_restarts=1, retry_slowly_s=120.0)
    w.start()
    await trio.sleep(601)
    assert 6 <= len(w.machine.starts["x"]) <= 10
    assert x.child.next_try is not None or x.child.state is not State.FAILED
    assert w.alarms


async def test_fifty_crashing_modules_for_an_hour_stay_within_budget_and_log(
    w: World, autojump_clock: MockClock
) -> None:
    patterns: list[dict[str, Any]] = [
        {"ends_after_s": 0.0},
        {"ends_after_s": 0.01, "status": 0},
        {"ends_after_s": 1.0},
        {"ends_after_s": 70.0},
        {"ends_after_s": 20.0},
        {"ends_after_s": 0.0, "ready_after_s": None},
    ]
    written: list[int] = []
    w.house.journal.write = lambda line: written.append(len(line) + 1)  # type: ignore[method-assign]
    for number in range(50):
        w.add(f"m{number}", Program(**{"status": EXIT_1, **patterns[number % 6]}), max_restarts=10)
    w.start()
    await trio.sleep(3600)
    for starts in w.machine.starts.values():
        for first, eleventh in zip(starts, starts[11:], strict=False):
            assert eleventh - first >= 60.0
    assert sum(written) < 1_000_000
    for unit in w.units.values():
        assert len(unit.child.timeline) <= 200


async def test_fault_of_our_own_costs_one_unit_one_run_and_nobody_else(
    w: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = w.add("x", Program())
    y = w.add("y", Program())
    w.start()
    await trio.sleep(1)
    first = w.machine.living("x")[0]
    faults = 0

    async def broken(run: object) -> None:
        nonlocal faults
        faults += 1
        raise ZeroDivisionError

    monkeypatch.setattr(x, "_attend", broken)
    x.order_restart("by hand")
    await trio.sleep(0.2)
    monkeypatch.undo()
    await trio.sleep(30)
    assert faults >= 1
    assert first.ended.is_set()
    assert [unit.child.state.value for unit in (x, y)] == ["running", "running"]
    assert len(w.machine.starts["y"]) == 1
    assert len(w.machine.living("x")) == 1
