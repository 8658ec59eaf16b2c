"""A promised time is held when it comes neither before its time nor much after it."""

from __future__ import annotations

from kite_modules.chaos.measure import SLACK_S, Measure, Timeline


def test_too_early_is_as_wrong_as_too_late_and_never_is_worst() -> None:
    promised = 5.0
    measured = [promised - 0.5, promised, promised + SLACK_S, promised * 1.1 + SLACK_S + 0.1, None]
    assert [Measure("x", promised, each).held for each in measured] == [False, True, True, False, False]


def test_a_latest_moment_may_come_early() -> None:
    assert Measure("x", 40.0, 6.0, exact=False).held
    assert not Measure("x", 40.0, None, exact=False).held


def test_a_timeline_without_a_measure_did_not_hold() -> None:
    line = Timeline("A", "nothing was measured")
    assert not line.held
    line.measures.append(Measure("x", 1.0, 1.0))
    assert line.held
    line.faults.append("somebody was told")
    assert not line.held


def test_both_times_stand_in_the_line() -> None:
    assert "promised   5.00 s   measured   5.01 s" in Measure("x", 5.0, 5.01).line()
    assert "never" in Measure("x", 5.0, None).line()
