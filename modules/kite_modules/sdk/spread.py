"""Numbers that people watch while a crowd comes back: attempts by reason, and how evenly they spread.

Source: spec 10-wire §4 (`reconnect_attempt_total{reason}`, Gini coefficient of attempts inside one second).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

BINS: Final = 20
"""Bins of 50 ms in one second: fine enough to see a crowd, coarse enough that a hundred clients fill them."""
_REASONS_MAX: Final = 64  # kinds are a closed set of the contract; a bound all the same
_KEPT: Final = 10_000


def gini(values: Iterable[float]) -> float:
    """Return the Gini coefficient of non-negative numbers: 0 = all equal, towards 1 = all in one place."""
    ordered = sorted(values)
    total = sum(ordered)
    if not ordered or total <= 0:
        return 0.0
    weighted = sum(rank * value for rank, value in enumerate(ordered, start=1))
    return 2 * weighted / (len(ordered) * total) - (len(ordered) + 1) / len(ordered)


def spread_in_second(instants: Iterable[float], *, start: float, bins: int = BINS) -> float:
    """Return the Gini coefficient of the attempts within [start, start + 1 s), over equal bins; 0 without any."""
    counts = [0] * bins
    for instant in instants:
        place = int((instant - start) * bins)
        if start <= instant and 0 <= place < bins:
            counts[place] += 1
    return gini(counts)


class AttemptCounter:
    """Counts reconnect attempts by reason; `gini(now)` tells how the last second's were spread."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self._recent: deque[float] = deque(maxlen=_KEPT)

    def count(self, reason: str, *, now: float) -> None:
        """Count one attempt; `reason` is the decision's kind."""
        if reason not in self.total and len(self.total) >= _REASONS_MAX:
            reason = "other"
        self.total[reason] += 1
        self._recent.append(now)

    def gini(self, *, now: float) -> float:
        """Return the Gini coefficient of the attempts in the second that ends now."""
        return spread_in_second(self._recent, start=now - 1.0)

    def metrics(self, *, now: float) -> str:
        """Return the numbers as Prometheus text."""
        lines = ["# TYPE kite_reconnect_attempt_total counter"]
        lines += [
            f'kite_reconnect_attempt_total{{reason="{reason}"}} {count}' for reason, count in sorted(self.total.items())
        ]
        lines += ["# TYPE kite_reconnect_attempt_gini gauge", f"kite_reconnect_attempt_gini {self.gini(now=now):.4f}"]
        return "\n".join(lines) + "\n"
