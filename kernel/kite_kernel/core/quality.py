"""How good a connection is: latencies, misses, grade, score. (Numbers in, numbers out.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kite_kernel.core.peer import Peer


class Pulse:
    """What is known about one peer's answers to pings. Seconds in, milliseconds out."""

    __slots__ = (
        "answered_at",
        "heard",
        "inbound_s",
        "outbound_s",
        "pinged_at",
        "reconnects",
        "rtts",
        "status",
        "unanswered",
    )

    def __init__(self) -> None:
        self.pinged_at: float | None = None  # monotonic; None: no ping is outstanding
        self.heard = 0  # how many frames had come when the ping went out
        self.unanswered = 0
        self.status = "never"
        self.answered_at = 0.0
        self.outbound_s: float | None = None
        self.inbound_s: float | None = None
        self.rtts: list[float] = []
        self.reconnects = 0

    def reset(self) -> None:
        """Begin a wire: nothing is outstanding."""
        self.pinged_at = None
        self.unanswered = 0
        self.status = "never"

    def note(self, rtt_s: float, ping_time: object, pong_time: object, received_utc: float) -> None:
        """Take one round trip; wall clock differences only where they are plausible."""
        self.rtts.append(rtt_s)
        if len(self.rtts) > 64:
            del self.rtts[0]
        if isinstance(ping_time, int | float) and isinstance(pong_time, int | float):
            outbound, inbound = pong_time - ping_time, received_utc - pong_time
            self.outbound_s = outbound if 0 <= outbound < 60 else None
            self.inbound_s = inbound if 0 <= inbound < 60 else None

    def told(self) -> dict[str, Any]:
        """Return the `ping` member of the statistics, in milliseconds."""
        ordered = sorted(self.rtts)
        gaps = [abs(b - a) for a, b in zip(self.rtts, self.rtts[1:], strict=False)]
        return {
            "status": self.status,
            "unanswered": self.unanswered,
            "outbound_ms": _ms(self.outbound_s),
            "inbound_ms": _ms(self.inbound_s),
            "rtt_ms": _ms(self.rtts[-1] if self.rtts else None),
            "p50_ms": _ms(ordered[len(ordered) // 2] if ordered else None),
            "p95_ms": _ms(ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)] if ordered else None),
            "jitter_ms": _ms(sum(gaps) / len(gaps) if gaps else None),
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def assess(peer: Peer, *, misses_allowed: int, now: float) -> dict[str, Any]:
    """Return grade, score (0-100), reconnects and prediction of one connection."""
    pulse = peer.pulse
    score = 100.0
    score -= 60.0 * min(1.0, pulse.unanswered / misses_allowed)
    score -= (0.0, 15.0, 40.0)[peer.pressure]
    if peer.link is None:
        score = 0.0
    score = max(0.0, score)
    grade = "healthy" if score >= 80 else "degraded" if score >= 40 else "unhealthy"
    return {
        "grade": grade,
        "score": round(score, 1),
        "reconnects": {"hour": pulse.reconnects, "total": pulse.reconnects},
        "prediction": "drop" if pulse.unanswered or peer.pressure > 1 else "stable",
    }
