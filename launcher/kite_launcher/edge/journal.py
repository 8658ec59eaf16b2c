"""The launcher's own voice: structured lines to `logs/launcher.log` and, in front, to the terminal.

Lines go to the log keeper like any child's output; what comes before a keeper lives waits in a bounded buffer.
A line never blocks: what the keeper can't take is dropped and counted. Source: spec 05 §5; case S-37.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any, Final, Literal

import structlog
import trio

from kite_launcher.core.repeat import Repeats

EARLY_LINES: Final = 2000  # what is said before the keeper lives
LINE_MAX_CHARS: Final = 4000


class Journal:
    """Writes lines `event key=value …` or JSON; repeats are summed up."""

    def __init__(self, *, form: Literal["console", "json"] = "console", terminal: bool = False) -> None:
        self._fd = -1
        self._early: deque[bytes] = deque(maxlen=EARLY_LINES)
        self._repeats = Repeats()
        self._terminal = terminal
        self.dropped = 0
        processors: list[Any] = [structlog.processors.add_log_level]
        if form == "json":
            processors += [structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()]
        else:
            processors += [_plain]
        self._log = structlog.wrap_logger(_Sink(self), processors=processors, wrapper_class=structlog.BoundLogger)

    def info(self, event: str, **fields: object) -> None:
        """Say what happened."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Say what somebody should look at."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Say what went wrong."""
        self._say("error", event, fields)

    def _say(self, level: str, event: str, fields: dict[str, object]) -> None:
        try:
            now = trio.current_time()
        except RuntimeError:
            now = 0.0
        admitted, held = self._repeats.admit(f"{fields.get('name', '')}\0{event}", now=now)
        if admitted:
            more = {"held_back": held} if held else {}
            getattr(self._log, level)(event, **fields, **more)

    def write(self, line: str) -> None:
        """Write one finished line."""
        data = (line[:LINE_MAX_CHARS].replace("\n", "\\n") + "\n").encode("utf-8", "backslashreplace")
        if self._terminal:
            self._to_terminal(data)
        if self._fd < 0:
            self._early.append(data)
            return
        try:
            os.write(self._fd, data)
        except OSError:
            self.dropped += 1

    def _to_terminal(self, data: bytes) -> None:
        try:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
        except (OSError, ValueError):
            self._terminal = False  # its reader is gone; the log goes on

    def attach(self, fd: int) -> None:
        """Write to this descriptor from now on (non-blocking, ours to close); the early lines go first."""
        self.detach()
        os.set_blocking(fd, False)
        self._fd = fd
        early, self._early = self._early, deque(maxlen=EARLY_LINES)
        for data in early:
            try:
                os.write(fd, data)
            except OSError:
                self.dropped += 1

    def detach(self) -> None:
        """Let go of the descriptor; lines are kept early again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _plain(_logger: object, _method: str, event: dict[str, Any]) -> str:
    """Render one line for people: level, text, then the fields."""
    level, text = event.pop("level", "info"), event.pop("event", "")
    fields = " ".join(f"{key}={_shown(value)}" for key, value in event.items() if value not in ("", None))
    return f"{level:<7} {text}  {fields}".rstrip()


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if any(char in text for char in " \"'\n") else text


class _Sink:
    """The logger that structlog writes finished lines to."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def msg(self, line: str) -> None:
        self._journal.write(line)

    info = warning = error = debug = critical = exception = log = msg
