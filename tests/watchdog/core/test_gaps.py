"""Who stood still? Source: spec 60 §1, 00 §13, §16."""

from __future__ import annotations

from kite_watchdog.core.gaps import Gap, Gaps


def gaps() -> Gaps:
    return Gaps(beat_s=0.5, slack_s=1.0, now=100.0, boottime=1000.0)


def test_beats_on_time_leave_no_gap() -> None:
    subject = gaps()
    for i in range(1, 100):
        assert subject.beat(now=100 + i * 0.6, boottime=1000 + i * 0.6) is None
    assert subject.since(0.0) is None


def test_a_late_beat_is_a_pause_of_this_process() -> None:
    gap = gaps().beat(now=105.0, boottime=1005.0)
    assert gap is not None
    assert (gap.kind, gap.seconds) == ("paused", 4.5)


def test_boottime_ahead_of_monotonic_is_a_suspend_even_when_the_beat_was_on_time() -> None:
    gap = gaps().beat(now=100.5, boottime=1000.5 + 3600)
    assert gap is not None
    assert (gap.kind, gap.seconds) == ("suspended", 3600.0)


def test_a_suspend_is_told_once() -> None:
    subject = gaps()
    subject.beat(now=100.5, boottime=4600.5)
    assert subject.beat(now=101.0, boottime=4601.0) is None


def test_a_gap_counts_for_everything_that_ran_in_it_and_for_nothing_after() -> None:
    subject = gaps()
    subject.beat(now=105.0, boottime=1005.0)
    assert subject.since(102.0) is not None
    assert subject.since(105.1) is None


def test_a_pause_of_the_kernel_is_kept_like_ones_own() -> None:
    subject = gaps()
    subject.note(Gap(101.0, 104.0, "kernel", 3.0))
    gap = subject.since(103.0)
    assert gap is not None
    assert gap.kind == "kernel"


def test_only_so_many_gaps_are_kept_and_all_are_counted() -> None:
    subject = gaps()
    for i in range(1000):
        subject.note(Gap(i, i, "kernel", 0.0))
    assert subject.count == 1000
    assert subject.since(999.0) is not None
