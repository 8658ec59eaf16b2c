"""The status table: what it shows, in which width, and that nothing in it is obeyed by a terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kite_launcher.cli import why
from kite_launcher.cli.table import age, clip, columns, render, text_width

from .fake_launcher import row, status

NOW = datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)


def test_the_first_line_is_the_verdict() -> None:
    (first, *_) = render(status("ok", row("x")), width=200, colour=False, now=NOW)
    assert first.startswith("● lab: everything as wanted · ws://127.0.0.1:1 · launcher ")
    assert first.endswith("up 1h")


def test_columns_line_up_under_wide_characters() -> None:
    modules = [row("备份", why="warm"), row("x", "failed", restarts=12, why="exit 3")]
    lines = render(status("failed", *modules), width=200, colour=False, now=NOW)[1:]
    head, *_, first, second = lines
    places = {
        text_width(line[: line.index(word)]) for line, word in ((head, "WHY"), (first, "warm"), (second, "exit 3"))
    }
    assert len(places) == 1


def test_empty_columns_are_left_out() -> None:
    head = render(status("ok", row("x")), width=200, colour=False, now=NOW)[1]
    assert "GRADE" not in head
    assert "RESTARTS" not in head


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_long_reason_gives_way_not_the_table(width: int) -> None:
    lines = render(status("ok", row("x", why="w " * 400)), width=width, colour=False, now=NOW)
    assert text_width(lines[-1]) <= max(width, 70)
    assert lines[-1].endswith("…")


def test_colours_only_when_asked_and_never_instead_of_a_sign() -> None:
    now = status("failed", row("x"), row("y", "failed"))
    plain, coloured = (render(now, width=200, colour=colour, now=NOW) for colour in (False, True))
    assert "\x1b" not in "".join(plain)
    assert "\x1b[31m✗\x1b[0m" in "".join(coloured)
    assert "✗" in plain[-1]


def test_control_characters_never_reach_the_terminal() -> None:
    lines = render(status("ok", row("x", why="\x1b[31m\nevil\r")), width=200, colour=False, now=NOW)
    assert all(line.isprintable() for line in lines)


def test_ages_have_two_units_at_most() -> None:
    stamps = [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (-5, "0s")]
    for seconds, text in stamps:
        assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == text
    assert age("nonsense", NOW) == ""
    assert age(None, NOW) == ""


def test_clipping_counts_columns() -> None:
    assert clip("备份备份", 5) == "备份…"
    assert clip("abc", 3) == "abc"
    assert columns([]) == []


def test_why_tells_rule_budget_next_try_and_timeline() -> None:
    story = {
        "name": "x",
        "state": "backoff",
        "rule": "restart = always",
        "budget": {"left": 2, "of": 5, "within_s": 60.0},
        "next_try_s": 1.25,
        "timeline": [
            {"at": "2026-01-02T03:04:05.678+00:00", "event": "back-off", "cause": "exit 3", "detail": "\x1b[1m"}
        ],
    }
    text = "\n".join(why.tell(story))
    for part in ("x: backoff", "restart = always", "2 of 5 in 60 s", "1.2 s", "back-off", "exit 3", "04:05.678"):
        assert part in text
    assert "\x1b" not in text
