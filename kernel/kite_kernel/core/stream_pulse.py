"""The life of one wire of the stream plane: when to ping, when it is given up.

Any byte is life. A ping goes out every interval, so that no box in front sees a quiet line; the first one that is still
unanswered after the timeout ends the wire. Source: spec 40-streams §2, 05-surface §9, 00 §13.
"""

from enum import Enum


class Beat(Enum):
    """What is due."""

    NOTHING = "nothing"
    PING = "ping"
    DEAD = "dead"


class Pulse:
    """Instants of one wire, monotonic seconds."""

    __slots__ = ("asked_at", "due_at", "heard_at")

    def __init__(self, *, now: float, interval_s: float) -> None:
        """A wire that has just come."""
        self.heard_at = now
        self.asked_at: float | None = None
        self.due_at = now + interval_s

    def beat(self, *, now: float, interval_s: float, timeout_s: float) -> Beat:
        """Say what is due now; PING is taken as sent."""
        asked_at = self.asked_at
        if asked_at is not None:
            if self.heard_at >= asked_at:
                self.asked_at = None
            elif now - asked_at >= timeout_s:
                return Beat.DEAD
        if now < self.due_at:
            return Beat.NOTHING
        self.due_at = now + interval_s
        if self.asked_at is None:
            self.asked_at = now
        return Beat.PING

    def forgive(self, *, now: float) -> None:
        """Begin the timeout anew: it was this program that came late."""
        if self.asked_at is not None:
            self.asked_at = now
