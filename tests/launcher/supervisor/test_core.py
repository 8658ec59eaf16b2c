"""The supervisor's core as plain functions: trees, records, budgets, gates, notes, reports, takeover.

Source: spec 00 §27, §30; 05 §3, §5; 50 §1–§3.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_launcher.core.child import TRANSITIONS, Child, Event, Moment, State, describe_exit, story
from kite_launcher.core.child_env import Handed, child_env
from kite_launcher.core.gate import gate, is_settled, lost_requirement
from kite_launcher.core.notify import parse_note
from kite_launcher.core.proc import Identity, Proc, Tree, ancestors, members, parse_environ, parse_stat
from kite_launcher.core.records import (
    Damaged,
    Holder,
    Processes,
    ProcessRecord,
    parse_lock,
    parse_processes,
    parse_wanted,
    render_lock,
    render_processes,
    render_wanted,
)
from kite_launcher.core.repeat import Quota, Repeats
from kite_launcher.core.report import Facts, overall, status
from kite_launcher.core.restart import GiveUp, Policy, RestartAt, Settle, Tally, backoff
from kite_launcher.core.takeover import Takeover, dump_child, parse_takeover, restore_child
from kite_launcher.core.unit_spec import UnitSpec

POLICY = Policy("always", 5, 60.0, 0.1, 1.0, 60.0)
NOW = Moment(100.0, "2026-01-01T00:00:00+00:00")


def _child(name: str, state: State = State.STOPPED, role: str = "module") -> Child:
    child = Child(name, role, Tally(POLICY), since_utc=NOW.utc)
    child.state = state
    if child.alive:
        child.identity = Identity(7, 70)
    return child


def _unit(name: str, after: tuple[str, ...] = (), requires: tuple[str, ...] = ()) -> UnitSpec:
    return UnitSpec(name, "module", POLICY, "TERM", 1.0, 1.0, True, after=after, requires=requires)


# -- processes


def test_stat_is_read_behind_its_last_bracket() -> None:
    fields = "S 1 42 43 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 987 1000 10"
    row = parse_stat(f"42 (evil) name\n(x)) {fields}")
    assert row == Proc(42, 1, 42, 43, 987, "S")
    assert parse_stat("42 (x) S 1") is None
    assert parse_stat("") is None


@given(st.text(max_size=200))
def test_no_stat_text_raises(text: str) -> None:
    parse_stat(text)


def test_mark_must_match_whole() -> None:
    block = b"A=1\0KITE_INSTANCE=abc\0KITE_MODULE_ID=x\xff\0"
    assert parse_environ(block, "abc") == "x�"
    assert parse_environ(block, "ab") is None
    assert parse_environ(b"KITE_INSTANCE=abc\0", "abc") == ""
    assert parse_environ(b"XKITE_INSTANCE=abc\0", "abc") is None


def _table(*rows: Proc) -> dict[int, Proc]:
    return {row.pid: row for row in rows}


def test_tree_is_group_session_mark_descent_and_what_was_known() -> None:
    table = _table(
        Proc(1, 0, 1, 1, 1, "S"),
        Proc(2, 1, 2, 2, 2, "S"),  # the launcher
        Proc(10, 2, 10, 10, 50, "S"),  # the leader
        Proc(11, 10, 10, 10, 51, "S"),  # its group
        Proc(12, 1, 99, 10, 52, "S"),  # its session
        Proc(13, 1, 13, 13, 53, "S", "x"),  # the mark
        Proc(14, 13, 14, 14, 54, "S"),  # below it
        Proc(15, 1, 15, 15, 55, "S"),  # known
        Proc(16, 10, 10, 10, 56, "Z"),  # a zombie
        Proc(17, 1, 10, 17, 40, "S"),  # older than the leader: its group number was another's
        Proc(18, 1, 18, 18, 57, "S", "y"),  # another module's
        Proc(19, 1, 19, 19, 58, "S"),  # a stranger
    )
    tree = Tree("x", Identity(10, 50), frozenset({Identity(15, 55)}))
    assert [row.pid for row in members(table, tree, spare={2})] == [10, 11, 12, 13, 14, 15]
    # Another process under the leader's number leads nothing of ours.
    reused = Tree("x", Identity(10, 49))
    assert 10 not in [row.pid for row in members(table, reused, spare={2})]
    assert 13 not in [row.pid for row in members(table, tree, spare={2, 13})]
    assert ancestors(table, 14) == {14, 13, 1}


# -- records


RECORD = ProcessRecord("x", "module", 5, 50, 5, ("a", "b\udcff"), "now")


def test_records_come_back_as_they_were_written() -> None:
    found = parse_processes(render_processes("boot", "mark", [RECORD]))
    assert found == Processes("boot", "mark", (RECORD,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"[]",
        b'{"schema":99}',
        b'{"schema":1}',
        b'{"schema":1,"boot_id":"b","instance":"i","processes":[{"pid":true}]}',
        b'{"schema":1,"boot_id":"b","instance":"i","processes":[{"name":"x","role":"module","pid":-1}]}',
        b'{"schema":1,"boot_id":"b","instance":"i","processes":{}}',
        b"[" * 100_000,
    ],
)
def test_damaged_records_are_a_value(data: bytes) -> None:
    assert isinstance(parse_processes(data), Damaged)


@given(st.binary(max_size=300))
def test_no_state_file_raises(data: bytes) -> None:
    parse_processes(data)
    parse_wanted(data)
    parse_lock(data)


def test_wanted_and_lock_come_back() -> None:
    assert parse_wanted(render_wanted(["b", "a"])) == frozenset({"a", "b"})
    assert isinstance(parse_wanted(b'{"schema":1,"stopped":[1]}'), Damaged)
    holder = Holder(7, 70, "boot", "now")
    assert parse_lock(render_lock(holder)) == holder
    assert parse_lock(b'{"pid":"7"}') is None


# -- budget


def test_back_off_doubles_to_its_cap_and_never_overflows() -> None:
    assert [backoff(n, POLICY, 0.0) for n in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert backoff(10**9, POLICY, 0.999) == 1.0
    assert backoff(1, POLICY, 1.0) == pytest.approx(0.12)


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60), st.integers(0, 6))
def test_never_more_restarts_in_a_window_than_the_budget(pauses: list[float], most: int) -> None:
    tally = Tally(attrs.evolve(POLICY, max_restarts=most))
    now, restarts = 0.0, []
    for pause in pauses:
        now += pause
        verdict = tally.ended(cause="exit", good=False, up_s=0.0, unit_random=0.5, now=now)
        if isinstance(verdict, RestartAt):
            restarts.append(now)
            assert verdict.delay_s <= POLICY.backoff_max_s
        else:
            assert isinstance(verdict, GiveUp)
    for at in restarts:
        assert sum(at <= other < at + POLICY.within_s for other in restarts) <= most


def test_policies_settle_and_ordered_ends_never_do() -> None:
    on_failure = Tally(attrs.evolve(POLICY, restart="on-failure"))
    assert on_failure.ended(cause="exit", good=True, up_s=0, unit_random=0, now=0) == Settle(True)
    assert isinstance(on_failure.ended(cause="health", good=True, up_s=0, unit_random=0, now=0), RestartAt)
    never = Tally(attrs.evolve(POLICY, restart="never"))
    assert never.ended(cause="exit", good=False, up_s=0, unit_random=0, now=0) == Settle(False)


def test_refreshed_budget_is_whole() -> None:
    tally = Tally(POLICY)
    for _ in range(5):
        tally.ended(cause="exit", good=False, up_s=0, unit_random=0, now=1.0)
    assert tally.left(now=1.0) == 0
    assert tally.left(now=61.0) == 5
    tally.refresh()
    assert (tally.left(now=1.0), tally.attempt) == (5, 0)


# -- states


def test_impossible_step_changes_nothing() -> None:
    for state in State:
        for event in Event:
            if (state, event) not in TRANSITIONS:
                child = _child("x", state)
                assert not child.on(event, NOW)
                assert child.state is state
                assert not child.timeline


def test_resting_states_have_no_process_and_since_moves_with_the_state() -> None:
    for (state, event), target in TRANSITIONS.items():
        child = _child("x", state)
        assert child.on(event, NOW)
        if not child.alive:
            assert child.identity is None
        assert (child.since == NOW.now) == (target is not state)
        if target is not State.RUNNING:
            assert child.up_s(200.0) == 0.0


def test_exit_statuses_in_words() -> None:
    assert describe_exit(0) == ("exit 0", True)
    assert describe_exit(3 << 8) == ("exit 3", False)
    assert describe_exit(9) == ("killed by signal KILL", False)
    assert describe_exit(0x80 | 11) == ("killed by signal SEGV", False)
    assert describe_exit(None)[1] is False


def test_story_sums_up_the_same_line_and_is_bounded() -> None:
    child = _child("x")
    for _ in range(3):
        child.tell("said STOPPING", NOW)
    assert story(child, rule="r", now=0)["timeline"] == [
        {"at": NOW.utc, "event": "said STOPPING", "cause": "", "detail": "(3 times)"}
    ]
    for number in range(1000):
        child.tell("e", NOW, detail=str(number))
    assert len(child.timeline) == 200


# -- order


def test_gate_opens_for_ready_and_for_settled_and_knows_the_hopeless() -> None:
    specs = {"x": _unit("x"), "y": _unit("y", ("x",), ("x",)), "z": _unit("z", ("x",)), "w": _unit("w", ("y",))}
    children = {name: _child(name, State.WAITING) for name in specs}
    for state, y_open, z_open in (
        (State.STARTING, False, False),
        (State.BACKOFF, False, False),
        (State.STOPPING, False, False),
        (State.RUNNING, True, True),
        (State.DONE, True, True),
        (State.FAILED, False, True),
        (State.STOPPED, False, True),
    ):
        children["x"].state = state
        assert gate(specs["y"], specs, children).open == y_open
        assert gate(specs["z"], specs, children).open == z_open
        gone = state in (State.FAILED, State.STOPPED)
        assert gate(specs["y"], specs, children).hopeless == gone
        assert (lost_requirement(specs["y"], children) == "x") == gone
        # Who only comes after a hopeless one need not wait for it.
        assert gate(specs["w"], specs, children).open == gone
        assert is_settled("y", specs, children) == gone


# -- environment and notes


def test_child_environment_has_kite_s_word_and_none_of_the_launcher_s_own() -> None:
    own = {"PATH": "/bin", "NOTIFY_SOCKET": "n", "LISTEN_FDS": "1", "WATCHDOG_USEC": "1", "KITE_TOKEN_FD": "9"}
    handed = Handed("x", "m", "/s", "ws://u", notify_socket="/n", replica=2)
    env = child_env(own, {"A": "b", "KITE_URL": "forged"}, handed, inherit=True)
    assert env == {
        "PATH": "/bin",
        "A": "b",
        "KITE_MODULE_ID": "x",
        "KITE_INSTANCE": "m",
        "KITE_STATE_DIR": "/s",
        "KITE_URL": "ws://u",
        "NOTIFY_SOCKET": "/n",
        "KITE_REPLICA": "2",
    }
    assert "PATH" not in child_env(own, {}, handed, inherit=False)


def test_notes_are_read_strictly() -> None:
    note = parse_note(b"READY=1\nSTATUS=warm \x1b[31m\nEXTEND_TIMEOUT_USEC=2500000\nWATCHDOG=1\nX=y")
    assert (note.ready, note.watchdog, note.stopping, note.extend_s) == (True, True, False, 2.5)
    assert note.status == "warm ?[31m"
    assert parse_note(b"READY=0\nEXTEND_TIMEOUT_USEC=-1").extend_s is None
    assert parse_note(b"EXTEND_TIMEOUT_USEC=" + b"9" * 18).extend_s == 3600.0


@given(st.binary(max_size=300))
def test_no_datagram_raises(data: bytes) -> None:
    parse_note(data)


# -- floods


def test_quota_and_repeats_hold_back_and_say_how_many() -> None:
    quota = Quota(2, 10.0)
    assert [quota.take(now=at) for at in (0, 1, 2, 9.9, 10.5, 11.5)] == [True, True, False, False, True, True]
    repeats = Repeats()
    said = [repeats.admit("k", now=at) for at in (*range(10), 70)]
    assert said == [(True, 0)] * 5 + [(False, 0)] * 5 + [(True, 5)]
    for number in range(10_000):
        repeats.admit(str(number), now=0)


# -- reports


FACTS = Facts("lab", "ws://u", 1, "now")


@pytest.mark.parametrize(
    ("states", "facts", "expected"),
    [
        ((State.RUNNING, State.DONE, State.STOPPED), FACTS, "ok"),
        ((State.RUNNING, State.BACKOFF), FACTS, "degraded"),
        ((State.STARTING,), FACTS, "degraded"),
        ((State.WAITING, State.FAILED), FACTS, "failed"),
        ((State.RUNNING,), attrs.evolve(FACTS, troubles=("disk full",)), "degraded"),
        ((State.RUNNING,), attrs.evolve(FACTS, unwell={"m0": "degraded: slow"}), "degraded"),
    ],
)
def test_overall_state(states: tuple[State, ...], facts: Facts, expected: str) -> None:
    children = {f"m{n}": _child(f"m{n}", state) for n, state in enumerate(states)}
    children["kernel"] = _child("kernel", State.RUNNING, "kernel")
    assert overall(children.values(), facts) == expected
    told = status(children, facts)
    assert told["state"] == expected
    for row in told["modules"]:
        assert row["pid"] is not None or row["state"] not in ("running", "starting", "stopping")


def test_kernel_that_is_away_is_never_ok() -> None:
    children = {"kernel": _child("kernel", State.STOPPED, "kernel")}
    assert overall(children.values(), FACTS) == "degraded"


# -- takeover


def test_story_survives_a_takeover_and_ages_do_not_jump() -> None:
    child = _child("x", State.BACKOFF)
    child.wanted, child.restarts, child.why, child.next_try = True, 3, "exit 1", 130.0
    child.tally.restarts_at.extend([50.0, 90.0])
    child.tell("started", NOW)
    dump: dict[str, Any] = json.loads(json.dumps(dump_child(child, now=100.0)))
    again = _child("x")
    assert restore_child(again, dump, now=5.0) is None
    assert (again.state, again.restarts, again.why, again.next_try) == (State.BACKOFF, 3, "exit 1", 35.0)
    assert list(again.tally.restarts_at) == [-45.0, -5.0]
    assert again.tally.left(now=5.0) == child.tally.left(now=100.0)
    running = _child("y", State.RUNNING)
    assert restore_child(_child("y"), dump_child(running, now=1.0), now=2.0) == Identity(7, 70)


def test_takeover_document_comes_back_and_hides_its_tokens() -> None:
    takeover = Takeover(
        config="/k",
        state_dir="/s\udcff",
        mark="m",
        url="ws://u",
        umask=0o22,
        nofile=(1, 2),
        detached=True,
        restart_argv=("a",),
        rollback=("b",),
        fds={"lock": 3},
        notify={"x": 4},
        tokens={"x": ["module", "S3CRET", []]},
        wire={},
        answer=(5, 1),
    )
    assert parse_takeover(takeover.render()) == takeover
    assert "S3CRET" not in repr(takeover)
