"""Two small laws against floods: a quota in a window, and lines that repeat are summed up.

Source: spec 05 §6 ([notify] limit); case S-37.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

LINES_PER_WINDOW: Final = 5  # the same line of one module, before it is only counted
WINDOW_S: Final = 60.0
KEYS_MAX: Final = 4096  # different lines remembered; beyond it the oldest is forgotten


@attrs.define
class Quota:
    """At most `limit` in any `within_s`."""

    limit: int
    within_s: float
    _taken: deque[float] = attrs.field(factory=deque)

    def take(self, *, now: float) -> bool:
        """Take one; False when the window is full."""
        while self._taken and self._taken[0] <= now - self.within_s:
            self._taken.popleft()
        if len(self._taken) >= self.limit:
            return False
        self._taken.append(now)
        return True


@attrs.define
class _Line:
    began: float
    written: int = 0
    held_back: int = 0


@attrs.define
class Repeats:
    """Lets the first few of a line through in each window and says how many were held back."""

    _lines: dict[str, _Line] = attrs.field(factory=dict)

    def admit(self, key: str, *, now: float) -> tuple[bool, int]:
        """Return (write it?, how many of it were held back since the last one that was written)."""
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= KEYS_MAX:
                del self._lines[next(iter(self._lines))]
            line = self._lines[key] = _Line(now)
        if now - line.began >= WINDOW_S:
            held, line.held_back = line.held_back, 0
            line.began, line.written = now, 1
            return True, held
        if line.written >= LINES_PER_WINDOW:
            line.held_back += 1
            return False, 0
        line.written += 1
        return True, 0
