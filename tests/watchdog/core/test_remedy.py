"""The table of spec 60 §2, row by row, and that nothing but the table decides."""

from __future__ import annotations

import itertools

import pytest

from kite_watchdog.core.remedy import ASK_AFTER_S, Action, Facts, Kernel, Lost, Watch, decide

LATER = ASK_AFTER_S + 1.0


def watch() -> Watch:
    return Watch(debounce_s=5.0)


def action(subject: Watch, *, now: float = 0.0, launcher_alive: bool = False) -> Action:
    return decide(subject.facts(now=now, launcher_alive=launcher_alive))[0]


def test_every_combination_of_facts_has_an_answer() -> None:
    for lost, exiting, kernel, alive in itertools.product(Lost, (True, False), Kernel, (True, False)):
        assert decide(Facts(lost, exiting, kernel, alive, LATER))[0] in Action


def test_only_a_loss_without_module_exiting_ever_starts_an_instance() -> None:
    for lost, exiting, kernel, alive in itertools.product(Lost, (True, False), Kernel, (True, False)):
        if decide(Facts(lost, exiting, kernel, alive, LATER))[0] is Action.START:
            assert not exiting
            assert lost is Lost.LAUNCHER or (lost is Lost.NO and kernel is Kernel.UNREACHABLE and not alive)


def test_launcher_offline_is_a_mark_and_decides_nothing() -> None:
    subject = watch()
    subject.on_event("module.offline", "kernel", {"module_id": "launcher", "reason": "gone"})
    assert (subject.offline, action(subject)) == (True, Action.NOTHING)


def test_launcher_ready_clears_the_mark() -> None:
    subject = watch()
    subject.on_event("module.offline", "kernel", {"module_id": "launcher"})
    subject.on_event("module.ready", "kernel", {"module_id": "launcher"})
    assert not subject.offline


def test_a_shutdown_for_the_lost_launcher_starts_a_fresh_instance() -> None:
    subject = watch()
    subject.on_event("module.shutdown", "kernel", {"reason": "launcher_lost", "deadline_s": 10})
    assert action(subject) is Action.START


def test_a_normal_exit_is_followed_out() -> None:
    subject = watch()
    subject.on_event("module.exiting", "launcher", {"module_id": "launcher"})
    subject.on_event("module.offline", "kernel", {"module_id": "launcher"})
    subject.on_event("module.shutdown", "kernel", {"reason": "launcher_lost"})
    assert action(subject) is Action.FOLLOW


def test_a_launcher_that_came_back_after_module_exiting_is_a_new_one() -> None:
    subject = watch()
    subject.on_event("module.exiting", "launcher", {"module_id": "launcher"})
    subject.on_event("module.ready", "launcher", {"module_id": "launcher"})
    subject.on_event("module.shutdown", "kernel", {"reason": "launcher_lost"})
    assert action(subject) is Action.START


@pytest.mark.parametrize("reason", ["instance_stop", "module_stop"])
def test_an_ordered_stop_is_followed(reason: str) -> None:
    subject = watch()
    subject.on_event("module.shutdown", "kernel", {"reason": reason})
    assert action(subject) is Action.FOLLOW


def test_a_kernel_that_stops_alone_leaves_the_watchdog_in_place() -> None:
    subject = watch()
    subject.on_event("module.shutdown", "kernel", {"reason": "kernel_stop"})
    assert action(subject) is Action.NOTHING


@pytest.mark.parametrize(
    ("name", "source", "data"),
    [
        ("module.shutdown", "shop", {"reason": "launcher_lost"}),
        ("module.exiting", "shop", {"module_id": "launcher"}),
        ("module.offline", "shop", {"module_id": "launcher"}),
        ("module.exiting", "shop", {"module_id": "shop"}),
        ("module.shutdown", "kernel", {"reason": ["launcher_lost"]}),
        ("module.shutdown", "kernel", {}),
    ],
)
def test_what_a_module_merely_claims_leaves_no_mark(name: str, source: str, data: dict[str, object]) -> None:
    subject = watch()
    subject.on_event(name, source, data)
    assert (subject.lost, subject.exiting, subject.offline) == (Lost.NO, False, False)


def failing(attempts: int, *, over_s: float) -> Watch:
    subject = watch()
    for i in range(attempts):
        subject.on_failure(now=i * over_s / max(1, attempts - 1))
    return subject


def test_kernel_unreachable_and_launcher_gone_starts_a_fresh_instance() -> None:
    assert action(failing(4, over_s=6.0), now=6.0) is Action.START


def test_one_refused_connect_is_a_restart_of_the_kernel() -> None:
    assert action(failing(2, over_s=1.0), now=100.0) is Action.NOTHING


def test_a_cut_shorter_than_the_debounce_decides_nothing() -> None:
    assert action(failing(5, over_s=4.0), now=4.0) is Action.NOTHING


def test_kernel_unreachable_and_launcher_alive_is_left_to_the_launcher_for_60_seconds() -> None:
    subject = failing(5, over_s=10.0)
    assert action(subject, now=59.0, launcher_alive=True) is Action.NOTHING
    assert action(subject, now=61.0, launcher_alive=True) is Action.ASK


def test_an_open_wire_forgets_the_failures() -> None:
    subject = failing(5, over_s=10.0)
    subject.on_open()
    assert action(subject, now=100.0) is Action.NOTHING


def test_kernel_and_launcher_gone_after_module_exiting_is_a_normal_exit() -> None:
    subject = failing(5, over_s=10.0)
    subject.on_event("module.exiting", "launcher", {"module_id": "launcher"})
    assert action(subject, now=20.0) is Action.FOLLOW


def test_a_table_with_a_hole_is_a_bug_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kite_watchdog.core.remedy.TABLE", ())
    with pytest.raises(AssertionError, match="no row"):
        decide(Facts(Lost.NO, False, Kernel.OPEN, True))
