"""The same seed, the same faults; nothing is planned that a usual restart budget would not bear."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_modules.chaos.plan import CLASSES, PACE, PACE_ELSE, Fault, Pace, next_fault

MODULES = ("alpha", "beta")


def plan(seed: int, count: int = 200) -> list[Fault]:
    source = random.Random(seed)
    return [next_fault(n, random=source.random, classes=CLASSES, modules=MODULES, scale=1.0) for n in range(count)]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_every_class_comes_and_every_module_is_hit() -> None:
    faults = plan(1, 2000)
    assert {fault.what for fault in faults} == set(CLASSES)
    assert {f.target for f in faults if f.what.endswith("module")} == set(MODULES)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4))
def test_any_four_numbers_give_a_fault_within_its_bounds(numbers: list[float]) -> None:
    fault = next_fault(1, random=iter(numbers).__next__, classes=CLASSES, modules=MODULES, scale=0.1)
    assert fault.what in CLASSES
    assert 0 <= fault.pause_s <= 0.3
    assert 0 < fault.hold_s <= 0.3


def test_without_modules_no_module_is_hit() -> None:
    source = random.Random(1)
    faults = [next_fault(n, random=source.random, classes=CLASSES, modules=(), scale=1.0) for n in range(300)]
    assert not [f for f in faults if f.what.endswith("module")]


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to choose"):
        next_fault(1, random=random.random, classes=("kill module",), modules=(), scale=1.0)


@pytest.mark.parametrize("target", ["kernel", "launcher", "alpha"])
def test_kills_stay_below_the_restart_budget(target: str) -> None:
    most, window_s = PACE.get(target, PACE_ELSE)
    pace, fault = Pace(), Fault(1, f"kill {target}", target, 0.0, 0.0)
    done = [now for now in range(1200) if pace.allows(fault, now=float(now))]
    for begin in done:
        assert len([at for at in done if begin <= at < begin + window_s]) <= most
    assert len(done) > most, "it goes on when the window has passed"


def test_a_target_without_end_is_never_held_back() -> None:
    pace, fault = Pace(["alpha"]), Fault(1, "kill module", "alpha", 0.0, 0.0)
    assert all(pace.allows(fault, now=0.0) for _ in range(100))
