"""How often a fresh instance may be started. Source: spec 60 §2, 00 §16, §30; cases S-73, S-76."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_watchdog.core.budget import (
    STARTS_KEPT,
    Allowed,
    Damaged,
    Spent,
    Start,
    decide_start,
    decode_record,
    encode_record,
)

NOW = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
BOOT = "b0"


def start(ago_s: float, *, boottime: float = 10_000.0) -> Start:
    return Start((NOW - timedelta(seconds=ago_s)).isoformat(), "launcher lost", boottime - ago_s)


def ask(
    *starts: Start, restarts: int = 5, within_s: float = 600.0, scale: float = 1.0, utc: datetime = NOW
) -> Allowed | Spent:
    return decide_start(starts, restarts=restarts, within_s=within_s, scale=scale, boottime=10_000.0, utc=utc)


def test_the_first_start_waits_for_nothing() -> None:
    assert ask() == Allowed(0.0, 1, 5)


def test_five_starts_in_ten_minutes_are_allowed_and_the_sixth_is_not() -> None:
    starts = [start(500 - 100 * i) for i in range(5)]
    assert isinstance(ask(*starts[:4]), Allowed)
    spent = ask(*starts)
    assert isinstance(spent, Spent)
    assert "5 starts of 5" in spent.why


def test_a_start_leaves_the_window_after_ten_minutes() -> None:
    assert isinstance(ask(*[start(601 - i * 100) for i in range(5)]), Allowed)


def test_the_backoff_doubles_and_is_capped() -> None:
    delays = []
    for n in range(1, 8):
        verdict = ask(*[start(0.0)] * n, restarts=100)
        assert isinstance(verdict, Allowed)
        delays.append(verdict.delay_s)
    assert delays == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_time_that_has_passed_counts_towards_the_backoff() -> None:
    verdict = ask(start(1.5), restarts=5)
    assert isinstance(verdict, Allowed)
    assert verdict.delay_s == pytest.approx(0.5)


def test_the_backoff_scales() -> None:
    verdict = ask(start(0.0), scale=0.1)
    assert isinstance(verdict, Allowed)
    assert verdict.delay_s == pytest.approx(0.2)


@pytest.mark.parametrize("years", [-1, 1])
def test_a_step_of_the_wall_clock_moves_no_budget(years: int) -> None:
    starts = [start(50 * i) for i in range(5)]
    assert isinstance(ask(*starts, utc=NOW + timedelta(days=365 * years)), Spent)


def test_after_a_reboot_the_stamps_are_all_there_is() -> None:
    raw = encode_record((start(30), start(20)), boot_id="another boot")
    record = decode_record(raw, boot_id=BOOT)
    assert not isinstance(record, Damaged)
    assert [s.seconds for s in record] == [None, None]
    verdict = ask(*record)
    assert isinstance(verdict, Allowed)
    assert verdict.number == 3


@pytest.mark.parametrize("stamp", ["tomorrow", "", "9999-01-01T00:00:00+00:00", "2026-03-14T12:00:00", "1e9"])
def test_an_unreadable_or_future_stamp_frees_no_budget(stamp: str) -> None:
    assert isinstance(ask(*[Start(stamp, "x")] * 5), Spent)


def test_zero_restarts_means_never() -> None:
    assert isinstance(ask(restarts=0), Spent)


def test_the_file_has_schema_1_and_entries_with_at_and_cause() -> None:
    raw = encode_record((start(5),), boot_id=BOOT)
    assert raw.startswith(b'{"schema":1,"starts":[{"at":"2026-03-14T11:59:55+00:00","cause":"launcher lost"}]')


@given(st.lists(st.builds(Start, st.text(max_size=9), st.text(max_size=9), st.none() | st.floats(0, 1e9)), max_size=20))
def test_what_was_written_is_read_back(starts: list[Start]) -> None:
    assert decode_record(encode_record(tuple(starts), boot_id=BOOT), boot_id=BOOT) == tuple(starts)


def test_the_file_does_not_grow_for_ever() -> None:
    record = decode_record(encode_record(tuple(start(i) for i in range(500)), boot_id=BOOT), boot_id=BOOT)
    assert not isinstance(record, Damaged)
    assert len(record) == STARTS_KEPT


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage",
        b"[]",
        b"7",
        b'{"schema":99,"starts":[]}',
        b'{"schema":1}',
        b'{"schema":1,"starts":7}',
        b'{"schema":1,"starts":[7]}',
        b'{"schema":1,"starts":[{"at":1,"cause":"x"}]}',
        b'{"schema":1,"starts":[{"cause":"x"}]}',
        b"[" * 200_000,
        b" " * 300_000,
        b"\xff\xfe",
    ],
)
def test_a_forged_record_is_damaged_and_never_an_exception(raw: bytes) -> None:
    assert isinstance(decode_record(raw, boot_id=BOOT), Damaged)


def test_a_forged_clock_is_not_believed() -> None:
    starts = b'[{"at":"2026-03-14T12:00:00+00:00","cause":"x"}]'
    raw = b'{"schema":1,"starts":' + starts + b',"clock":{"boot_id":"b0","seconds":["a"]}}'
    record = decode_record(raw, boot_id=BOOT)
    assert record == (Start("2026-03-14T12:00:00+00:00", "x", None),)


def test_no_file_is_an_empty_record() -> None:
    assert decode_record(b"", boot_id=BOOT) == ()
