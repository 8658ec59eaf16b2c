"""Rotation as a plan: the bound holds at every step, and no step overwrites what is wanted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kite_launcher.core.logrotate import OldFile, Policy, fit, must_rotate, over_total, plan_rotation

POLICY = Policy(max_bytes=1000, files=3)


def carry_out(present: dict[str, int], policy: Policy) -> dict[str, int]:
    """Do what the plan says on a folder of name → content."""
    remove, shift = plan_rotation("x", policy, present)
    for name in remove:
        del present[name]
    for old, new in shift:
        assert new not in present, "a wanted file would be overwritten"
        present[new] = present.pop(old)
    return present


def test_three_files_are_three_with_the_live_one() -> None:
    folder = {"x.log": 3, "x.log.1": 2, "x.log.2": 1, "xy.log.1": 9, "y.log": 8}
    assert carry_out(folder, POLICY) == {"x.log.1": 3, "x.log.2": 2, "xy.log.1": 9, "y.log": 8}


def test_fewer_files_than_before_removes_the_surplus() -> None:
    folder = {"x.log": 5, **{f"x.log.{number}": -number for number in range(1, 9)}}
    assert carry_out(folder, Policy(1000, 2)) == {"x.log.1": 5}


def test_one_file_only_is_begun_anew() -> None:
    assert carry_out({"x.log": 5}, Policy(1000, 1)) == {}


@given(st.sets(st.integers(1, 12)), st.integers(1, 8))
@settings(max_examples=200)
def test_no_gap_makes_a_step_overwrite_a_file(numbers: set[int], files: int) -> None:
    folder = {"x.log": 0, **{f"x.log.{number}": number for number in numbers}}
    after = carry_out(folder, Policy(1000, files))
    assert len(after) <= max(0, files - 1)
    assert [after[name] for name in sorted(after, key=lambda name: int(name[6:]))] == sorted(after.values())


def test_a_file_makes_room_by_size_and_by_age_but_never_when_empty() -> None:
    aged = Policy(1000, 3, max_age_s=60)
    assert not must_rotate(POLICY, size_bytes=900, add_bytes=100, age_s=1e9)
    assert must_rotate(POLICY, size_bytes=901, add_bytes=100, age_s=0)
    assert not must_rotate(aged, size_bytes=1, add_bytes=1, age_s=59)
    assert must_rotate(aged, size_bytes=1, add_bytes=1, age_s=60)
    assert not must_rotate(aged, size_bytes=0, add_bytes=5000, age_s=1e9)


def test_only_whole_records_fit_but_at_least_one() -> None:
    assert fit(b"aa\nbb\ncc\n", 100) == 9
    assert fit(b"aa\nbb\ncc\n", 7) == 6
    assert fit(b"aa\nbb\n", 1) == 3


def test_the_total_takes_the_oldest_rotated_files_and_never_a_live_one() -> None:
    old = [OldFile("a.log.1", 40, 3.0), OldFile("a.log.2", 40, 1.0), OldFile("b.log.1", 40, 2.0), OldFile("odd", 9, 0)]
    assert over_total(old, live_bytes=30, total_bytes=200) == ()
    assert over_total(old, live_bytes=30, total_bytes=100) == ("a.log.2", "b.log.1")
    assert over_total(old, live_bytes=500, total_bytes=100) == ("a.log.2", "b.log.1", "a.log.1")
