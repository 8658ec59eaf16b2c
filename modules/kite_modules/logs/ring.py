"""The last lines of all modules, numbered, in bounded memory. Pure.

A reader asks for what came after the number it has; one that was away too long is told how many lines it missed here
(they are still on the disk). Source: spec 80 §3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

LINES_MAX: Final = 20_000
CHARS_MAX: Final = 8 << 20

Line = dict[str, Any]


class Ring:
    """Lines by number, from `first` to `last`; the oldest go."""

    def __init__(self, *, lines_max: int = LINES_MAX, chars_max: int = CHARS_MAX) -> None:
        self._lines: deque[Line] = deque()
        self._lines_max = lines_max
        self._chars_max = chars_max
        self._chars = 0
        self.last = 0

    @property
    def first(self) -> int:
        """The number of the oldest line that is kept (`last` + 1 when none is)."""
        return self.last - len(self._lines) + 1

    def add(self, line: Line) -> None:
        """Take one line."""
        self._lines.append(line)
        self._chars += len(line["line"])
        self.last += 1
        while len(self._lines) > self._lines_max or self._chars > self._chars_max:
            self._chars -= len(self._lines.popleft()["line"])

    def after(self, number: int, wants: Callable[[Line], bool], limit: int) -> tuple[list[Line], int, int]:
        """Return wanted lines after a number, the number to ask after next, and how many lines were missed."""
        begin = max(number, self.first - 1)
        missed = begin - number
        found: list[Line] = []
        at = begin
        for at in range(begin + 1, self.last + 1):
            line = self._lines[at - self.first]
            if wants(line):
                found.append(line)
                if len(found) == limit:
                    break
        return found, max(at, begin), missed

    def newest(self, wants: Callable[[Line], bool], limit: int) -> list[Line]:
        """Return the newest wanted lines, oldest first."""
        found: list[Line] = []
        for line in reversed(self._lines):
            if wants(line):
                found.append(line)
                if len(found) == limit:
                    break
        return found[::-1]


def wanted(modules: Sequence[str] | None, grep: str | None) -> Callable[[Line], bool]:
    """Return a filter: these modules (a name stands for its replicas), and a text that the line holds, in any case.

    A text, not a pattern: a pattern of a stranger can hold a reader up for ever.
    """
    names = frozenset(modules) if modules else None
    text = grep.casefold() if grep else None

    def wants(line: Line) -> bool:
        name = str(line["module"])
        if names is not None and name not in names and name.partition("@")[0] not in names:
            return False
        return text is None or text in line["line"].casefold()

    return wants
