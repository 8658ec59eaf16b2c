"""What counts as broken: each judgement on its own, and that no breach is ever called held."""

from __future__ import annotations

from kite_modules.chaos.verdict import (
    INVARIANTS,
    Breach,
    Leader,
    breach_of_double,
    doubles,
    gaps_and_twins,
    guilty_close,
    lost_records,
    summary,
)


def test_two_processes_of_one_name_in_two_looks_are_a_double() -> None:
    look = [Leader(10, "kernel"), Leader(11, "kernel"), Leader(12, "alpha")]
    assert doubles(look, look) == {"kernel": [10, 11]}


def test_a_process_that_is_replaced_between_two_looks_is_none() -> None:
    assert doubles([Leader(10, "kernel")], [Leader(11, "kernel")]) == {}


def test_a_child_that_looks_like_its_parent_for_one_look_is_none() -> None:
    before = [Leader(10, "alpha")]
    assert doubles(before, [*before, Leader(11, "alpha")]) == {}


def test_a_double_breaks_the_invariant_of_its_kind() -> None:
    kinds = [breach_of_double(name, [1, 2], 3).invariant for name in ("launcher", "kernel", "alpha")]
    assert kinds == ["one launcher", "one kernel", "one process a module"]
    assert set(kinds) <= set(INVARIANTS)


def test_an_acknowledged_record_that_is_missing_or_changed_is_lost() -> None:
    assert lost_records({1: "a", 2: "b", 3: "c"}, {1: "a", 2: "x", 9: "z"}) == [2, 3]
    assert lost_records({1: "a"}, {1: "a", 2: "never acknowledged"}) == []


def test_gaps_and_twins_are_told() -> None:
    assert gaps_and_twins([5, 6, 8, 8, 9], first=5) == ([7], [8])
    assert gaps_and_twins([5, 6, 7], first=5) == ([], [])
    assert gaps_and_twins([], first=5) == ([], [])


def test_a_healthy_peer_may_only_see_the_kernel_go() -> None:
    assert [code for code in (None, 1001, 1006, 4010, 4011, 4012, 4001, 1011) if guilty_close(code)] == [
        4010,
        4011,
        4012,
        4001,
        1011,
    ]


def test_the_summary_names_every_invariant_once_and_hides_no_breach() -> None:
    breaches = [Breach(name, "x", 1) for name in INVARIANTS]
    assert dict(summary(breaches, dict.fromkeys(INVARIANTS, "not looked at"))) == dict.fromkeys(INVARIANTS, "broken")
    assert dict(summary([], {"one kernel": "not looked at"}))["one kernel"] == "not looked at"
