"""Bounds, pressure, lanes. Source: 20 §4, 05 §9, cases W-39 to W-42."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pure_hub import PureHub, is_event, split_frames

SMALL = {"kernel": {"queue_messages": 100, "queue_bytes": "1MiB", "max_message": "64KiB"}}


def notices(rows: list[Any], name: str) -> list[Any]:
    return [row["params"] for row in rows if row.get("method") == name]


def test_who_reads_nothing_is_warned_twice_then_cut_and_the_publisher_unharmed() -> None:
    hub = PureHub(SMALL)
    a, c, o = hub.ready("a", events=["x.>"]), hub.ready("c"), hub.auth("o")
    a.blocked = True
    for n in range(200):
        c.say("x.t", n)
    hub.sleep(0.3)
    assert a.closed is not None
    assert a.closed[0] == 4011
    assert "x.t" in a.closed[1]
    rows = a.frames()
    assert [told["level"] for told in notices(rows, "pressure")] == ["warning", "critical"]
    assert {told["topic"] for told in notices(rows, "pressure")} == {"x.t"}
    assert notices(rows, "bye")[0]["code"] == 4011
    assert c.closed is None
    (closed, *_) = o.ask("kernel.closed")["result"]["closed"]
    assert (closed["module_id"], closed["code"]) == ("a", 4011)
    assert "x.t" in closed["why"]
    assert len(hub.lines("queue_pressure")) == 1


def test_critical_for_the_whole_countdown_is_cut_too() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a", events=["x.>"]), hub.ready("c")
    a.blocked = True
    for n in range(95):
        c.say("x.t", n)
    hub.sleep(4.9)
    assert a.closed is None
    hub.sleep(0.2)
    assert a.closed is not None
    assert a.closed[0] == 4011


def test_relief_in_time_keeps_the_wire_and_loses_nothing() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a", events=["x.>"]), hub.ready("c")
    a.blocked = True
    for n in range(95):
        c.say("x.t", n)
    hub.sleep(3)
    a.blocked = False
    c.say("x.t", 95)
    hub.sleep(10)
    assert a.closed is None
    assert [told["data"] for told in a.events("x.t")] == list(range(96))


def test_a_burst_to_who_reads_is_no_slow_reader() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a", events=["x.>"]), hub.ready("c")
    a.blocked = True
    for n in range(300):
        c.say("x.t", n)
    a.blocked = False
    hub.sleep(0.01)
    c.say("x.t", 300)
    assert a.closed is None
    assert len(a.events("x.t")) == 301


def test_bytes_are_bounded_even_for_who_takes_something() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a", events=["x.>"]), hub.ready("c")
    a.blocked = True
    for _ in range(300):
        c.say("x.t", "y" * 50_000)
    assert a.closed is not None
    assert not hub.core.board.peers["a"].out


def test_a_cut_queue_fails_the_calls_that_waited_in_it() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a"), hub.ready("c")
    c.blocked = True
    for n in range(120):
        a.send({"jsonrpc": "2.0", "id": n, "method": "c.echo"})
    hub.sleep(0.3)
    assert c.closed is not None
    assert {row["error"]["code"] for row in a.frames() if "error" in row} == {-32002}


def test_drop_oldest_keeps_the_newest_and_says_how_many_are_gone() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a"), hub.ready("c")
    a.ask("event.subscribe", {"events": ["x.>"], "policy": "drop_oldest", "queue": 10})
    a.blocked = True
    for n in range(500):
        c.say("x.t", n)
    c.send({"jsonrpc": "2.0", "id": 1, "method": "a.echo"})
    a.blocked = False
    c.say("y", 0)
    a.drain()
    rows = a.frames()
    assert notices(rows, "event.gap") == [{"pattern": "x.>", "lost": 490}]
    assert [row["params"]["data"] for row in rows if is_event(row, "x.t")] == list(range(490, 500))
    assert rows[0]["method"] == "event.gap"
    assert any(row.get("method") == "echo" for row in rows)
    assert a.closed is None


def test_latest_keeps_one_for_each_name() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a"), hub.ready("c")
    a.ask("event.subscribe", {"events": ["x.>"], "policy": "latest"})
    a.blocked = True
    for n in range(50):
        c.say("x.a", n)
        c.say("x.b", -n)
    a.blocked = False
    a.drain()
    rows = a.frames()
    assert [row["params"]["data"] for row in rows if is_event(row, "x.a")] == [49]
    assert [row["params"]["data"] for row in rows if is_event(row, "x.b")] == [-49]
    assert sum(told["lost"] for told in notices(rows, "event.gap")) == 98
    assert a.closed is None


def test_a_dropped_subscription_takes_its_waiting_events_along() -> None:
    hub = PureHub(SMALL)
    a, c = hub.ready("a"), hub.ready("c")
    a.ask("event.subscribe", {"events": ["x.>"], "policy": "drop_oldest"})
    a.blocked = True
    c.say("x.t", 1)
    a.send({"jsonrpc": "2.0", "id": 1, "method": "event.unsubscribe", "params": {"events": ["x.>"]}})
    a.blocked = False
    a.drain()
    assert [row.get("id") for row in a.frames()] == [1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("peclb"), st.integers(1, 30)), max_size=40), st.booleans())
def test_nothing_is_lost_or_doubled_in_silence(steps: list[tuple[str, int]], laned: bool) -> None:
    """Whatever blocks and resumes: each event arrives once and in order, or is counted in a gap, or it was said."""
    hub = PureHub(SMALL)
    a, c = hub.ready("a"), hub.ready("c")
    a.ask("event.subscribe", {"events": ["x.t"], "policy": "drop_oldest" if laned else "close", "queue": 20})
    base = hub.core.board.peers["a"].sent
    got: list[Any] = []
    received, said, lost, resumed = base, 0, 0, True
    for what, number in [*steps, ("e", 1)]:
        if what == "p":
            for _ in range(number):
                c.say("x.t", said)
                said += 1
        elif what == "b":
            a.blocked = True
        elif what == "c" and not a.link.closing:
            a.cut()
        elif what in "el":
            if a.link.closing:
                a = hub.auth("a", resume={"session": a.hello["session"], "received": received})
                if not a.hello["resumed"]:
                    resumed = False
                    break
            a.blocked = False
            a.drain()
            hub.settle()
        rows = a.frames()
        received += len(rows)
        got += [row["params"]["data"] for row in rows if is_event(row, "x.t")]
        lost += sum(told["lost"] for told in notices(rows, "event.gap"))
        hub.pongs.clear()
    assert got == sorted(set(got))
    if resumed and not a.closed:
        assert len(got) + lost == said


def test_frames_are_read_back_whole() -> None:
    from kite_kernel.core.websocket import text_frame

    bodies = [b'{"a":1}', b'"' + b"x" * 200 + b'"', b'"' + b"y" * 70_000 + b'"']
    assert len(split_frames(b"".join(map(text_frame, bodies)))) == 3
