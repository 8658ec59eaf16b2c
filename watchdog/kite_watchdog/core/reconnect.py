"""What a lost or refused connection means: whether, when and by which strategy to come back.

A pure function of the tables in `_contract`; random numbers are a parameter. Source: spec 10-wire §3, §4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from kite_watchdog._contract import (
    CLOSE,
    CLOSE_AUTH_TIMEOUT,
    CLOSE_RATE_LIMITED,
    CLOSE_TO_LEGACY,
    INTERNAL_COOLDOWN,
    INTERNAL_STANDARD,
)

# protocol 1 number -> protocol 2 number. 4003 is two codes in the old table; its words tell which.
FROM_LEGACY: Final = {old: new for new, old in CLOSE_TO_LEGACY.items() if old != 4003}
ONLY_LEGACY: Final = (4000, 4029)  # numbers that exist in no other table: known even before the auth answer
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
