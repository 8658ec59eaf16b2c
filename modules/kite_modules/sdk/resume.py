"""What a cut wire must not lose: which frames went out, which came in, what is sent again.

Counts every text message of one session after its auth answer, and keeps those that the other side has not
acknowledged, bounded in number and bytes. Pure. Held by the vectors `resume`. Source: spec 10-wire §8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any


class ResumeBook:
    """The resume bookkeeping of one client.

    Args: `frames_max`, `bytes_max`: what is kept unacknowledged; beyond it the oldest are forgotten (counted in
    `forgotten`) and no resume is offered until the other side has acknowledged them.
    """

    __slots__ = (
        "_acknowledged",
        "_bytes",
        "_bytes_max",
        "_first",
        "_frames_max",
        "_kept",
        "_received",
        "_session",
        "forgotten",
    )

    def __init__(self, *, frames_max: int, bytes_max: int) -> None:
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._session: str | None = None
        self._received = 0
        self._kept: deque[str] = deque()
        self._bytes = 0
        self._first = 1  # number of the oldest kept frame
        self._acknowledged = 0  # the other side has all up to this one
        self.forgotten = 0

    @property
    def received_frames(self) -> int:
        """How many text messages of this session came in: what `received` says."""
        return self._received

    @property
    def session(self) -> str | None:
        """The session's name, None before the first auth answer."""
        return self._session

    def statistics(self) -> dict[str, int]:
        """Return what is kept now and what was ever forgotten."""
        return {"frames": len(self._kept), "bytes": self._bytes, "forgotten": self.forgotten}

    def sent(self, frame: str) -> None:
        """Count and keep one frame that goes out for the first time."""
        self._kept.append(frame)
        self._bytes += len(frame)
        while self._kept and (len(self._kept) > self._frames_max or self._bytes > self._bytes_max):
            self._drop_oldest()
            self.forgotten += 1

    def received(self) -> None:
        """Count one frame that came in."""
        self._received += 1

    def acknowledged(self, received: int) -> None:
        """Forget what the other side has; numbers that go back or beyond what was sent change nothing."""
        if received > self._last:
            return
        while self._kept and self._first <= received:
            self._drop_oldest()
        self._acknowledged = max(self._acknowledged, received)

    def resume(self) -> dict[str, Any] | None:
        """Return what the auth request offers, None where nothing can be promised."""
        if self._session is None or self._first - 1 > self._acknowledged:
            return None
        return {"session": self._session, "received": self._received}

    def resumed(self, answer: Mapping[str, Any]) -> list[str] | None:
        """Take the auth result: the frames to send again, in order, or None = start over.

        Frames that are returned are not `sent` again. After None both counters stand at zero.
        """
        session, received = answer.get("session"), answer.get("received")
        if answer.get("resumed") is True:
            if session == self._session and isinstance(received, int) and self._first - 1 <= received <= self._last:
                self.acknowledged(received)
                return list(self._kept)
            session = None  # an answer that can't be met: this session must never be offered again
        self._restart(session if isinstance(session, str) else None)
        return None

    @property
    def _last(self) -> int:
        return self._first - 1 + len(self._kept)

    def _drop_oldest(self) -> None:
        self._bytes -= len(self._kept.popleft())
        self._first += 1

    def _restart(self, session: str | None) -> None:
        self._session = session
        self._received = 0
        self._kept.clear()
        self._bytes = 0
        self._first = 1
        self._acknowledged = 0
