"""Whether a module that ended is started again, and when: one budget for every cause, with back-off.

Crash, failed start, health, memory and the watchdog's wish all take from the same budget: `max_restarts` in any
`within_s`. What is older than the window no longer counts, so the budget decays by itself; after `healthy_reset_s`
of being up the back-off starts again. A used-up budget is never silent: `GiveUp`.
Laws: never more than `max_restarts` restarts in any window; the delay never exceeds `backoff_max_s`.
Source: spec 00 §30; spec 50 §2; cases S-29 … S-35.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import attrs

from kite_launcher.core.spec import RestartPolicy

JITTER: Final = 0.2  # the wire's own ratio (10-wire §4): a crowd that died together does not come back together

Cause = Literal["exit", "start", "not_ready", "health", "memory", "watchdog", "group", "notify"]
# An end that the launcher itself ordered is followed by a start whatever the policy says about exits.
ORDERED: Final[frozenset[Cause]] = frozenset({"health", "memory", "watchdog", "group", "notify"})


@attrs.frozen
class Policy:
    """The restart keys of one module, in seconds. `retry_slowly_s`: one try each so often once the budget is gone."""

    restart: RestartPolicy
    max_restarts: int
    within_s: float
    backoff_s: float
    backoff_max_s: float
    healthy_reset_s: float
    retry_slowly_s: float | None = None


@attrs.frozen
class RestartAt:
    """Start again at `at` (monotonic); it is the `number`th of the window."""

    at: float
    delay_s: float
    number: int


@attrs.frozen
class GiveUp:
    """The budget is used up; `retry_at` is the next slow try, None for none."""

    why: str
    retry_at: float | None


@attrs.frozen
class Settle:
    """No restart: the policy does not ask for one. `good` tells a wanted end from a failure."""

    good: bool


Verdict = RestartAt | GiveUp | Settle


@attrs.define
class Tally:
    """The restarts of one module and what is left of its budget."""

    policy: Policy
    attempt: int = 0
    restarts_at: deque[float] = attrs.field(factory=deque)

    def ended(self, *, cause: Cause, good: bool, up_s: float, unit_random: float, now: float) -> Verdict:
        """Judge one end. `good`: exit status 0; `up_s`: how long it was ready; `unit_random` in [0, 1)."""
        unasked = self.policy.restart == "never" or (self.policy.restart == "on-failure" and good)
        if unasked and cause not in ORDERED:
            return Settle(good)
        if up_s >= self.policy.healthy_reset_s:
            self.attempt = 0
        if self.left(now=now) <= 0:
            slow = self.policy.retry_slowly_s
            why = f"{self.policy.max_restarts} restarts in {self.policy.within_s:g} s are used up"
            return GiveUp(why, None if slow is None else now + slow)
        self.attempt += 1
        self.restarts_at.append(now)
        delay = backoff(self.attempt, self.policy, unit_random)
        return RestartAt(now + delay, delay, len(self.restarts_at))

    def left(self, *, now: float) -> int:
        """Return how many restarts the window still allows."""
        while self.restarts_at and self.restarts_at[0] <= now - self.policy.within_s:
            self.restarts_at.popleft()
        return max(self.policy.max_restarts - len(self.restarts_at), 0)

    def refresh(self) -> None:
        """Forget everything: a person started it by hand."""
        self.attempt = 0
        self.restarts_at.clear()


def backoff(attempt: int, policy: Policy, unit_random: float) -> float:
    """Return the delay before the `attempt`th restart (from 1): doubling, a fifth of jitter, never over the cap."""
    # The exponent is capped before use: no attempt number overflows.
    base = min(policy.backoff_s * 2.0 ** min(attempt - 1, 64), policy.backoff_max_s)
    return min(base * (1.0 + JITTER * unit_random), policy.backoff_max_s)
