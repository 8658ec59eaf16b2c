"""What `logs` shows of what is stored."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kite_launcher.core.logline import StoredLine
from kite_launcher.core.logquery import Joiner, Query, as_json, as_text, choose_run, join_all, parse_when

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
ZONE = timezone(timedelta(hours=8))


def line(text: str, **how: object) -> StoredLine:
    """Make a record."""
    fields: dict[str, object] = {"time": "2026-11-30T09:12:13.000000Z", "stream": "out", "run": 1, **how}
    return StoredLine(text=text, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("10m", "2026-11-30T11:50:00.000000Z"),
        ("1.5s", "2026-11-30T11:59:58.500000Z"),
        ("@0", "1970-01-01T00:00:00.000000Z"),
        ("2026-11-30T09:12:13Z", "2026-11-30T09:12:13.000000Z"),
        ("2026-11-30T09:12:13.123456+01:00", "2026-11-30T08:12:13.123456Z"),
        ("2026-11-30 09:12", "2026-11-30T01:12:00.000000Z"),
        ("2026-11-30", "2026-11-29T16:00:00.000000Z"),
        ("today", "2026-11-29T16:00:00.000000Z"),
        ("yesterday", "2026-11-28T16:00:00.000000Z"),
        ("09:12", "2026-11-30T01:12:00.000000Z"),
        ("9:12", "2026-11-30T01:12:00.000000Z"),
    ],
)
def test_a_time_is_read_as_a_person_writes_it(text: str, stamp: str) -> None:
    assert parse_when(text, now=NOW, zone=ZONE) == stamp


@pytest.mark.parametrize("text", ["", "abc", "10", "25:00", "2026-13-01", "@x", "@1e30", "-5m", "99999999999d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert parse_when(text, now=NOW, zone=ZONE) is None


def test_a_line_that_paused_is_one_line_again() -> None:
    pieces = [line("liste", pause=True), line("other", stream="err"), line("ning")]
    assert [(one.text, one.cont) for one in join_all(pieces)] == [("other", False), ("listening", False)]


def test_a_character_that_paused_in_its_middle_is_whole_again() -> None:
    pieces = [line("a\\xf0\\x9f", esc=True, pause=True), line("\\x98\\x80", esc=True, nonl=True)]
    [joined] = join_all(pieces)
    assert (joined.text, joined.esc, joined.nonl) == ("a😀", False, True)


def test_pieces_of_other_runs_are_not_joined() -> None:
    pieces = [line("a", pause=True), line("b", run=2)]
    assert [(one.text, one.cont) for one in join_all(pieces)] == [("b", False), ("a", True)]


def test_an_unfinished_line_is_shown_as_going_on() -> None:
    joiner = Joiner()
    assert list(joiner.feed(line("Password: ", pause=True))) == []
    assert joiner.waiting
    assert [(one.text, one.cont) for one in joiner.flush()] == [("Password: ", True)]
    assert not joiner.waiting


def test_a_run_is_named_by_number_or_counted_back() -> None:
    assert choose_run(7, [1, 2]) == 7
    assert choose_run(0, [3, 5, 9]) == 9
    assert choose_run(-1, [3, 5, 9, 9]) == 5
    assert choose_run(-3, [3, 5, 9]) is None
    assert choose_run(0, []) is None


def test_only_what_is_wanted_is_shown() -> None:
    one = line("hello", time="2026-11-30T09:00:00.000000Z", run=2)
    assert Query().wants(one)
    assert Query(since="2026-11-30T09:00:00.000000Z", until="2026-11-30T09:00:00.000000Z").wants(one)
    assert not Query(since="2026-11-30T09:00:00.000001Z").wants(one)
    assert not Query(until="2026-11-30T08:59:59.999999Z").wants(one)
    assert not Query(run=1).wants(one)
    assert not Query(stream="err").wants(one)
    assert Query(grep=re.compile("l+o")).wants(one)
    assert not Query(grep=re.compile("^ello")).wants(one)


def test_the_json_of_a_line_has_exactly_its_members() -> None:
    shown = as_json(line('你 "\\', stream="err", nonl=True), "x@1")
    assert json.loads(shown) == {
        "time": "2026-11-30T09:12:13.000000Z",
        "module": "x@1",
        "run": 1,
        "stream": "err",
        "line": '你 "\\',
        "esc": False,
        "cont": False,
        "nonl": True,
    }


def test_people_see_local_time_and_what_is_odd() -> None:
    assert as_text(line("hi"), "x", width=3, zone=ZONE, colour=False) == "2026-11-30 17:12:13.000 x   | hi"
    assert as_text(line("hi", stream="err", nonl=True), "x", width=1, zone=UTC, colour=False).endswith(
        "x ! hi [no newline]"
    )
    assert "\x1b" not in as_text(line("hi"), "x", width=1, zone=UTC, colour=False)
    assert as_text(line("hi", time="never"), "x", width=1, zone=UTC, colour=False).startswith("never x")
