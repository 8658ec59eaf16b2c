"""The watchdog's wire session without a wire: what a failure means, and which frames are still owed.

Tables come from `_contract`; this room holds the decisions of spec 10-wire §3, §4 and §8, and nothing else. It never
sleeps, sends or draws a random number: the edge does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import attrs

from kite_watchdog._contract import (
    CLOSE,
    CLOSE_AUTH_TIMEOUT,
    CLOSE_RATE_LIMITED,
    CLOSE_TO_LEGACY,
    INTERNAL_COOLDOWN,
    INTERNAL_STANDARD,
)
from kite_watchdog.core import frames

# protocol 1 number -> protocol 2 number. 4003 is two codes in the old table; its words tell which.
FROM_LEGACY: Final = {old: new for new, old in CLOSE_TO_LEGACY.items() if old != 4003}
ONLY_LEGACY: Final = (4000, 4029)  # numbers that exist in no other table: known even before the auth answer
FRAMES_KEPT: Final = 4096  # frames; pings acknowledge every 5 s, so this is some 800 calls a second
BYTES_KEPT: Final = 1_048_576  # bytes; the watchdog's frames are small
ATTEMPT_CEILING: Final = 64  # 0.5 s doubled so often is far over every cap; above it a float would overflow


@attrs.frozen
class Decision:
    """What follows a lost or refused connection: whether, when and by which strategy to come back."""

    retry: bool
    delay_s: float
    strategy: str
    kind: str
    reason: str


def modern_code(code: int | None, protocol: int | None, close_reason: str) -> int | None:
    """Give the protocol 2 number of a close code. Source: spec 10-wire §3."""
    if code is None:
        return None
    if protocol == 1:
        if code == 4003 and "timeout" in close_reason.lower():
            return CLOSE_AUTH_TIMEOUT
        return FROM_LEGACY.get(code, code)
    if protocol is None and code in ONLY_LEGACY:
        return FROM_LEGACY[code]
    return code


def decide(
    failure_code: int | None,
    attempt: int,
    *,
    random: Callable[[], float],
    protocol: int | None = None,
    close_reason: str = "",
    retry_after_s: float | None = None,
) -> Decision:
    """Decide what follows a failure, by the internal column of the strategy table.

    Args: failure_code None = network loss; attempt from 1; random gives [0, 1) and is asked at most once;
    retry_after_s wins when it is longer. Raises: ValueError with the argument's name. Source: spec 10-wire §4.
    """
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise ValueError("attempt must be an integer from 1 on")
    if failure_code is not None and (isinstance(failure_code, bool) or not isinstance(failure_code, int)):
        raise ValueError("failure_code must be an integer or None")
    code = modern_code(failure_code, protocol, close_reason)
    row = CLOSE.get(1006 if code in (None, 1005) else code)
    strategy, kind = (row.strategy, row.kind) if row is not None else ("standard", "unknown")
    reason = "network loss" if code is None else f"close {code} {row.name if row is not None else 'unknown'}"
    if strategy == "never":
        return Decision(False, 0.0, "never", kind, reason)
    table = INTERNAL_COOLDOWN if code == CLOSE_RATE_LIMITED else INTERNAL_STANDARD
    if table.max_tries is not None and attempt > table.max_tries:
        return Decision(False, 0.0, "never", kind, f"{reason}: {table.max_tries} tries are used up")
    base = min(table.max_s, table.initial_s * table.factor ** min(attempt - 1, ATTEMPT_CEILING))
    spread = base * table.jitter_ratio * random() if table.jitter_ratio > 0 else 0.0
    delay_s = min(base + spread, table.max_s)
    return Decision(True, max(delay_s, retry_after_s or 0.0), strategy, kind, reason)


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
