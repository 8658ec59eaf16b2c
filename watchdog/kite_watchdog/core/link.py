"""The watchdog's wire session without a wire: what a text is taken for, and which frames are still owed.

It never sleeps, sends or draws a random number: the edge does. What a failure means is decided in `core.reconnect`.
Source: spec 10-wire §8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

from kite_watchdog.core import frames
from kite_watchdog.core.reconnect import Decision, decide

__all__ = ["Decision", "Session", "classify", "decide"]

FRAMES_KEPT: Final = 4096  # frames; pings acknowledge every 5 s, so this is some 800 calls a second
BYTES_KEPT: Final = 1_048_576  # bytes; the watchdog's frames are small


def classify(text: str) -> Literal["answer", "request", "event", "notice", "bad"]:
    """Say what one text message is taken for; never raises. The law is the vector file `framing`."""
    return frames.kind(frames.parse(text))


class Session:
    """Counts frames both ways and keeps the ones that are not acknowledged. Source: spec 10-wire §8.

    Laws: a frame is counted once, when it first goes out; what a resume gives back is in order and complete, or there
    is no resume.
    """

    def __init__(self, *, frames_max: int = FRAMES_KEPT, bytes_max: int = BYTES_KEPT) -> None:
        self.session: str | None = None
        self.in_count = 0  # frames that came in since the session began
        self.out_count = 0  # frames that went out since the session began
        self.dropped = 0  # frames that can't be repeated, over all sessions: a counter for people
        self._kept: deque[tuple[str, int]] = deque()
        self._bytes = 0
        self._base = 0  # number of the last frame before _kept[0]
        self._acked = 0
        self._frames_max, self._bytes_max = frames_max, bytes_max

    def sent(self, frame: str) -> None:
        """Count one frame that goes out for the first time, and keep it while there is room."""
        self.out_count += 1
        size = len(frame.encode("utf-8", "surrogatepass"))
        if size > self._bytes_max:
            self.dropped += 1 + len(self._kept)
            self._kept.clear()
            self._bytes, self._base = 0, self.out_count
            return
        self._kept.append((frame, size))
        self._bytes += size
        while len(self._kept) > self._frames_max or self._bytes > self._bytes_max:
            self._forget_oldest()
            self.dropped += 1

    def received(self) -> None:
        """Count one text frame from the kernel."""
        self.in_count += 1

    def acknowledged(self, received: object) -> None:
        """Forget what the kernel has; a number that can't be is ignored, it only ever grows."""
        if isinstance(received, bool) or not isinstance(received, int) or received > self.out_count:
            return
        self._acked = max(self._acked, received)
        while self._base < received and self._kept:
            self._forget_oldest()

    def resume(self) -> dict[str, Any] | None:
        """Say what to ask for in the auth request; None = no session, or one with a hole in it."""
        if self.session is None or self._acked < self._base:
            return None
        return {"session": self.session, "received": self.in_count}

    def resumed(self, answer: Mapping[str, Any]) -> list[str] | None:
        """Take the auth answer; a list = the session goes on, and these frames go out again before anything new.

        None = everything starts over: counters at zero, nothing of before is repeated.
        """
        session, count = answer.get("session"), answer.get("received")
        if answer.get("resumed") is not True:
            self._begin(session if isinstance(session, str) else None)
            return None
        known = isinstance(count, int) and not isinstance(count, bool) and self._base <= count <= self.out_count
        if not known or session != self.session or self.session is None:
            self._begin(None)  # a kernel that contradicts itself: nothing to rely on until a fresh session
            return None
        self.acknowledged(count)
        return [frame for frame, _ in self._kept]

    def _begin(self, session: str | None) -> None:
        self.session = session
        self.in_count = self.out_count = self._base = self._acked = self._bytes = 0
        self._kept.clear()

    def _forget_oldest(self) -> None:
        self._bytes -= self._kept.popleft()[1]
        self._base += 1
