"""Patterns, audiences, permissions. Source: 10 §5, cases W-33 to W-38, X-19, X-20."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pure_hub import PureHub

from kite_kernel.core.peer import Lane, Peer
from kite_kernel.core.permissions import Permissions, overlaps
from kite_kernel.core.quality import Pulse
from kite_kernel.core.registry import State
from kite_kernel.core.topics import Topics, is_event_name, is_pattern, matches

SEGMENT = st.sampled_from(["a", "b", "é", "e\u0301", "x1"])
NAMES = st.lists(SEGMENT, min_size=1, max_size=4).map(".".join)
PATTERNS = st.lists(st.one_of(SEGMENT, st.just("*")), min_size=1, max_size=4).flatmap(
    lambda head: st.sampled_from([".".join(head), ".".join([*head, ">"]), ">"])
)


@pytest.mark.parametrize(
    ("pattern", "heard", "unheard"),
    [
        ("orders.*", ["orders.a"], ["orders", "orders.a.b"]),
        ("orders.>", ["orders.a", "orders.a.b"], ["orders", "ordersx.a"]),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.b.c"]),
        (">", ["a", "a.b.c"], []),
        ("é.x", ["é.x"], ["e\u0301.x"]),
    ],
)
def test_patterns_cover_what_they_say(pattern: str, heard: list[str], unheard: list[str]) -> None:
    assert is_pattern(pattern)
    assert all(matches(pattern, name) for name in heard)
    assert not any(matches(pattern, name) for name in unheard)


@pytest.mark.parametrize(
    "wrong", ["", ".", "a..b", "a.>.b", "a.b*", "*a", "a.b>", "a b", "a\nb", ".a", "a.", "x" * 257]
)
def test_strange_patterns_are_none(wrong: str) -> None:
    assert not is_pattern(wrong)
    assert not is_event_name(wrong)


@pytest.mark.parametrize("wild", ["a.*", ">", "*"])
def test_a_wildcard_is_no_event_name(wild: str) -> None:
    assert not is_event_name(wild)


def peer(name: str) -> Peer:
    return Peer(name, "module", State.READY, Pulse())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), PATTERNS, st.booleans()), max_size=40),
    st.lists(NAMES, min_size=1, max_size=6),
)
def test_the_index_agrees_with_plain_matching(steps: list[tuple[bool, int, str, bool]], names: list[str]) -> None:
    topics, peers = Topics(), [peer(f"p{n}") for n in range(4)]
    model: list[dict[str, Lane | None]] = [{} for _ in peers]
    for adds, who, pattern, laned in steps:
        if adds and pattern not in model[who]:
            model[who][pattern] = Lane(pattern, "latest", 5) if laned else None
            topics.add(peers[who], pattern, model[who][pattern])
        elif not adds and pattern in model[who]:
            del model[who][pattern]
            topics.remove(peers[who], pattern)
        name = names[who % len(names)]
        plain, laned_found = topics.audience(name)
        hits = [[lane for p, lane in rows.items() if matches(p, name)] for rows in model]
        assert {p.id for p in plain} == {peers[n].id for n, rows in enumerate(hits) if rows and None in rows}
        assert {p.id for p, _ in laned_found} == {
            peers[n].id for n, rows in enumerate(hits) if rows and None not in rows
        }
    for who, rows in enumerate(model):
        for pattern in rows:
            topics.remove(peers[who], pattern)
    assert topics.count == 0
    assert topics._tree.empty
    assert not topics._exact


@given(PATTERNS, PATTERNS, NAMES)
def test_overlap_is_never_denied_where_a_name_shows_it(one: str, other: str, name: str) -> None:
    if matches(one, name) and matches(other, name):
        assert overlaps(one, other)
        assert overlaps(other, one)


def test_disjoint_patterns_do_not_overlap() -> None:
    assert not overlaps("b.>", "c.x")
    assert not overlaps("b.*", "b.x.y")
    assert overlaps("b.>", ">")


def test_a_list_denies_all_that_is_not_on_it() -> None:
    rights = Permissions(call=("c.read",), publish=("b.>",), subscribe=("b.>",))
    assert rights.may_call("c.read")
    assert not rights.may_call("c.write")
    assert rights.may_publish("b.x")
    assert not rights.may_publish("c.x")
    assert rights.may_subscribe(">")
    assert not rights.may_subscribe("c.x")
    assert Permissions().may_call("anything.at_all")


# --- through the hub ---


def test_one_copy_whatever_the_number_of_patterns() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["a.*", "a.>", "a.b", "a.b"]), hub.ready("c")
    assert c.ask("event.publish", {"event": "a.b", "data": 1})["result"] == {"delivered": 1}
    assert len(a.events("a.b")) == 1
    assert a.ask("event.unsubscribe", {"events": ["a.>"]})["result"] == {"events": ["a.*", "a.b"]}
    assert c.ask("event.publish", {"event": "a.b", "data": 1})["result"] == {"delivered": 1}
    a.cut(clean=True)
    hub.sleep(6)
    assert hub.core.board.topics.count == 0


def test_a_subscribes_answer_precedes_its_first_event_and_the_retained_value_comes_once() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    c.say("x.s", "old", retain=True)
    c.say("x.s", "new", retain=True)
    a.send({"jsonrpc": "2.0", "id": 1, "method": "event.subscribe", "params": {"events": ["x.*", "x.s"]}})
    c.say("x.s", "live")
    rows = a.frames()
    assert rows[0]["id"] == 1
    assert [row["params"]["data"] for row in rows[1:]] == ["new", "live"]
    a.ask("event.subscribe", {"events": ["x.s"]})
    a.ask("event.subscribe", {"events": [">"]})
    assert a.events("x.s") == []
    c.say("x.s", None, retain=True)
    b = hub.ready("b")
    b.ask("event.subscribe", {"events": ["x.s"]})
    assert b.events("x.s") == []


def test_exclude_self_leaves_out_just_the_sender() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.>"]), hub.ready("c", events=["x.>"])
    assert c.ask("event.publish", {"event": "x.y", "exclude_self": True})["result"] == {"delivered": 1}
    assert len(a.events("x.y")) == 1
    assert c.events("x.y") == []


def test_retained_values_are_bounded() -> None:
    hub = PureHub()
    c = hub.ready("c")
    for n in range(10_000):
        c.say(f"x.n{n}", 1, retain=True)
    refused = c.ask("event.publish", {"event": "x.more", "data": 1, "retain": True})["error"]
    assert (refused["code"], refused["data"]["outcome"]) == (-32005, "not_sent")
    assert "result" in c.ask("event.publish", {"event": "x.n5", "data": 2, "retain": True})
    c.say("x.n5", None, retain=True)
    assert "result" in c.ask("event.publish", {"event": "x.more", "data": 1, "retain": True})


@pytest.mark.parametrize("name", ["", "a.*", "a..b", "x" * 10_000])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    c = PureHub().ready("c")
    error = c.ask("event.publish", {"event": name})["error"]
    assert (error["code"], error["data"]["field"]) == (-32602, "event")


@pytest.mark.parametrize("name", ["module.offline", "module.shutdown", "system.ping"])
def test_the_kernels_own_events_are_nobody_elses(name: str) -> None:
    hub = PureHub()
    a, b = hub.ready("a", events=[">"]), hub.ready("b")
    error = b.ask("event.publish", {"event": name, "source": "kernel"})["error"]
    assert (error["code"], error["data"]["reason"], error["data"]["outcome"]) == (-32004, "reserved_event", "not_sent")
    assert a.frames() == []


def test_data_passes_as_bytes_by_name_and_by_position() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.y"]), hub.ready("c")
    a.raw = b""
    c.send('{"jsonrpc":"2.0","method":"event.publish","params":{"event":"x.y","data":{"z":1.10, "w":1e400}}}')
    c.send('{"jsonrpc":"2.0","method":"event.publish","params":["x.y", {"z":1.10, "w":1e400}]}')
    assert a.raw.count(b'"data":{"z":1.10, "w":1e400}') == 2


def test_a_key_makes_a_publish_count_once() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.y"]), hub.ready("c")
    answers = [c.ask("event.publish", {"event": "x.y", "key": "k2"})["result"] for _ in range(3)]
    assert answers == [{"delivered": 1}] * 3
    assert len(a.events("x.y")) == 1
    assert c.ask("event.publish", {"event": "x.y", "key": "k" * 300})["error"]["data"]["field"] == "key"


@pytest.mark.parametrize("params", [{}, {"events": "a.b"}, {"events": [1]}, {"events": ["a..b"]}])
def test_a_wrong_subscribe_changes_nothing_and_a_notification_says_nothing(params: dict[str, object]) -> None:
    hub = PureHub()
    a = hub.ready("a", events=["x.y"])
    error = a.ask("event.subscribe", params)["error"]
    assert (error["code"], error["data"]["field"]) == (-32602, "events")
    a.send({"jsonrpc": "2.0", "method": "event.subscribe", "params": params})
    assert a.frames() == []
    assert list(hub.core.board.peers["a"].subscriptions) == ["x.y"]


def test_permissions_hold_at_delivery_and_change_live() -> None:
    lists = {"call": ["c.read"], "publish": ["b.>"], "subscribe": ["b.>"]}
    hub = PureHub({"permissions": {"b": lists}})
    c = hub.ready("c", methods=["read", "write"])
    c.say("c.x", "kept", retain=True)
    b = hub.ready("b")
    for method, params in [
        ("c.write", {}),
        ("event.publish", {"event": "c.x"}),
        ("event.subscribe", {"events": ["c.x"]}),
        ("kernel.drain", {}),
    ]:
        error = b.ask(method, params)["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32004, "not_sent")
    assert "result" in b.ask("event.subscribe", {"events": [">"]})
    c.say("c.x", "live")
    c.say("b.x", "fine")
    assert [row["params"]["event"] for row in b.frames()] == ["b.x"]
    hub.core.use_config(hub.config.settings, {"b": Permissions(subscribe=("c.>",))})
    c.say("b.x", "no more")
    c.say("c.x", "now")
    assert [row["params"]["event"] for row in b.frames()] == ["c.x"]


@pytest.mark.parametrize("number", [1, 10_000])
def test_the_number_of_patterns_is_bounded_and_does_not_slow(number: int) -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    assert "result" in a.ask("event.subscribe", {"events": [f"k{n}.*.x" for n in range(number)]})
    if number == 10_000:
        error = a.ask("event.subscribe", {"events": ["one.more"]})["error"]
        assert (error["code"], error["data"]["reason"]) == (-32600, "too_many_subscriptions")
    c.say("k0.y.x", 1)
    assert len(a.events("k0.y.x")) == 1
