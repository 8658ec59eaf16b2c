"""When to come back after a lost wire: one pure function, one table.

What this room is for: (failure, attempt, policy, random source) → retry, delay, strategy, kind, reason.
What it must never do: read a clock, draw chance of its own, or sleep. Its table is `_contract.CLOSE`, its numbers are
the strategy columns of the contract. The vectors `close`, `backoff`, `legacy`, `policy` and `network` hold it.
Source: spec 10-wire §3-4, 30-clients §5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import attrs

from kite_modules import _contract

Jitter = Literal["ratio", "equal", "full", "none"]
Strategy = Literal["never", "standard", "cooldown"]
NetworkState = Literal["online", "offline"]

_JITTERS: Final = ("ratio", "equal", "full", "none")
_NETWORK_STATES: Final = ("online", "offline")
# the old numbers of protocol 1, read back; 4003 needs the close reason and stands in `modern_code`
_OLD_NUMBERS: Final = {4000: 4010, 4010: 4011, 4029: 4020}
# numbers that exist in the old table only: known as old before the auth answer told the protocol
_OLD_ONLY: Final = {4000: 4010, 4029: 4020}
# ends without a close frame, and a close frame without a code (RFC 6455 7.4.1): the network, whatever it was
_NO_CODE: Final = (1005, 1006)


def _number(field: str, value: Any, *, least: float, most: float = math.inf, above: bool = False) -> None:
    """Refuse what is no finite number within bounds, by the field's name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number, not {type(value).__name__}")
    if not math.isfinite(value) or value < least or value > most or (above and value == least):
        bounds = f"greater than {least:g}" if above else f"at least {least:g}"
        bounds += "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{field} must be finite, {bounds}, not {value!r}")


def _integer(field: str, value: Any, *, least: int) -> None:
    """Refuse what is no integer of at least `least`, by the field's name."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{field} must be at least {least}, not {value}")


@attrs.frozen(kw_only=True)
class Policy:
    """How long to wait between tries of the standard strategy.

    Args: `jitter` names the mode; `initial_s` > 0; `factor` ≥ 1; `max_s` ≥ `initial_s`; `jitter_ratio` in 0…1 (used by
    `ratio` alone); `max_tries` ≥ 0, None = unlimited.
    Raises: TypeError or ValueError with the field's name in the text.
    """

    jitter: Jitter = "ratio"
    initial_s: float = _contract.INTERNAL_STANDARD.initial_s
    factor: float = _contract.INTERNAL_STANDARD.factor
    max_s: float = _contract.INTERNAL_STANDARD.max_s
    jitter_ratio: float = _contract.INTERNAL_STANDARD.jitter_ratio
    max_tries: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.jitter not in _JITTERS:
            raise ValueError(f"jitter must be one of {', '.join(_JITTERS)}, not {self.jitter!r}")
        _number("initial_s", self.initial_s, least=0, above=True)
        _number("factor", self.factor, least=1)
        _number("max_s", self.max_s, least=self.initial_s)
        _number("jitter_ratio", self.jitter_ratio, least=0, most=1)
        if self.max_tries is not None:
            _integer("max_tries", self.max_tries, least=0)


def _column(row: _contract.Strategy) -> Policy:
    return Policy(
        jitter="ratio",
        initial_s=row.initial_s,
        factor=row.factor,
        max_s=row.max_s,
        jitter_ratio=row.jitter_ratio,
        max_tries=row.max_tries,
    )


INTERNAL: Final = _column(_contract.INTERNAL_STANDARD)
"""A module on the kernel's own host."""
REMOTE: Final = _column(_contract.REMOTE_STANDARD)
"""A client across a network: a browser through the relay."""


@attrs.frozen
class Decision:
    """What to do about one lost wire. `delay_s` is 0 when `retry` is False; `reason` is for logs and people."""

    retry: bool
    delay_s: float
    strategy: Strategy
    kind: str
    reason: str


class Transition(NamedTuple):
    """What a change of the network asks for."""

    reconnect_now: bool
    reset_attempt: bool
    reason: str


def modern_code(code: int | None, *, protocol: int | None = None, close_reason: str = "") -> int | None:
    """Translate a close code into the numbers of protocol 2.

    Args: `protocol` as in the auth result, None before it came: then only the numbers that exist in the old table
    alone are read as old ones.
    """
    if code is None or protocol == 2:
        return code
    if protocol is None:
        return _OLD_ONLY.get(code, code)
    if code == _contract.CLOSE_AUTH_MALFORMED and "timeout" in close_reason.lower():
        return _contract.CLOSE_AUTH_TIMEOUT
    return _OLD_NUMBERS.get(code, code)


def base_delay_s(attempt: int, policy: Policy) -> float:
    """Return the delay before jitter: capped before the power could overflow."""
    if policy.factor <= 1 or attempt == 1:
        return min(policy.max_s, policy.initial_s)
    steps_to_cap = math.log(policy.max_s / policy.initial_s) / math.log(policy.factor)
    if attempt - 1 > steps_to_cap + 1:
        return policy.max_s
    return min(policy.max_s, policy.initial_s * policy.factor ** (attempt - 1))


def _jittered_s(delay_s: float, policy: Policy, random: Callable[[], float]) -> float:
    if policy.jitter == "none":
        return delay_s
    sample = random()
    _number("random", sample, least=0, most=1)
    if policy.jitter == "equal":
        return delay_s / 2 + delay_s / 2 * sample
    if policy.jitter == "full":
        return delay_s * sample
    return min(delay_s + delay_s * policy.jitter_ratio * sample, policy.max_s)


def _classify(code: int | None) -> tuple[Strategy, str, str]:
    """Return strategy, kind and a word for people of one modern code."""
    if code is None or code in _NO_CODE or code < 1000:
        return "standard", "transport", "connection lost"
    row = _contract.CLOSE.get(code)
    if row is None:
        return "standard", "unknown", f"close code {code} is unknown"
    return row.strategy, row.kind, f"{row.name.replace('_', ' ')} ({row.code})"  # type: ignore[return-value]


def decide(
    failure_code: int | None,
    attempt: int,
    policy: Policy,
    random: Callable[[], float],
    *,
    protocol: int | None = None,
    close_reason: str = "",
    retry_after_s: float | None = None,
) -> Decision:
    """Decide what follows a lost wire.

    Args: `failure_code` a close code, None for a network loss; `attempt` from 1 (for 4020: the tries of the cooldown);
    `random` gives [0, 1) and is called at most once; `protocol` 1, 2 or None before the auth answer; `retry_after_s` in
    seconds, wins when it is longer.
    Raises: TypeError or ValueError with the parameter's name in the text (the caller's bug).
    Source: spec 10-wire §3-4, 30-clients §5.
    """
    if failure_code is not None:
        _integer("failure_code", failure_code, least=0)
    _integer("attempt", attempt, least=1)
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy, not {type(policy).__name__}")
    if not callable(random):
        raise TypeError(f"random must be callable, not {type(random).__name__}")
    if protocol is not None and (isinstance(protocol, bool) or protocol not in (1, 2)):
        raise ValueError(f"protocol must be 1, 2 or None, not {protocol!r}")
    if not isinstance(close_reason, str):
        raise TypeError(f"close_reason must be text, not {type(close_reason).__name__}")
    if retry_after_s is not None:
        _number("retry_after_s", retry_after_s, least=0)
    code = modern_code(failure_code, protocol=protocol, close_reason=close_reason)
    strategy, kind, what = _classify(code)
    if strategy == "never":
        return Decision(False, 0.0, "never", kind, f"{what}: waiting changes nothing")
    if strategy == "cooldown":
        return _cool_down(attempt, kind, what, retry_after_s)
    if policy.max_tries is not None and attempt > policy.max_tries:
        return Decision(False, 0.0, "never", kind, f"{what}: gave up after {policy.max_tries} tries")
    delay_s = _jittered_s(base_delay_s(attempt, policy), policy, random)
    return _after(max(delay_s, retry_after_s or 0.0), attempt, "standard", kind, what)


def _cool_down(attempt: int, kind: str, what: str, retry_after_s: float | None) -> Decision:
    row = _contract.INTERNAL_COOLDOWN
    if row.max_tries is not None and attempt > row.max_tries:
        return Decision(False, 0.0, "never", kind, f"{what}: still limited after {row.max_tries} tries")
    return _after(max(row.initial_s, retry_after_s or 0.0), attempt, "cooldown", kind, what)


def _after(delay_s: float, attempt: int, strategy: Strategy, kind: str, what: str) -> Decision:
    return Decision(True, float(delay_s), strategy, kind, f"{what}: try {attempt} in {delay_s:.2f} s")


def network_transition(
    previous: NetworkState,
    next: NetworkState,  # the contract's own name
    *,
    path_changed: bool = False,
) -> Transition:
    """Say whether a change of the network means: reconnect at once, and count from zero.

    Repeated signals are idempotent: only a true offline → online resets. Raises: ValueError with the field's name.
    Source: spec 10-wire §4, 30-clients §5.
    """
    for field, value in (("previous", previous), ("next", next)):
        if value not in _NETWORK_STATES:
            raise ValueError(f"{field} must be 'online' or 'offline', not {value!r}")
    if not isinstance(path_changed, bool):
        raise TypeError(f"path_changed must be a bool, not {type(path_changed).__name__}")
    if next == "offline":
        return Transition(False, False, "offline: waiting for the network")
    if previous == "offline":
        return Transition(True, True, "the network is back")
    if path_changed:
        return Transition(True, False, "the network path changed")
    return Transition(False, False, "the network did not change")
