"""`logs`: what modules printed, from the files alone, so that it works when nothing runs.

Source: spec 05 §3; cases S-23 to S-27, S-46, S-47, S-53.
"""

from __future__ import annotations

import argparse
import heapq
import os
import re
import select
import sys
import time
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from kite_launcher.cli.fail import NOTHING, PERMISSION, USAGE, Failure, complain
from kite_launcher.cli.instance import recorded_config
from kite_launcher.cli.log_files import (
    FIRST_TAIL_BYTES,
    Follower,
    OpenFile,
    log_names,
    open_files,
    read_lines,
)
from kite_launcher.core.logline import StoredLine
from kite_launcher.core.logquery import Joiner, Query, as_json, as_text, choose_run, join_all, parse_when
from kite_launcher.core.names import nearest

OWN_LOGS: Final = ("kernel", "launcher", "watchdog", "logkeeper")
FOLLOW_LINES: Final = 10  # `-f` alone begins with so many, as `tail -f`
LOOK_S: Final = 0.1
HELD_S: Final = 2.0  # `-f` waits so long for the rest of an unfinished line
WIDTH_MAX: Final = 24

Entry = tuple[str, StoredLine]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `logs` takes."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules or replicas NAME@n; all without one")
    parser.add_argument("-f", "--follow", action="store_true", help="stay and show what comes")
    parser.add_argument("-n", "--lines", type=_count, metavar="N", help="only the last N lines")
    parser.add_argument("--since", type=_when, metavar="T", help='"10m" (ago), "09:12", "2026-11-30 09:12", "today"')
    parser.add_argument("--until", type=_when, metavar="T", help="the same")
    parser.add_argument("--grep", type=_regex, metavar="RE", help="only lines that this regular expression finds")
    parser.add_argument("--run", type=int, metavar="R", help="one start: 0 the last, -1 the one before, 7 number 7")
    parser.add_argument("--stream", choices=["out", "err"], help="only stdout or only stderr")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _count(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,12}", text) is None:
        raise argparse.ArgumentTypeError("expected a number of lines")
    return int(text)


def _when(text: str) -> str:
    found = parse_when(text, now=datetime.now(UTC), zone=None)
    if found is None:
        raise argparse.ArgumentTypeError('expected a time such as "10m", "09:12" or "2026-11-30 09:12"')
    return found


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as problem:
        raise argparse.ArgumentTypeError(f"no regular expression: {problem}") from problem


def run(args: argparse.Namespace, state_dir: str, config: str | None = None) -> int:
    """Show what is asked for; 0, also when there is nothing in it. Raises: Failure 64, 3, 77."""
    folder = os.path.join(state_dir, "logs")
    try:
        names = _choose(args.names, folder, config or recorded_config(state_dir), state_dir)
        query = Query(since=args.since, until=args.until, grep=args.grep, stream=args.stream)
        show = _Screen(as_json=args.json, width=min(WIDTH_MAX, max(map(len, names), default=0)))
        logs = {name: _Log(folder, name, query, args.run) for name in names}
        last = args.lines if args.lines is not None else FOLLOW_LINES if args.follow else None
        show.lines(_merged(logs.values(), last))
        if args.follow and not show.closed:
            _follow(logs, folder if not args.names else None, query, args.run, show)
    except PermissionError as problem:
        raise Failure(PERMISSION, f"may not read {problem.filename or folder}", "run as its owner") from problem
    except KeyboardInterrupt:
        return 0
    return 0


def _choose(asked: list[str], folder: str, config: str | None, state_dir: str) -> list[str]:
    """Give the logs that are meant; a module's name stands for all its replicas."""
    present = log_names(folder)
    if not asked:
        if not present and not os.path.isdir(folder):
            raise Failure(NOTHING, f"nothing has been logged in {state_dir} yet", "start it with `kite up -d`")
        return present
    chosen: list[str] = []
    known = {*present, *(name.partition("@")[0] for name in present), *OWN_LOGS, *_modules_of(config)}
    for name in asked:
        matching = [log for log in present if log == name or log.partition("@")[0] == name]
        if not matching and name not in known and name.partition("@")[0] not in known:
            near = nearest(name, sorted(known))
            raise Failure(USAGE, f"no module {name!r} here", f"did you mean {near}?" if near else "")
        chosen += [log for log in matching or [name] if log not in chosen]
    return chosen


def _modules_of(config: str | None) -> list[str]:
    """Name the modules of a kite.toml, as far as it can be read: one that never started has no log yet."""
    if config is None:
        return []
    try:
        with open(config, "rb") as file:
            data: dict[str, Any] = tomllib.load(file)
    except (OSError, ValueError, RecursionError):
        return []
    modules = data.get("module")
    sections = [name for name in data if isinstance(data[name], dict) and name != "module"]
    return [*sections, *(modules if isinstance(modules, dict) else ())]


class _Log:
    """One log: what it holds now, and what comes later."""

    def __init__(self, folder: str, name: str, query: Query, run: int | None) -> None:
        self.name = name
        self.files = open_files(folder, name)
        self.follower = Follower(folder, name)
        self.joiner = Joiner()
        self.held_since = 0.0
        if run is not None:
            chosen = choose_run(run, self._runs()) if run <= 0 else run
            query = Query(
                since=query.since,
                until=query.until,
                grep=query.grep,
                stream=query.stream,
                run=-1 if chosen is None else chosen,
            )
        self.query = query

    def _runs(self) -> set[int]:
        return {line.run for line in read_lines(self.files) if not line.own}

    def lines(self, last: int | None) -> Iterator[StoredLine]:
        """Give the wanted lines that stand in the files, or the last of them."""
        files = self.files
        if self.query.since is not None:
            since_s = datetime.fromisoformat(self.query.since).timestamp()
            files = [file for file in files if file.changed_s >= since_s - 1]
        if last is None:
            return (line for line in join_all(read_lines(files)) if self.query.wants(line))
        return iter(self._last(files, last))

    def _last(self, files: list[OpenFile], last: int) -> list[StoredLine]:
        total = sum(file.size_bytes for file in files)
        look = FIRST_TAIL_BYTES
        while True:
            wanted = (line for line in join_all(read_lines(files, last_bytes=look)) if self.query.wants(line))
            found = deque(wanted, maxlen=last)
            if look >= total or (len(found) >= last > 0) or last == 0:
                return list(found)
            look *= 16

    def go_on(self) -> None:
        """Keep only what the follower needs."""
        self.follower.start_at(self.files[-1] if self.files else None)
        for file in self.files:
            file.close()
        self.files = []

    def begin(self) -> None:
        """Show all of it as new: this log appeared while others were followed."""
        for file in self.files:
            file.close()
        self.files = []

    def new_lines(self) -> Iterator[StoredLine]:
        """Give the wanted lines that came since; an unfinished one after a while."""
        for stored in self.follower.new_lines():
            for line in self.joiner.feed(stored):
                if self.query.wants(line):
                    yield line
            self.held_since = time.monotonic()
        if self.joiner.waiting and time.monotonic() - self.held_since > HELD_S:
            yield from (line for line in self.joiner.flush() if self.query.wants(line))


def _merged(logs: Iterable[_Log], last: int | None) -> Iterator[Entry]:
    """Merge several logs by time, each in its own order."""
    merged = heapq.merge(*(_in_order(log.name, log.lines(last)) for log in logs), key=lambda item: item[0])
    entries = (entry for _, entry in merged)
    return entries if last is None else iter(deque(entries, maxlen=last))


def _in_order(name: str, lines: Iterable[StoredLine]) -> Iterator[tuple[str, Entry]]:
    latest = ""
    for line in lines:
        latest = max(latest, line.time)  # the wall clock may have stepped back
        yield latest, (name, line)


def _follow(logs: dict[str, _Log], folder: str | None, query: Query, run: int | None, show: _Screen) -> None:
    """Show what comes until nobody reads it. With `folder` logs that appear later are shown, too."""
    for log in logs.values():
        log.go_on()
    while not show.closed:
        if folder is not None:
            for name in log_names(folder):
                if name not in logs:
                    logs[name] = _Log(folder, name, query, run)
                    logs[name].begin()
        fresh = [sorted_entry for log in logs.values() for sorted_entry in _in_order(log.name, log.new_lines())]
        show.lines(entry for _, entry in sorted(fresh, key=lambda item: item[0]))
        for log in logs.values():
            if log.follower.missed:
                complain(f"kite-launch: lines of {log.name} were rotated away before they could be shown")
                log.follower.missed = 0
        show.wait(LOOK_S)


class _Screen:
    """Standard output: bytes of UTF-8 whatever the locale, and quiet when its reader has gone."""

    def __init__(self, *, as_json: bool, width: int) -> None:
        self._as_json = as_json
        self._width = width
        self._out: Any = getattr(sys.stdout, "buffer", None)
        self.closed = self._out is None
        self._colour = not self.closed and sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def lines(self, entries: Iterable[Entry]) -> None:
        """Show lines; stops at the first that nobody takes."""
        if self.closed:
            return
        try:
            for name, line in entries:
                self._out.write(self._form(name, line).encode("utf-8", "replace") + b"\n")
            self._out.flush()
        except (BrokenPipeError, ValueError):
            self._let_go()

    def _form(self, name: str, line: StoredLine) -> str:
        if self._as_json:
            return as_json(line, name)
        return as_text(line, name, width=self._width, zone=None, colour=self._colour)

    def wait(self, seconds: float) -> None:
        """Sleep, but notice at once when the reader goes."""
        poll = select.poll()
        poll.register(self._out.fileno(), 0)
        if any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(seconds * 1000)):
            self._let_go()

    def _let_go(self) -> None:
        self.closed = True
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 1)
        os.close(null)
