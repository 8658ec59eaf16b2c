"""The reconnect decision beyond the vectors: properties, and what a crowd of 10,000 does. Source: spec 10-wire §4."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_modules._contract import CLOSE
from kite_modules.sdk.reconnect import INTERNAL, REMOTE, Decision, Policy, decide, network_transition
from kite_modules.sdk.spread import AttemptCounter, gini, spread_in_second

CROWD = 10_000


def zero() -> float:
    return 0.0


policies = st.builds(
    Policy,
    jitter=st.sampled_from(["ratio", "equal", "full", "none"]),
    initial_s=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    max_s=st.floats(100, 10_000),
    jitter_ratio=st.floats(0, 1),
    max_tries=st.none() | st.integers(0, 10),
)
codes = st.none() | st.sampled_from(sorted(CLOSE)) | st.integers(1000, 4999)


@given(codes, st.integers(1, 10**9), policies, st.floats(0, 0.999999))
def test_a_delay_is_never_negative_never_above_the_cap(
    code: int | None, attempt: int, policy: Policy, r: float
) -> None:
    decision = decide(code, attempt, policy, lambda: r)
    if not decision.retry:
        assert (decision.strategy, decision.delay_s) == ("never", 0)
    elif decision.strategy == "cooldown":
        assert decision.delay_s == 10
    else:
        assert 0 <= decision.delay_s <= policy.max_s
    assert decision.kind
    assert decision.reason


@given(st.integers(1, 10**9), policies, st.floats(0, 86400))
def test_a_longer_hint_of_the_server_always_wins(attempt: int, policy: Policy, hint: float) -> None:
    decision = decide(None, attempt, policy, zero, retry_after_s=hint)
    if decision.retry:
        assert decision.delay_s == max(hint, decide(None, attempt, policy, zero).delay_s)


@given(codes, st.integers(1, 100), policies)
def test_chance_is_asked_once_at_most(code: int | None, attempt: int, policy: Policy) -> None:
    asked: list[None] = []

    def source() -> float:
        asked.append(None)
        return 0.5

    decide(code, attempt, policy, source)
    assert len(asked) <= 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"failure_code": "1006"}, "failure_code"),
        ({"failure_code": True}, "failure_code"),
        ({"failure_code": 1006.0}, "failure_code"),
        ({"failure_code": -1}, "failure_code"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"attempt": 1.0}, "attempt"),
        ({"attempt": "1"}, "attempt"),
        ({"policy": None}, "policy"),
        ({"policy": {"jitter": "none"}}, "policy"),
        ({"random": 0.5}, "random"),
        ({"random": lambda: -0.1}, "random"),
        ({"random": lambda: float("nan")}, "random"),
        ({"random": lambda: "0.5"}, "random"),
        ({"protocol": 3}, "protocol"),
        ({"protocol": "1"}, "protocol"),
        ({"close_reason": None}, "close_reason"),
        ({"retry_after_s": -1}, "retry_after_s"),
        ({"retry_after_s": float("inf")}, "retry_after_s"),
        ({"retry_after_s": "30"}, "retry_after_s"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name(change: dict[str, Any], field: str) -> None:
    arguments: dict[str, Any] = {"failure_code": None, "attempt": 1, "policy": INTERNAL, "random": zero, **change}
    with pytest.raises((TypeError, ValueError), match=field):
        decide(
            arguments.pop("failure_code"),
            arguments.pop("attempt"),
            arguments.pop("policy"),
            arguments.pop("random"),
            **arguments,
        )


@pytest.mark.parametrize("field", ["initial_s", "factor", "max_s", "jitter_ratio"])
@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), -1.0])
def test_a_policy_refuses_what_is_no_number(field: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=field):
        Policy(**{field: value})


def test_a_policy_takes_keywords_only() -> None:
    with pytest.raises(TypeError):
        Policy("ratio")  # type: ignore[call-arg]


def test_network_transitions_have_attributes_and_unpack() -> None:
    now, reset, reason = network_transition("offline", "online")
    assert (now, reset) == (True, True)
    assert reason
    with pytest.raises(TypeError, match="path_changed"):
        network_transition("online", "online", path_changed="yes")  # type: ignore[arg-type]


# ------------------------------------------------------------------ crowds


def crowd(policy: Policy, attempt: int) -> list[float]:
    """Return when 10,000 clients come back that were all cut at the same moment."""
    chance = random.Random(20260314)
    return [decide(1001, attempt, policy, chance.random).delay_s for _ in range(CROWD)]


def synchronous(policy: Policy) -> Policy:
    return Policy(jitter="none", initial_s=policy.initial_s, factor=policy.factor, max_s=policy.max_s)


@pytest.mark.parametrize("policy", [INTERNAL, REMOTE], ids=["internal", "remote"])
def test_jitter_spreads_the_first_tries_of_a_crowd(policy: Policy) -> None:
    delays = crowd(policy, 1)
    assert len(set(delays)) > 1000
    assert len(set(crowd(synchronous(policy), 1))) == 1


def test_the_gini_coefficient_tells_a_spread_crowd_from_a_synchronous_one() -> None:
    equal = Policy(jitter="equal", initial_s=2.0, max_s=10.0)
    spread = spread_in_second(crowd(equal, 1), start=1.0)  # equal: 1 s … 2 s
    together = spread_in_second(crowd(synchronous(equal), 1), start=2.0)
    assert spread < 0.05
    assert together == pytest.approx(0.95)


def test_at_the_cap_only_equal_and_full_still_spread_a_crowd() -> None:
    at_cap = 12
    assert len(set(crowd(INTERNAL, at_cap))) == 1  # ratio: every delay is the cap
    for jitter in ("equal", "full"):
        delays = crowd(Policy(jitter=jitter), at_cap)
        assert len(set(delays)) > 1000
        assert max(delays) <= 10.0


def test_gini_knows_its_extremes() -> None:
    assert gini([]) == 0
    assert gini([0, 0]) == 0
    assert gini([5, 5, 5]) == pytest.approx(0)
    assert gini([0, 0, 0, 9]) == pytest.approx(0.75)


def test_attempts_are_counted_by_reason_within_a_bound() -> None:
    counter = AttemptCounter()
    for now in range(20):
        counter.count("transport", now=now / 20)
    for number in range(1000):
        counter.count(f"odd-{number}", now=5.0)
    text = counter.metrics(now=5.5)
    assert 'kite_reconnect_attempt_total{reason="transport"} 20' in text
    assert 'reason="other"' in text
    assert len(counter.total) <= 65
    assert counter.gini(now=1.0) == pytest.approx(0, abs=0.01)
    assert counter.gini(now=5.5) == pytest.approx(0.95)


def test_a_decision_is_a_value() -> None:
    source: Callable[[], float] = zero
    assert decide(None, 1, INTERNAL, source) == decide(1006, 1, INTERNAL, source)
    assert isinstance(decide(4001, 1, INTERNAL, source), Decision)
