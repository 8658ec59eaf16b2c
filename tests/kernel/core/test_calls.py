"""Calls: routing, ids, deadlines, cancels, holding, keys, services. Source: 10 §6, 00 §18-21, cases W-11 to W-31."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pure_hub import PureHub, PurePeer


def call(peer: PurePeer, ident: Any, method: str = "c.echo", **more: Any) -> None:
    peer.send({"jsonrpc": "2.0", "id": ident, "method": method, **more})


def error_of(rows: list[Any], ident: Any) -> tuple[int, str, str]:
    (row,) = [row for row in rows if row.get("id") == ident]
    return row["error"]["code"], row["error"]["data"]["reason"], row["error"]["data"]["outcome"]


def test_ids_keep_their_spelling_and_never_meet() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    idents = ["1", "1.0", '"1"', "1e3", "1000", "9007199254740992", "9007199254740993", "3.14", '""', "0", "null"]
    for ident in idents:
        a.send('{"jsonrpc":"2.0","id":' + ident + ',"method":"c.echo"}')
    kids = [row["id"] for row in c.frames()]
    assert len(set(kids)) == len(idents)
    a.raw = b""
    for kid, ident in reversed(list(zip(kids, idents, strict=True))):
        c.send({"jsonrpc": "2.0", "id": kid, "result": ident})
    for ident in idents:
        assert ('"id":' + ident + ',"result":').encode() in a.raw


def test_a_second_use_of_an_id_in_flight_harms_only_itself() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 5)
    call(a, 5)
    assert error_of(a.frames(), 5) == (-32600, "duplicate_id", "not_sent")
    (request,) = c.frames()
    c.send({"jsonrpc": "2.0", "id": request["id"], "result": 1})
    assert a.frames() == [{"jsonrpc": "2.0", "id": 5, "result": 1}]
    call(a, 5)
    assert len(c.frames()) == 1


def test_calls_to_who_is_not_ready_are_refused_at_once() -> None:
    hub = PureHub()
    a = hub.ready("a")
    hub.auth("f")
    g = hub.auth("g")
    g.ask("event.subscribe", {"events": []})
    g.ask("registry.register", {"methods": ["x"]})
    for target, reason, state in [
        ("nobody", "unknown_module", "offline"),
        ("d", "offline", "offline"),
        ("f", "not_ready", "connected"),
        ("g", "not_ready", "registered"),
    ]:
        data = a.ask(f"{target}.x")["error"]["data"]
        assert (data["reason"], data["state"], data["outcome"]) == (reason, state, "not_sent")
        assert "since" in data
        assert data["module_id"] == target


def test_an_unknown_method_names_the_nearest() -> None:
    hub = PureHub()
    a = hub.ready("a")
    c = hub.ready("c", methods=["resize", "rotate", "upload"])
    error = a.ask("c.resise")["error"]
    assert error["code"] == -32601
    assert error["data"]["nearest"][0] == "c.resize"
    assert c.frames() == []


def test_deadlines_end_calls_and_tell_the_callee() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1, meta={"timeout": 2})
    call(a, 2)
    hub.sleep(1.9)
    assert a.frames() == []
    hub.sleep(0.2)
    assert error_of(a.frames(), 1) == (-32003, "deadline", "unknown")
    hub.sleep(28.5)
    assert error_of(a.frames(), 2) == (-32003, "deadline", "unknown")
    rows = c.frames()
    assert [row["params"]["id"] for row in rows if row["method"] == "$/cancelRequest"] == [
        row["id"] for row in rows if "id" in row
    ]


def test_many_short_deadlines_leave_nothing_behind() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    ended = 0
    for n in range(5000):
        call(a, n, meta={"timeout": 0.005})
        if n % 100 == 99:
            hub.sleep(0.006)
        ended += len([row for row in a.frames() if "error" in row])
    hub.sleep(1)
    ended += len([row for row in a.frames() if "error" in row])
    assert ended == 5000
    pending = hub.core.calls.pending
    assert not pending.calls
    assert pending.next_at == float("inf")
    assert not hub.core.board.peers["a"].calls
    assert hub.core.board.peers["c"].working == 0
    c.frames()


def test_the_bound_on_calls_in_flight_is_told_with_a_time() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    for n in range(1024):
        call(a, n)
    call(a, "more")
    (row,) = a.frames()
    assert (row["error"]["code"], row["error"]["data"]["outcome"]) == (-32005, "not_sent")
    assert row["error"]["data"]["retry_after"] > 0
    c.send({"jsonrpc": "2.0", "id": c.frames()[0]["id"], "result": 1})
    a.frames()
    call(a, "more")
    assert a.frames() == []


def test_a_cancel_is_answered_at_once_and_the_late_answer_dropped() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    (request,) = c.frames()
    a.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}})
    assert error_of(a.frames(), 1) == (-32800, "cancelled", "unknown")
    assert c.frames()[0]["params"] == {"id": request["id"]}
    c.send({"jsonrpc": "2.0", "id": request["id"], "result": 1})
    a.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}})
    a.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 77}})
    assert a.frames() == []


def test_only_who_was_asked_may_answer_or_report_progress() -> None:
    hub = PureHub()
    a, b, c = hub.ready("a"), hub.ready("b"), hub.ready("c")
    call(a, "q")
    (request,) = c.frames()
    kid = request["id"]
    for n in range(200):
        b.send({"jsonrpc": "2.0", "id": n, "result": "false"})
        b.send({"jsonrpc": "2.0", "id": str(n), "result": "false"})
    b.send({"jsonrpc": "2.0", "method": "$/progress", "params": {"id": kid, "value": 1}})
    b.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": kid}})
    assert a.frames() == []
    assert b.frames() == []
    for value in range(5):
        c.send({"jsonrpc": "2.0", "method": "$/progress", "params": {"id": kid, "value": value}})
    c.send({"jsonrpc": "2.0", "id": kid, "result": "true"})
    c.send({"jsonrpc": "2.0", "method": "$/progress", "params": {"id": kid, "value": 6}})
    c.send({"jsonrpc": "2.0", "id": kid, "result": "again"})
    rows = a.frames()
    assert [row["params"]["value"] for row in rows if "params" in row] == [0, 1, 2, 3, 4]
    assert {row["params"]["id"] for row in rows if "params" in row} == {"q"}
    assert rows[-1]["result"] == "true"
    assert len(hub.lines("dropped")) == 4  # answers and progress of b and of c: each kind once


def test_credit_reaches_the_callee_under_its_own_id() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    c.ask("registry.register", {"methods": ["echo"], "accepts_meta": True})
    call(a, 1, meta={"credit": 2})
    (request,) = c.frames()
    assert request["meta"]["credit"] == 2
    a.send({"jsonrpc": "2.0", "method": "$/credit", "params": {"id": 1, "n": 3}})
    assert c.frames()[0]["params"] == {"id": request["id"], "n": 3}


@pytest.mark.parametrize(
    "answer",
    [{"result": 1, "error": {"code": 1, "message": ""}}, {}, {"error": {"message": "no code"}}, {"error": 7}],
)
def test_a_broken_answer_is_an_internal_error_once(answer: dict[str, Any]) -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    kid = c.frames()[0]["id"]
    c.send({"jsonrpc": "2.0", "id": kid, **answer})
    c.send({"jsonrpc": "2.0", "id": kid, **answer})
    rows = a.frames()
    assert len(rows) == 1
    assert error_of(rows, 1) == (-32603, "bad_answer", "unknown")


def test_a_result_that_is_no_json_tells_both_sides() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    kid = c.frames()[0]["id"]
    c.send(f'{{"jsonrpc":"2.0","id":{kid},"result":NaN}}')
    assert c.frames()[0]["error"]["code"] == -32700
    assert error_of(a.frames(), 1) == (-32603, "bad_answer", "unknown")


def test_a_callees_own_error_passes_untouched() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    a.raw = b""
    own = '{"code":17, "message":"x","data":{"z":1.10}}'
    c.send(f'{{"jsonrpc":"2.0","id":{c.frames()[0]["id"]},"error":{own}}}')
    assert a.raw.endswith(own.encode() + b"}")


# --- the debounce ---


def test_a_call_is_held_and_handed_out_on_return() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    c.cut()
    call(a, 1)
    call(a, 2, meta={"wait": False})
    call(a, 3, meta={"timeout": 1})
    assert error_of(a.frames(), 2) == (-32001, "debounce", "not_sent")
    hub.sleep(1.1)
    assert error_of(a.frames(), 3) == (-32003, "deadline", "not_sent")
    hub.sleep(1.9)
    again = hub.auth("c")
    (request,) = again.frames()
    again.send({"jsonrpc": "2.0", "id": request["id"], "result": "late"})
    assert a.frames() == [{"jsonrpc": "2.0", "id": 1, "result": "late"}]


def test_held_calls_are_not_sent_and_calls_in_hand_unknown_when_it_stays_away() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    c.cut()
    call(a, 2)
    assert a.frames() == []
    hub.sleep(5.1)
    rows = a.frames()
    assert error_of(rows, 1) == (-32002, "connection_lost", "unknown")
    assert error_of(rows, 2) == (-32001, "offline", "not_sent")


def test_a_close_frame_ends_calls_in_hand_at_once() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    c.cut(clean=True)
    assert error_of(a.frames(), 1) == (-32002, "connection_lost", "unknown")


def test_a_caller_that_stays_away_is_cancelled_at_its_callee() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1)
    kid = c.frames()[0]["id"]
    a.cut()
    hub.sleep(6)
    assert [row["params"]["id"] for row in c.frames() if row["method"] == "$/cancelRequest"] == [kid]
    c.send({"jsonrpc": "2.0", "id": kid, "result": 1})
    assert not hub.core.calls.pending.calls


# --- keys ---


def test_a_key_makes_a_call_count_once() -> None:
    hub = PureHub()
    a, b, c = hub.ready("a"), hub.ready("b"), hub.ready("c")
    call(a, 1, meta={"key": "k1"})
    call(a, 2, meta={"key": "k1"})
    (request,) = c.frames()
    c.send({"jsonrpc": "2.0", "id": request["id"], "result": "paid"})
    call(a, 3, meta={"key": "k1"})
    assert a.frames() == [{"jsonrpc": "2.0", "id": n, "result": "paid"} for n in (1, 2, 3)]
    assert c.frames() == []
    call(b, 1, meta={"key": "k1"})
    assert len(c.frames()) == 1


def test_a_key_of_a_call_that_was_never_sent_may_be_tried_again() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    c.cut()
    call(a, 1, meta={"key": "k", "timeout": 1})
    hub.sleep(1.1)
    assert error_of(a.frames(), 1)[2] == "not_sent"
    again = hub.auth("c")
    call(a, 2, meta={"key": "k"})
    assert len(again.frames()) == 1


def test_a_key_of_a_call_with_an_unknown_end_never_runs_it_twice() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1, meta={"key": "k", "timeout": 1})
    hub.sleep(1.1)
    c.frames()
    call(a, 2, meta={"key": "k"})
    rows = a.frames()
    assert error_of(rows, 1) == error_of(rows, 2) == (-32003, "deadline", "unknown")
    assert c.frames() == []
    hub.sleep(301)
    call(a, 3, meta={"key": "k"})
    assert [row["method"] for row in c.frames()] == ["echo"]


def test_a_waiter_on_a_key_may_cancel_itself() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    call(a, 1, meta={"key": "k"})
    call(a, 2, meta={"key": "k"})
    a.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 2}})
    assert error_of(a.frames(), 2) == (-32800, "cancelled", "unknown")
    c.send({"jsonrpc": "2.0", "id": c.frames()[0]["id"], "result": 1})
    assert a.frames() == [{"jsonrpc": "2.0", "id": 1, "result": 1}]


# --- services ---


def test_a_service_gives_to_the_member_with_the_fewest_in_flight() -> None:
    hub = PureHub()
    a = hub.ready("a")
    members = [hub.auth(name) for name in "bcd"]
    for member in members:
        member.ask("event.subscribe", {"events": []})
        member.ask("registry.register", {"methods": ["run"], "service": "resize"})
        member.say("module.ready")
    for n in range(9):
        call(a, n, "resize.run")
    assert [len([row for row in member.frames() if row.get("method") == "run"]) for member in members] == [3, 3, 3]
    members[1].cut()
    for n in range(9, 13):
        call(a, n, "resize.run")
    assert [len([row for row in member.frames() if row.get("method") == "run"]) for member in members] == [2, 0, 2]


def test_a_service_is_not_named_like_somebody() -> None:
    hub = PureHub()
    hub.ready("c")
    b = hub.ready("b")
    for name, code in [("c", -32007), ("h", -32007), ("kernel", -32602), ("launcher", -32602), ("a b", -32602)]:
        assert b.ask("registry.register", {"methods": [], "service": name})["error"]["code"] == code


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("casrtkx"), st.integers(0, 5)), max_size=60))
def test_every_call_ends_exactly_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    asked: list[int] = []
    ended: list[int] = []
    kids: list[Any] = []
    for what, n in steps:
        if what == "c":
            asked.append(len(asked))
            call(a, asked[-1], meta={"timeout": n + 1})
        elif what == "a" and kids:
            c.send({"jsonrpc": "2.0", "id": kids.pop(n % len(kids)), "result": 1})
        elif what == "s":
            hub.sleep(n)
        elif what == "r":
            c.cut()
        elif what == "t" and hub.core.board.peers.get("c") is None:
            c = hub.ready("c", instance="i2", quiet=False)
        elif what == "k" and hub.core.board.peers.get("c") is not None:
            c = hub.auth("c", instance="i1" if n else "i3")
            if c.hello["state"] != "ready":
                c.ask("event.subscribe", {"events": []})
                c.ask("registry.register", {"methods": ["echo"]})
                c.say("module.ready")
        elif what == "x" and asked:
            a.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": asked[n % len(asked)]}})
        kids += [row["id"] for row in c.frames() if row.get("method") == "echo"]
        ended += [row["id"] for row in a.frames() if "id" in row]
    hub.sleep(60)
    ended += [row["id"] for row in a.frames() if "id" in row]
    assert sorted(ended) == asked
    assert not hub.core.calls.pending.calls
