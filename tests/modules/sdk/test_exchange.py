"""Lanes, calls and their one end, without any wire. Source: spec 10-wire §6-8, 30-clients §2."""

from __future__ import annotations

import json
from typing import Any

from kite_modules.sdk import frames
from kite_modules.sdk.exchange import Exchange
from kite_modules.sdk.pending import Pending


class Box:
    """An exchange with a fresh, open session."""

    def __init__(self, *, queue_max: int = 5) -> None:
        self.exchange = Exchange(queue_max=queue_max, on_work=lambda: None)
        self.ended: list[int] = []
        self.fresh("s1")
        self.exchange.is_open = True

    def fresh(self, session: str) -> None:
        assert not self.exchange.take_auth({"session": session, "resumed": False, "received": 0})

    def call(self, method: str = "b.run", *, keep: bool = False, due_at: float | None = None) -> Pending:
        rpc_id = self.exchange.new_id()
        pending = Pending(
            rpc_id, method, "{}", meta={}, due_at=due_at, wake=lambda: self.ended.append(rpc_id), keep=keep
        )
        if keep:
            assert self.exchange.keep(pending)
        else:
            self.exchange.submit(pending)
        return pending

    def out(self) -> list[dict[str, Any]]:
        found = []
        while (text := self.exchange.next_frame(now=0.0)) is not None:
            found.append(json.loads(text))
        return found

    def answer(self, pending: Pending, result: Any = True) -> None:
        self.exchange.on_text(frames.result(pending.id, frames.encode(result)), wall_time=0)


def test_a_call_ends_once_whatever_comes_after() -> None:
    box = Box()
    call = box.call()
    box.out()
    box.answer(call)
    box.answer(call, False)
    box.fresh("s2")
    assert box.ended == [call.id]
    assert call.raw is not None
    assert bytes(call.raw) == b"true"
    assert box.exchange.statistics.late_answers == 1


def test_calls_and_publishes_wait_until_the_session_is_in_step() -> None:
    box = Box()
    box.exchange.is_open = False
    user = box.call("b.run")
    sync = Pending(box.exchange.new_id(), "event.subscribe", "{}", meta={}, due_at=None, wake=lambda: None)
    box.exchange.submit(sync, sync=True)
    assert [frame["id"] for frame in box.out()] == [sync.id]
    box.exchange.is_open = True
    assert [frame["id"] for frame in box.out()] == [user.id]


def test_what_was_asked_first_goes_out_first_over_both_lanes() -> None:
    box = Box()
    first = box.call()
    box.exchange.post(frames.result(7, "1"), box.exchange.generation)
    second = box.call()
    assert [frame["id"] for frame in box.out()] == [first.id, 7, second.id]


def test_a_lost_session_ends_what_was_sent_and_keeps_what_was_not() -> None:
    box = Box()
    sent = box.call()
    box.out()
    unsent = box.call()
    box.fresh("s2")
    assert sent.error is not None
    assert (sent.error.code, sent.error.reason, sent.error.outcome) == (-32002, "connection_lost", "unknown")
    assert not unsent.done
    box.exchange.is_open = True
    assert [frame["id"] for frame in box.out()] == [unsent.id]


def test_a_kept_publish_is_asked_again_before_newer_ones() -> None:
    box = Box()
    first = box.call("event.publish", keep=True)
    box.out()
    second = box.call("event.publish", keep=True)
    box.fresh("s2")
    box.exchange.is_open = True
    assert [frame["id"] for frame in box.out()] == [first.id, second.id]
    assert box.exchange.kept == 2
    box.answer(first)
    box.answer(second)
    assert box.exchange.kept == 0


def test_the_line_of_kept_publishes_is_bounded() -> None:
    box = Box(queue_max=2)
    box.call("event.publish", keep=True)
    box.call("event.publish", keep=True)
    third = Pending(99, "event.publish", "{}", meta={}, due_at=None, wake=lambda: None, keep=True)
    assert not box.exchange.keep(third)


def test_an_answer_never_reaches_another_session() -> None:
    box = Box()
    old = box.exchange.generation
    box.fresh("s2")
    assert not box.exchange.post(frames.result(1, "true"), old)
    assert box.exchange.statistics.dropped_answers == 1
    assert box.out() == []


def test_a_resume_sends_again_before_anything_new() -> None:
    box = Box()
    box.call("b.one")
    box.call("b.two")
    box.out()
    box.call("b.three")
    assert box.exchange.take_auth({"session": "s1", "resumed": True, "received": 1})
    assert [frame["method"] for frame in box.out()] == ["b.two", "b.three"]
    assert box.exchange.book.statistics()["frames"] == 2


def test_a_cancelled_call_tells_the_callee_only_when_it_was_sent() -> None:
    box = Box()
    sent, unsent = box.call(), None
    box.out()
    unsent = box.call()
    box.exchange.cancel(sent)
    box.exchange.cancel(unsent)
    assert [(frame["method"], frame["params"]) for frame in box.out()] == [("$/cancelRequest", {"id": sent.id})]
    assert box.exchange.in_flight == 0


def test_the_deadline_that_goes_out_is_what_is_left_of_it() -> None:
    box = Box()
    box.call(due_at=10.0)
    assert json.loads(box.exchange.next_frame(now=7.5) or "")["meta"] == {"timeout": 2.5}


def test_a_frame_above_the_kernels_bound_ends_its_call_and_not_the_wire() -> None:
    box = Box()
    box.exchange.message_bytes_max = 300
    call = Pending(5, "b.run", frames.encode({"x": "é" * 300}), meta={}, due_at=None, wake=lambda: None)
    box.exchange.submit(call)
    small = box.call()
    assert [frame["id"] for frame in box.out()] == [small.id]
    assert call.error is not None
    assert (call.error.code, call.error.reason, call.error.outcome) == (-32600, "limit", "not_sent")


def test_a_ping_is_answered_with_what_was_received_and_frees_the_buffer() -> None:
    box = Box()
    box.call()
    box.out()
    ping = {"event": "system.ping", "data": {"ping_time": 1.5, "received": 1}, "source": "kernel"}
    assert box.exchange.on_text(frames.notification("event", frames.encode(ping)), wall_time=2.5) is None
    (pong,) = box.out()
    data = {"ping_time": 1.5, "pong_time": 2.5, "received": 1}
    assert pong["params"] == {"event": "system.pong", "data": data}
    assert box.exchange.book.statistics()["frames"] == 1  # the pong itself


def test_garbage_is_counted_and_changes_nothing() -> None:
    box = Box()
    call = box.call()
    box.out()
    for text in ("", "{", "[]", '{"jsonrpc":"2.0","method":"$/progress","params":7}', "[" * 100_000):
        assert box.exchange.on_text(text, wall_time=0) is None
    assert box.exchange.statistics.bad_frames >= 4
    box.answer(call)
    assert call.done


def test_stopping_ends_every_call() -> None:
    box = Box()
    sent = box.call()
    box.out()
    unsent = box.call()
    box.exchange.stop("told to end")
    assert sent.error is not None
    assert unsent.error is not None
    assert (sent.error.outcome, unsent.error.outcome) == ("unknown", "not_sent")
