"""Which lines of which logs are wanted, and in what form they are shown: the law of `logs`, without its files.

Laws: what was stored in pieces because its program paused stands as one line again; several logs are merged by
time, but no log is ever shown out of its own order (a wall clock may step); nothing that is shown holds a raw
control character.

Source: spec 05 §3; cases S-23, S-24, S-25.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Final

import attrs

from kite_launcher.core.logline import StoredLine, Stream, escape
from kite_launcher.core.units import parse_duration

JOINED_MAX_BYTES: Final = 64 * 1024  # pieces after pauses are joined up to this; a dotted progress line has an end
_DAYS: Final = {"today": 0, "yesterday": 1}


@attrs.frozen(kw_only=True)
class Query:
    """What is wanted. Stamps are ISO 8601 in UTC with a Z, as they are stored; `run` counts as in `choose_run`."""

    since: str | None = None
    until: str | None = None
    grep: re.Pattern[str] | None = None
    run: int | None = None
    stream: Stream | None = None

    def wants(self, line: StoredLine) -> bool:
        """Whether this line is shown."""
        if self.since is not None and line.time < self.since:
            return False
        if self.until is not None and line.time > self.until:
            return False
        if self.run is not None and (line.run != self.run or line.own):
            return False
        if self.stream is not None and line.stream != self.stream:
            return False
        return self.grep is None or self.grep.search(line.text) is not None


def parse_when(text: str, *, now: datetime, zone: tzinfo | None) -> str | None:
    """Read a point in time as a person writes it, as a stored stamp; None for what is none.

    "10m" (ago), "2026-11-30", "2026-11-30 09:12[:13.5]", "09:12[:13]" (today), with or without a zone (`zone` is
    taken then), "today", "yesterday", "@1764494000" (Unix time). `now` has a zone.
    """
    local = now.astimezone(zone)
    ago_s = parse_duration(text)
    try:
        if ago_s is not None:
            return stamp(now - timedelta(seconds=ago_s))
        if text in _DAYS:
            day = local - timedelta(days=_DAYS[text])
            return stamp(day.replace(hour=0, minute=0, second=0, microsecond=0))
        if text.startswith("@"):
            return stamp(datetime.fromtimestamp(float(text[1:]), now.tzinfo))
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?", text):
            text = f"{local.date().isoformat()} {text.rjust(5, '0') if len(text) < 5 else text}"
        when = datetime.fromisoformat(text)
        return stamp(when if when.tzinfo is not None else when.replace(tzinfo=local.tzinfo))
    except (ValueError, OverflowError, OSError):
        return None


def stamp(when: datetime) -> str:
    """Give a stored stamp. Errors: OverflowError beyond the calendar."""
    utc = when.astimezone(_UTC)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_UTC: Final = datetime.fromisoformat("2000-01-01T00:00:00+00:00").tzinfo


def choose_run(asked: int, runs: Iterable[int]) -> int | None:
    """Tell which run is meant: a number is that run, 0 the last one, −1 the one before it, and so on.

    `runs` are the numbers that the log holds; None when it holds no such run.
    """
    if asked > 0:
        return asked
    known = sorted(set(runs))
    at = len(known) - 1 + asked
    return known[at] if at >= 0 else None


class Joiner:
    """Puts lines together again that were stored in pieces because nothing came for a while."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], StoredLine] = {}

    def feed(self, line: StoredLine) -> Iterator[StoredLine]:
        """Take the next record of one log, give the lines that are complete now."""
        if line.own:
            yield line
            return
        held = self._held.pop((line.run, line.stream), None)
        if held is not None:
            text, esc = escape(held.data + line.data)
            line = attrs.evolve(line, text=text, esc=esc)  # a line's time is when it was finished
        if line.pause and len(line.text) < JOINED_MAX_BYTES:
            self._held[line.run, line.stream] = line
            return
        yield attrs.evolve(line, cont=line.cont or line.pause, pause=False)

    @property
    def waiting(self) -> bool:
        """Whether a piece is held back."""
        return bool(self._held)

    def flush(self) -> Iterator[StoredLine]:
        """Give what is held: lines that may still go on."""
        held, self._held = self._held, {}
        for line in held.values():
            yield attrs.evolve(line, cont=True, pause=False)


def join_all(lines: Iterable[StoredLine]) -> Iterator[StoredLine]:
    """Join the records of one log from its beginning to its end."""
    joiner = Joiner()
    for line in lines:
        yield from joiner.feed(line)
    yield from joiner.flush()


def as_json(line: StoredLine, module: str) -> str:
    """Give the JSON object of one line, exactly the members of the specification."""
    shape = {
        "time": line.time,
        "module": module,
        "run": line.run,
        "stream": line.stream,
        "line": line.text,
        "esc": line.esc,
        "cont": line.cont,
        "nonl": line.nonl,
    }
    return json.dumps(shape, ensure_ascii=False)


def as_text(line: StoredLine, module: str, *, width: int, zone: tzinfo | None, colour: bool) -> str:
    """Give one line for people: local time, module, `|` for stdout or `!` for stderr, text, and what is odd of it."""
    try:
        local = datetime.fromisoformat(line.time).astimezone(zone)
        when = local.strftime("%Y-%m-%d %H:%M:%S.") + f"{local.microsecond // 1000:03d}"
    except (ValueError, OverflowError, OSError):
        when = line.time
    sign = "!" if line.stream == "err" else "|"
    mark = " [no newline]" if line.nonl else " [goes on]" if line.cont else ""
    name = module.ljust(width)
    if not colour:
        return f"{when} {name} {sign} {line.text}{mark}"
    dim, plain = "\x1b[2m", "\x1b[0m"
    shade = "\x1b[31m" if line.stream == "err" else "\x1b[36m"
    return f"{dim}{when}{plain} {shade}{name} {sign}{plain} {line.text}{dim}{mark}{plain}"
