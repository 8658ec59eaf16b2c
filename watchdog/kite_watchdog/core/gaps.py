"""Did this process, or the whole machine, stand still? Told by the lateness of one's own heartbeat.

A process that was stopped wakes up with all its timers due at once: what it then takes for a missed answer says
nothing about the others. Law: a moment counts as stood still when the heartbeat that should have come in it came
late by more than the slack, or when CLOCK_BOOTTIME ran ahead of CLOCK_MONOTONIC (the machine was suspended).
Source: spec 60-watchdog §1, 00 §13, §16.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import attrs

GAPS_KEPT: Final = 64  # gaps; only those that overlap a running health call matter, and those are short
SUSPEND_S: Final = 0.5  # seconds; the two clocks are read one after the other, that takes microseconds


@attrs.frozen
class Gap:
    """A time in which nothing ran here: monotonic seconds, and what kind it was."""

    begin: float
    end: float
    kind: Literal["paused", "suspended", "kernel"]
    seconds: float


class Gaps:
    """Notes heartbeats and gives the gaps between them. `beat_s` apart, late by more than `slack_s` is a gap."""

    def __init__(self, *, beat_s: float, slack_s: float, now: float, boottime: float) -> None:
        self._beat_s, self._slack_s = beat_s, slack_s
        self._last = now
        self._ahead_s = boottime - now
        self._gaps: deque[Gap] = deque(maxlen=GAPS_KEPT)
        self.count = 0

    def beat(self, *, now: float, boottime: float) -> Gap | None:
        """Note that this process runs now; return the gap that just ended, if there was one."""
        late_s = now - self._last - self._beat_s
        suspended_s = boottime - now - self._ahead_s
        self._ahead_s = boottime - now
        begin, self._last = self._last, now
        if suspended_s > SUSPEND_S:
            return self.note(Gap(begin, now, "suspended", suspended_s))
        if late_s > self._slack_s:
            return self.note(Gap(begin, now, "paused", late_s))
        return None

    def note(self, gap: Gap) -> Gap:
        """Keep a gap that was found by other means, as that of a kernel that stood still."""
        self._gaps.append(gap)
        self.count += 1
        return gap

    def since(self, begin: float) -> Gap | None:
        """Give a gap that overlaps the time from `begin` on, or None. Call `beat` first."""
        for gap in reversed(self._gaps):
            if gap.end >= begin:
                return gap
        return None
