"""How often somebody may try: a window per user and per address, and a growing delay per account for codes. Pure.

The window slows a flood; the delay makes guessing six digits hopeless, because it belongs to the account, not to an
address, and is kept on disk. Source: spec 00 §10, 80 §1, cases X-27, X-28.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

WINDOW_S: Final = 10.0
TRIES_MAX: Final = 20
NAMES_MAX: Final = 10_000  # users and addresses that are remembered at once; the longest unseen go
FREE_FAILURES: Final = 10  # a person mistypes
FORGIVEN: Final = 3  # a right code takes this many back, not all: whoever guesses beside its owner gains little
DELAY_S: Final = 30.0
DELAY_MAX_S: Final = 6 * 3600.0
# Guessing for 30 days while the owner logs in daily: 10 + 10 while the delay grows, then (4 + 3) a day = 230 guesses,
# each right with 3 in a million (three steps are accepted): 0.07 %.


class Window:
    """Tries within the last ten seconds, by name."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, *names: str, now: float) -> float | None:
        """Count a try for each name; None = allowed, else seconds until the next is."""
        wait_s = None
        for name in names:
            tries = self._tries.setdefault(name, deque())
            self._tries.move_to_end(name)
            while tries and tries[0] <= now - WINDOW_S:
                tries.popleft()
            if len(tries) >= TRIES_MAX:
                wait_s = max(wait_s or 0.0, tries[0] + WINDOW_S - now)
            else:
                tries.append(now)
        while len(self._tries) > NAMES_MAX:
            self._tries.popitem(last=False)
        return wait_s


def code_delay_s(failures: int) -> float:
    """Return how long an account waits after so many wrong codes in a row."""
    if failures < FREE_FAILURES:
        return 0.0
    return min(DELAY_MAX_S, DELAY_S * 2.0 ** min(failures - FREE_FAILURES, 30))


RATE_PER_S: Final = 200.0  # requests of one user: a console asks for 2 a second
RATE_BURST: Final = 400.0


class Bucket:
    """Requests of one user: `RATE_PER_S` a second, `RATE_BURST` at once."""

    def __init__(self, *, now: float) -> None:
        self._level, self._at = RATE_BURST, now

    def take(self, *, now: float) -> float | None:
        """Take one; None = allowed, else seconds until the next is."""
        self._level = min(RATE_BURST, self._level + (now - self._at) * RATE_PER_S)
        self._at = now
        if self._level < 1.0:
            return (1.0 - self._level) / RATE_PER_S
        self._level -= 1.0
        return None
