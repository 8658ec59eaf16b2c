"""How good a connection is: latencies, misses, reconnects and pressure as one grade, one score and a prediction.

The formula stands in kernel/docs/quality.md; this file is the formula. All times in seconds, told in milliseconds.
Source: spec 20-kernel §3 and §5.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kite_kernel.core.settings import Timing

_SAMPLES: Final = 32  # round trips that are remembered: at the quick interval the last 160 s
_HOUR_S: Final = 3600.0
_MAX_STAMPS: Final = 1000  # reconnects of an hour that are told apart; more is no better news
_ABSURD_S: Final = 60.0  # a wall clock difference above this is a jump of a clock, not a latency
_RECENT: Final = 4  # newest samples that make a trend
_ENOUGH: Final = 8  # samples before a trend is believed

LATENCY_POINTS: Final = 25.0
JITTER_POINTS: Final = 10.0
MISS_POINTS: Final = 40.0
RECONNECT_POINTS: Final = 15.0
RECONNECTS_FULL: Final = 6  # in an hour: one every ten minutes is as bad as it gets
PRESSURE_POINTS: Final = (0.0, 15.0, 30.0)
HEALTHY: Final = 75.0
DEGRADED: Final = 40.0
DROP_RISK: Final = 0.5


class Pulse:
    """What is known about one peer's answers to pings."""

    __slots__ = ("absurd", "heard", "inbound_s", "outbound_s", "ping_time", "pinged_at", "rtts", "status", "unanswered")

    def __init__(self) -> None:
        self.rtts: array[float] = array("d")
        self.absurd = 0  # samples whose wall clocks could not be right: marked, never averaged
        self.outbound_s: float | None = None
        self.inbound_s: float | None = None
        self.reset()

    def reset(self) -> None:
        """Begin a wire: nothing is outstanding."""
        self.pinged_at: float | None = None  # monotonic; None: no ping is outstanding
        self.ping_time = 0.0  # what that ping said about the wall clock; its pong says it again
        self.heard = 0  # how many frames had come when the ping went out
        self.unanswered = 0
        self.status = "never"

    def note(self, rtt_s: float, ping_time: object, pong_time: object, received_utc: float) -> None:
        """Take one round trip; differences of wall clocks only where they are plausible."""
        self.rtts.append(rtt_s)
        if len(self.rtts) > _SAMPLES:
            del self.rtts[0]
        if _is_number(ping_time) and _is_number(pong_time):
            self.outbound_s = _plausible(float(pong_time) - float(ping_time))  # type: ignore[arg-type]
            self.inbound_s = _plausible(received_utc - float(pong_time))  # type: ignore[arg-type]
            self.absurd += self.outbound_s is None or self.inbound_s is None

    def told(self) -> dict[str, Any]:
        """Return the `ping` member of the statistics, in milliseconds."""
        ordered = sorted(self.rtts)
        return {
            "status": self.status,
            "unanswered": self.unanswered,
            "outbound_ms": _ms(self.outbound_s),
            "inbound_ms": _ms(self.inbound_s),
            "rtt_ms": _ms(self.rtts[-1] if self.rtts else None),
            "p50_ms": _ms(quantile(ordered, 50)),
            "p95_ms": _ms(quantile(ordered, 95)),
            "jitter_ms": _ms(jitter(self.rtts)),
        }


class Comings:
    """How often a module came back; remembered while it is away."""

    __slots__ = ("stamps", "total")

    def __init__(self) -> None:
        self.total = 0
        self.stamps: list[float] = []

    def note(self, now: float) -> None:
        """Count one comeback."""
        self.total += 1
        self.stamps.append(now)
        if len(self.stamps) > _MAX_STAMPS:
            del self.stamps[0]

    def hour(self, now: float) -> int:
        """Return how many there were in the last hour."""
        while self.stamps and self.stamps[0] <= now - _HOUR_S:
            del self.stamps[0]
        return len(self.stamps)


@attrs.frozen
class Prediction:
    """Whether this connection will drop soon: `risk` 0 to 1, `drop` above one half, `why` in one word or two."""

    risk: float
    drop: bool
    why: str


@attrs.frozen
class Quality:
    """`score` 0 to 100, `grade` healthy, degraded or unhealthy."""

    score: float
    grade: str
    prediction: Prediction


def assess(
    pulse: Pulse, *, timing: Timing, reconnects_hour: int, pressure: int, connected: bool, silent: bool = False
) -> Quality:
    """Judge one connection. `pressure` is 0 to 2; `silent` is a launcher that is kept although it answers nothing."""
    score = 100.0
    score -= LATENCY_POINTS * min(1.0, (quantile(sorted(pulse.rtts), 95) or 0.0) / timing.pong)
    score -= JITTER_POINTS * min(1.0, (jitter(pulse.rtts) or 0.0) / (timing.pong / 2))
    score -= MISS_POINTS * min(1.0, pulse.unanswered / timing.ping_misses)
    score -= RECONNECT_POINTS * min(1.0, reconnects_hour / RECONNECTS_FULL)
    score -= PRESSURE_POINTS[pressure]
    if not connected:
        score = min(score, DEGRADED - 1.0)
    score = max(0.0, round(score, 1))
    grade = "healthy" if score >= HEALTHY else "degraded" if score >= DEGRADED else "unhealthy"
    if grade == "healthy" and (pulse.unanswered or pressure == len(PRESSURE_POINTS) - 1):
        grade = "degraded"
    if silent:
        grade = "degraded"
    return Quality(score, grade, predict(pulse.rtts, pulse.unanswered, timing=timing, pressure=pressure))


def predict(rtts: Sequence[float], unanswered: int, *, timing: Timing, pressure: int = 0) -> Prediction:
    """Foretell a drop from misses, from a latency that rises towards the deadline, and from a queue that stays full."""
    risks = [
        (0.0, "stable"),
        (min(1.0, 0.2 + 0.4 * unanswered) if unanswered else 0.0, "misses"),
        (0.3 * pressure, "queue"),
    ]
    if len(rtts) >= _ENOUGH:
        usual = quantile(sorted(rtts[:-_RECENT]), 50) or 0.0
        recent = list(rtts[-_RECENT:])
        newest = sum(recent[-2:]) / 2
        rises = all(later >= earlier * 0.9 for earlier, later in pairwise(recent))
        if newest > 3 * usual and rises:
            risks.append((min(1.0, 0.3 + 0.7 * newest / timing.pong), "latency rises"))
    if rtts:
        risks.append((0.9 * min(1.0, rtts[-1] / timing.pong), "latency near the deadline"))
    risk, why = max(risks)
    return Prediction(round(risk, 2), risk >= DROP_RISK, why if risk else "stable")


def quantile(ordered: Sequence[float], percent: int) -> float | None:
    """Return the value below which `percent` of the sorted samples lie (nearest rank); None for none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def jitter(samples: Sequence[float]) -> float | None:
    """Return the mean difference between neighbours; None for fewer than two."""
    if len(samples) < 2:
        return None
    gaps = [abs(later - earlier) for earlier, later in pairwise(samples)]
    return sum(gaps) / len(gaps)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plausible(seconds: float) -> float | None:
    return seconds if 0.0 <= seconds < _ABSURD_S else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
