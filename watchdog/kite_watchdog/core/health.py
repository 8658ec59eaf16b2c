"""From health answers to a verdict about one module: pure, with hysteresis.

Laws:
- Three failures in a row ask for a restart; anything else in between starts the count anew.
- After a failure or a restart a module is healthy again only after three good answers in a row.
- `degraded` is a good answer with a reason: shown, never a cause to restart.
- A sample that was missed because somebody else stood still is not a sample: the edge does not hand it in.
- A restart is asked for at most `limit` times without three good answers in between; then the verdict is `failed`
  until the module comes back by itself.
Source: spec 60-watchdog §1.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

FAILURES_MAX: Final = 3  # in a row; spec 60 §1
GOOD_NEEDED: Final = 3  # in a row; spec 60 §1
RESTARTS_MAX: Final = 5  # in a row that did not lead to three good answers; the launcher's own budget counts besides
AFTER_FAILURE_S: Final = 5.0  # spec 60 §1
FAILING_S: Final = 2.0  # spec 60 §1
# How long a module may stay off the wire while its process lives: the longest standard delay (10 s) and a handshake
# (5 s), neither of which `[timing] scale` shortens in the module.
AWAY_PATIENCE_S: Final = 15.0


class Kind(Enum):
    """What one health call came to."""

    GOOD = "good"
    DEGRADED = "degraded"
    FAILING = "failing"  # answered, and says itself that it fails
    ERROR = "error"  # answered with an error
    MALFORMED = "malformed"  # answered something that is no health answer
    TIMEOUT = "timeout"  # on the wire, no answer in time
    AWAY = "away"  # not on the wire


class Verdict(Enum):
    """What the watchdog says about a module."""

    UNKNOWN = "unknown"  # not asked yet, or back from a restart and not yet three good answers
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    SUSPECT = "suspect"  # failed once or twice, and not yet three good answers since
    UNHEALTHY = "unhealthy"  # alive on the wire, fails health
    HUNG = "hung"  # alive on the wire, does not answer health in time
    DEAF = "deaf"  # answers health, misses pings
    GONE = "gone"  # not on the wire
    RESTARTING = "restarting"  # the launcher was asked
    FAILED = "failed"  # restarts did not help, nobody hammers it


@attrs.frozen
class Sample:
    """One health call: what it came to, and why in words fit for a person."""

    kind: Kind
    why: str = ""


@attrs.frozen
class Change:
    """A verdict that changed, as it is published."""

    verdict: Verdict
    was: Verdict
    why: str
    failures: int


@attrs.frozen
class Step:
    """What a sample leads to: a changed verdict or None, and whether a restart is due (with its reason)."""

    change: Change | None = None
    restart: str | None = None
    gave_up: str | None = None


_BAD: Final = {
    Kind.FAILING: Verdict.UNHEALTHY,
    Kind.ERROR: Verdict.UNHEALTHY,
    Kind.MALFORMED: Verdict.UNHEALTHY,
    Kind.TIMEOUT: Verdict.HUNG,
}


class Health:
    """The health of one module.

    Args: interval_s while healthy, already scaled; scale for the watchdog's own two intervals; limit of restarts
    without three good answers in between; asks False for a module that declares no health: only its absence is seen.
    """

    def __init__(self, *, interval_s: float, scale: float, limit: int = RESTARTS_MAX, asks: bool = True) -> None:
        self.asks = asks
        self.verdict = Verdict.UNKNOWN
        self.why = ""
        self.failures = 0  # in a row
        self.restarts = 0  # asked for since the last three good answers
        self._interval_s, self._scale, self._limit = interval_s, scale, limit
        self._good = GOOD_NEEDED  # in a row since the last failure or restart; full = nothing to prove
        self._quick = False  # every 2 s until three good answers
        self._away_since: float | None = None
        self._absent = False  # the launcher says that it does not run: no hurry
        self._alive_looks = 0  # times in a row that the launcher said: its process runs

    def next_interval_s(self) -> float:
        """Seconds from the start of the last call to the start of the next one."""
        if self.verdict in (Verdict.FAILED, Verdict.RESTARTING):
            return max(self._interval_s, FAILING_S * self._scale)
        if self.verdict is Verdict.GONE and self._absent:
            return self._interval_s
        if self._quick or self.verdict is Verdict.GONE:
            return min(self._interval_s, FAILING_S * self._scale)
        if self._good < GOOD_NEEDED:
            return min(self._interval_s, AFTER_FAILURE_S * self._scale)
        return self._interval_s

    def on_sample(self, sample: Sample) -> Step:
        """Take one health call in; say what follows."""
        if sample.kind is Kind.AWAY:
            return self.on_away(sample.why or "not on the wire")
        self._away_since, self._alive_looks = None, 0
        if sample.kind in (Kind.GOOD, Kind.DEGRADED):
            return self._on_good(sample)
        return self._on_failure(sample)

    def _on_good(self, sample: Sample) -> Step:
        self.failures = 0
        self._good = min(GOOD_NEEDED, self._good + 1)
        if self._good >= GOOD_NEEDED:
            self._quick, self.restarts = False, 0
        if sample.kind is Kind.DEGRADED:
            return Step(self._turn(Verdict.DEGRADED, sample.why))
        if self.verdict is Verdict.DEAF:
            return Step()  # only its pings can clear that
        if self._good < GOOD_NEEDED:
            if self.verdict in (Verdict.RESTARTING, Verdict.FAILED, Verdict.GONE):
                return Step(self._turn(Verdict.UNKNOWN, f"back, good answers {self._good} of {GOOD_NEEDED}"))
            return Step()
        return Step(self._turn(Verdict.HEALTHY, sample.why))

    def _on_failure(self, sample: Sample) -> Step:
        self._good = 0
        if self.verdict is Verdict.RESTARTING:
            return Step()  # the old process in its last moments: the launcher has it in hand
        self.failures += 1
        self._quick = self._quick or self.failures >= 2
        if self.failures < FAILURES_MAX or self.verdict is Verdict.FAILED:
            still = self.verdict if self.verdict is Verdict.FAILED else Verdict.SUSPECT
            return Step(self._turn(still, sample.why))
        verdict = _BAD[sample.kind]
        return self._ask(verdict, f"{verdict.value}: {self.failures} health calls in a row failed: {sample.why}")

    def on_away(self, why: str) -> Step:
        """The module is not on the wire; its process may be gone too, which is the launcher's to know."""
        self.failures = 0
        self._good, self._quick = 0, True
        if self.verdict in (Verdict.RESTARTING, Verdict.FAILED):
            return Step()
        if self.verdict is not Verdict.GONE:
            self._absent = False
        return Step(self._turn(Verdict.GONE, why))

    def on_alive(self, pid: int, *, now: float) -> Step:
        """The launcher says that a module which is off the wire runs. Three times, for long enough: a restart."""
        if self.verdict is not Verdict.GONE:
            return Step()
        self._alive_looks += 1
        self._absent = False
        if self._away_since is None:
            self._away_since = now
        away_s = now - self._away_since
        if self._alive_looks < FAILURES_MAX or away_s < AWAY_PATIENCE_S:
            return Step()
        self._away_since, self._alive_looks = None, 0
        return self._ask(Verdict.GONE, f"gone: off the wire for {away_s:.0f} s while its process {pid} lives")

    def on_not_alive(self) -> None:
        """The launcher says that it does not run, or has it in hand: nothing to wait for here."""
        self._away_since, self._alive_looks, self._absent = None, 0, True

    def on_pings(self, unanswered: int) -> Step:
        """The kernel's count of unanswered pings in a row: tells a deaf module from a healthy one."""
        if unanswered > 0 and self.verdict in (Verdict.HEALTHY, Verdict.DEGRADED):
            return Step(self._turn(Verdict.DEAF, f"answers health, {unanswered} pings in a row unanswered"))
        if unanswered == 0 and self.verdict is Verdict.DEAF:
            return Step(self._turn(Verdict.HEALTHY, "answers pings again"))
        return Step()

    def on_ready(self, *, restarted: bool) -> Step:
        """The module said that it is ready; `restarted` = it had been away. Clears what was held against it."""
        self._away_since, self._alive_looks, self.failures = None, 0, 0
        if not restarted:
            return Step()
        if not self.asks:
            self.restarts = 0
            return Step(self._turn(Verdict.UNKNOWN, "ready, declares no health"))
        self._good, self._quick = 0, True
        if self.verdict in (Verdict.UNKNOWN, Verdict.SUSPECT):
            return Step()
        return Step(self._turn(Verdict.UNKNOWN, "back, not asked yet"))

    def on_refused(self, why: str) -> Step:
        """The launcher refused the restart for good (its budget is used up, stopped by hand): no hammering."""
        return Step(self._turn(Verdict.FAILED, why), gave_up=why)

    def on_not_back(self, after_s: float) -> Step:
        """It did not come back after the restart."""
        if self.verdict is not Verdict.RESTARTING:
            return Step()
        why = f"did not come back within {after_s:.0f} s after its restart"
        return Step(self._turn(Verdict.FAILED, why), gave_up=why)

    def _ask(self, verdict: Verdict, reason: str) -> Step:
        self.failures = 0
        if self.restarts >= self._limit:
            why = f"{self.restarts} restarts did not help; {reason}"
            return Step(self._turn(Verdict.FAILED, why), gave_up=why)
        self.restarts += 1
        change = self._turn(verdict, reason, failures=FAILURES_MAX)
        self.verdict, self._quick, self._good = Verdict.RESTARTING, True, 0
        return Step(change, restart=reason)

    def _turn(self, verdict: Verdict, why: str, *, failures: int | None = None) -> Change | None:
        was, self.verdict = self.verdict, verdict
        told, self.why = self.why, why
        if was is verdict and (told == why or verdict is not Verdict.DEGRADED):
            return None
        return Change(verdict, was, why, self.failures if failures is None else failures)
