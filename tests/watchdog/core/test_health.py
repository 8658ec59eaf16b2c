"""The health of one module: laws of `kite_watchdog.core.health`. Source: spec 60-watchdog §1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_watchdog.core.health import AWAY_PATIENCE_S, Health, Kind, Sample, Step, Verdict

GOOD = Sample(Kind.GOOD)
ERROR = Sample(Kind.ERROR, "health answered error 7")
TIMEOUT = Sample(Kind.TIMEOUT, "no answer")
AWAY = Sample(Kind.AWAY, "not on the wire")


def health(*, limit: int = 5, interval_s: float = 15.0, scale: float = 1.0, asks: bool = True) -> Health:
    return Health(interval_s=interval_s, scale=scale, limit=limit, asks=asks)


def feed(subject: Health, *samples: Sample) -> Step:
    step = Step()
    for sample in samples:
        step = subject.on_sample(sample)
    return step


def test_a_healthy_module_is_asked_every_15_seconds() -> None:
    subject = health()
    feed(subject, GOOD)
    assert (subject.verdict, subject.next_interval_s()) == (Verdict.HEALTHY, 15.0)


def test_intervals_are_15_then_5_then_2_seconds() -> None:
    subject = health()
    seen = [subject.next_interval_s()]
    for sample in (ERROR, ERROR):
        feed(subject, sample)
        seen.append(subject.next_interval_s())
    assert seen == [15.0, 5.0, 2.0]


def test_intervals_scale_together() -> None:
    subject = health(interval_s=1.5, scale=0.1)
    seen = [subject.next_interval_s()]
    for sample in (ERROR, ERROR):
        feed(subject, sample)
        seen.append(subject.next_interval_s())
    assert seen == pytest.approx([1.5, 0.5, 0.2])


def test_an_interval_shorter_than_5_seconds_is_never_made_longer_by_a_failure() -> None:
    subject = health(interval_s=1.0)
    feed(subject, ERROR)
    assert subject.next_interval_s() == 1.0


def test_two_failures_and_a_good_answer_restart_nothing() -> None:
    subject = health()
    for _ in range(20):
        assert feed(subject, ERROR, ERROR, GOOD).restart is None


def test_three_failures_in_a_row_ask_for_one_restart_with_the_reason() -> None:
    subject = health()
    step = feed(subject, ERROR, ERROR, ERROR)
    assert step.restart is not None
    assert "health answered error 7" in step.restart
    assert step.change is not None
    assert (step.change.verdict, step.change.failures) == (Verdict.UNHEALTHY, 3)
    assert feed(subject, ERROR, ERROR, ERROR, ERROR).restart is None


def test_a_module_that_answers_nothing_is_hung_and_one_that_answers_errors_is_unhealthy() -> None:
    changes = [feed(health(), *[sample] * 3).change for sample in (TIMEOUT, ERROR)]
    assert [c.verdict for c in changes if c is not None] == [Verdict.HUNG, Verdict.UNHEALTHY]


def test_degraded_is_shown_with_its_reason_and_never_restarted() -> None:
    subject = health()
    step = feed(subject, Sample(Kind.DEGRADED, "disk is slow"))
    assert step.change is not None
    assert (step.change.verdict, step.change.why) == (Verdict.DEGRADED, "disk is slow")
    for _ in range(50):
        assert feed(subject, Sample(Kind.DEGRADED, "disk is slow")) == Step()
    assert subject.next_interval_s() == 15.0


def test_healthy_again_only_after_three_good_answers() -> None:
    subject = health()
    feed(subject, ERROR, ERROR)
    verdicts = []
    for _ in range(3):
        feed(subject, GOOD)
        verdicts.append((subject.verdict, subject.next_interval_s()))
    assert verdicts == [(Verdict.SUSPECT, 2.0), (Verdict.SUSPECT, 2.0), (Verdict.HEALTHY, 15.0)]


def test_after_a_restart_every_2_seconds_until_three_good_answers() -> None:
    subject = health()
    feed(subject, ERROR, ERROR, ERROR)
    subject.on_away("off the wire")
    assert subject.verdict is Verdict.RESTARTING
    subject.on_ready(restarted=True)
    seen = []
    for _ in range(3):
        seen.append(subject.next_interval_s())
        feed(subject, GOOD)
    assert seen == [2.0, 2.0, 2.0]
    assert (subject.verdict, subject.next_interval_s()) == (Verdict.HEALTHY, 15.0)


def test_restarts_that_do_not_help_end_at_the_limit_with_an_alarm() -> None:
    subject = health(limit=2)
    asked, gave_up = 0, []
    for _ in range(10):
        for _ in range(3):
            step = feed(subject, ERROR)
            asked += step.restart is not None
            gave_up += [step.gave_up] if step.gave_up else []
        subject.on_ready(restarted=subject.verdict is Verdict.RESTARTING)
    assert (asked, len(gave_up), subject.verdict) == (2, 1, Verdict.FAILED)


def test_three_good_answers_renew_the_limit() -> None:
    subject = health(limit=1)
    for _ in range(4):
        assert feed(subject, ERROR, ERROR, ERROR).restart is not None
        subject.on_ready(restarted=True)
        feed(subject, GOOD, GOOD, GOOD)
        assert subject.verdict is Verdict.HEALTHY


def test_a_refused_restart_is_failed_and_not_asked_again() -> None:
    subject = health()
    feed(subject, ERROR, ERROR, ERROR)
    step = subject.on_refused("its budget is used up")
    assert (subject.verdict, step.gave_up) == (Verdict.FAILED, "its budget is used up")
    assert all(feed(subject, ERROR).restart is None for _ in range(20))


def test_a_module_that_does_not_come_back_is_failed() -> None:
    subject = health()
    feed(subject, ERROR, ERROR, ERROR)
    assert subject.on_not_back(60.0).gave_up is not None
    assert subject.verdict is Verdict.FAILED


def test_one_that_came_back_in_time_is_not_called_failed() -> None:
    subject = health()
    feed(subject, ERROR, ERROR, ERROR)
    subject.on_ready(restarted=True)
    assert subject.on_not_back(60.0) == Step()


def test_gone_is_told_apart_and_not_restarted_while_nothing_runs() -> None:
    subject = health()
    feed(subject, GOOD)
    step = feed(subject, AWAY)
    assert step.change is not None
    assert step.change.verdict is Verdict.GONE
    for _ in range(100):
        subject.on_not_alive()
        assert feed(subject, AWAY).restart is None
    assert subject.next_interval_s() == 15.0


def test_off_the_wire_for_long_while_its_process_lives_is_restarted() -> None:
    subject = health()
    feed(subject, AWAY)
    assert subject.on_alive(42, now=0.0).restart is None
    assert subject.on_alive(42, now=2.0).restart is None
    assert subject.on_alive(42, now=AWAY_PATIENCE_S - 0.1).restart is None
    step = subject.on_alive(42, now=AWAY_PATIENCE_S)
    assert step.restart is not None
    assert "42" in step.restart


def test_the_patience_begins_anew_when_the_launcher_had_it_in_hand_meanwhile() -> None:
    subject = health()
    feed(subject, AWAY)
    subject.on_alive(42, now=0.0)
    subject.on_not_alive()
    assert all(subject.on_alive(43, now=100.0 + i).restart is None for i in range(5))


def test_deaf_is_one_that_answers_health_and_misses_pings() -> None:
    subject = health()
    feed(subject, GOOD)
    step = subject.on_pings(2)
    assert step.change is not None
    assert step.change.verdict is Verdict.DEAF
    assert feed(subject, GOOD) == Step()
    cleared = subject.on_pings(0).change
    assert cleared is not None
    assert cleared.verdict is Verdict.HEALTHY


def test_a_module_without_health_is_never_called_healthy() -> None:
    subject = health(asks=False)
    subject.on_away("off")
    subject.on_ready(restarted=True)
    assert subject.verdict is Verdict.UNKNOWN


@given(st.lists(st.sampled_from([GOOD, ERROR, TIMEOUT, AWAY, Sample(Kind.DEGRADED, "x")]), max_size=60))
def test_no_restart_without_three_failures_in_a_row(samples: list[Sample]) -> None:
    subject, row = health(), 0
    for sample in samples:
        row = row + 1 if sample in (ERROR, TIMEOUT) else 0
        if feed(subject, sample).restart is not None:
            assert row >= 3
            row = 0


def test_whatever_happens_afterwards_a_restart_is_asked_for_once_at_a_time() -> None:
    subject = health()
    feed(subject, ERROR, ERROR, ERROR)
    assert subject.on_alive(42, now=0.0) == Step()
    assert subject.on_pings(5) == Step()
    assert feed(subject, AWAY) == Step()
    assert subject.verdict is Verdict.RESTARTING


def test_back_after_a_restart_without_a_word_counts_by_its_answers() -> None:
    subject = health()
    feed(subject, ERROR, ERROR, ERROR)
    step = feed(subject, GOOD)
    assert step.change is not None
    assert (step.change.verdict, step.change.was) == (Verdict.UNKNOWN, Verdict.RESTARTING)
    feed(subject, GOOD, GOOD)
    assert subject.verdict is Verdict.HEALTHY


def test_a_module_that_was_never_asked_stays_unknown_when_it_says_ready_again() -> None:
    subject = health()
    assert subject.on_ready(restarted=True) == Step()
    assert subject.next_interval_s() == 2.0
