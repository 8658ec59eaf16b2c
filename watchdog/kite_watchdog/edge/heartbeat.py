"""The watchdog's own heartbeat, and its finger on the kernel's pulse: whose silence was it?

While a health call is slow, the kernel itself is asked something that it alone answers. A kernel that stood still
then shows up as a gap, and nobody pays for it. Source: spec 60 §1, 20 §3, 00 §13.
"""

from __future__ import annotations

import time
from typing import Final

import trio

from kite_watchdog.core.gaps import Gap, Gaps
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.log import Log

BEAT_S: Final = 0.5  # seconds, scaled
PULSE_S: Final = 1.0  # seconds, scaled: a health call older than this makes the kernel's pulse interesting
SLACK_S: Final = 1.0  # seconds, scaled: lateness that is no gap yet
SLACK_MIN_S: Final = 0.25  # seconds: below it an ordinary busy machine would look like one that stood still
PULSE_DUE_S: Final = 5.0  # seconds, scaled


class Heartbeat:
    """Keeps `gaps` up to date. `slow` holds the begin of each running health call."""

    def __init__(self, link: Link, log: Log, *, scale: float) -> None:
        self._link, self._log, self._scale = link, log, scale
        self._slack_s = max(SLACK_MIN_S, SLACK_S * scale)
        self._beat_s = max(0.02, BEAT_S * scale)
        self.gaps = Gaps(beat_s=self._beat_s, slack_s=self._slack_s, now=trio.current_time(), boottime=_boottime())
        self.running: dict[object, float] = {}

    def beat(self) -> None:
        """Note that this process runs now, and say so when it had not."""
        gap = self.gaps.beat(now=trio.current_time(), boottime=_boottime())
        if gap is not None:
            self._log.warning(
                "this process stood still; what was missed meanwhile is not counted",
                kind=gap.kind,
                seconds=round(gap.seconds, 3),
            )

    async def run(self) -> None:
        """Beat for ever, and feel the kernel's pulse while a health call is slow."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beats)
            nursery.start_soon(self._pulses)

    async def stood_still(self, begin: float) -> Gap | None:
        """Say whether this process, the machine or the kernel stood still at some time since `begin`."""
        await self._pulse()
        self.beat()
        return self.gaps.since(begin)

    async def _beats(self) -> None:
        while True:
            await trio.sleep(self._beat_s)
            self.beat()

    async def _pulses(self) -> None:
        period_s = max(0.1, PULSE_S * self._scale)
        while True:
            await trio.sleep(period_s)
            now = trio.current_time()
            if any(now - begin > period_s for begin in self.running.values()):
                await self._pulse()

    async def _pulse(self) -> None:
        begin = trio.current_time()
        answer = await self._link.call(
            "registry.get_module", {"module_id": "watchdog"}, timeout_s=max(1.0, PULSE_DUE_S * self._scale)
        )
        end = trio.current_time()
        if answer.lost or end - begin > self._slack_s:
            self.gaps.note(Gap(begin, end, "kernel", end - begin))
            self._log.warning(
                "the kernel stood still; what was missed meanwhile is not counted",
                seconds=round(end - begin, 3),
                answered=not answer.lost,
            )


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _monotonic_offset()


def _monotonic_offset() -> float:
    # trio's clock begins at a random number: only differences of the two matter, so bring both to the same beginning
    return time.clock_gettime(time.CLOCK_MONOTONIC) - trio.current_time()
