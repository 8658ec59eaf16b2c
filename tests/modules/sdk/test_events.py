"""Patterns and bounded subscriptions. Source: spec 10-wire §5 and §7, case W-33."""

from __future__ import annotations

import pytest

from kite_modules.sdk.events import Dispatcher, Event, Subscription, check_pattern, matches
from kite_modules.sdk.frames import EventParams, read_frame


def params(name: str, data: bytes = b"1") -> EventParams:
    text = f'{{"jsonrpc":"2.0","method":"event","params":{{"event":"{name}","data":{data.decode()},"source":"s"}}}}'
    frame = read_frame(text)
    assert isinstance(frame, EventParams)
    return frame


@pytest.mark.parametrize(
    ("pattern", "hears", "not_"),
    [
        ("orders.*", ["orders.a"], ["orders", "orders.a.b"]),
        ("orders.>", ["orders.a", "orders.a.b"], ["orders", "ordersx.a"]),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.c.d"]),
        (">", ["a", "a.b"], []),
        ("*", ["a"], ["a.b"]),
        ("a.b", ["a.b"], ["a", "a.b.c", "A.b"]),
    ],
)
def test_a_pattern_hears_what_it_says(pattern: str, hears: list[str], not_: list[str]) -> None:
    assert all(matches(pattern, name) for name in hears)
    assert not any(matches(pattern, name) for name in not_)


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", "a.b*", ">.a", ".a", "a.", "a.b>"])
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        check_pattern(pattern)


async def test_a_full_subscription_drops_the_oldest_and_says_how_many() -> None:
    subscription = Subscription(["x"], queue_max=3)
    for number in range(10):
        subscription.offer(params("x", str(number).encode()))
    got = [(await anext(subscription)) for _ in range(3)]
    assert [event.data for event in got] == [7, 8, 9]
    assert [event.lost for event in got] == [7, 0, 0]
    assert subscription.dropped == 7


async def test_a_gap_at_the_kernel_is_told_with_the_next_event() -> None:
    subscription = Subscription(["x"])
    dispatcher = Dispatcher()
    dispatcher.add(subscription)
    dispatcher.gap("x", 5)
    dispatcher.gap("other", 9)
    dispatcher.dispatch(params("x"))
    dispatcher.dispatch(params("x"))
    assert [(await anext(subscription)).lost for _ in range(2)] == [5, 0]


def test_each_event_reaches_each_listener_once() -> None:
    dispatcher = Dispatcher()
    both, other = Subscription(["a.*", "a.>"]), Subscription(["b"])
    dispatcher.add(both)
    dispatcher.add(other)
    dispatcher.dispatch(params("a.x"))
    dispatcher.dispatch(params("b"))
    assert (len(both._queue), len(other._queue)) == (1, 1)


def test_only_patterns_that_nobody_wants_are_given_up() -> None:
    dispatcher = Dispatcher()
    first, second = Subscription(["a", "b"]), Subscription(["b", "c"])
    dispatcher.add(first)
    dispatcher.add(second)
    assert dispatcher.remove(first) == ["a"]
    assert dispatcher.remove(second) == ["b", "c"]


def test_wishes_are_grouped_by_policy_and_never_empty() -> None:
    dispatcher = Dispatcher()
    assert dispatcher.wishes() == [{"events": []}]
    dispatcher.add(Subscription(["a"]))
    dispatcher.add(Subscription(["b"], policy="latest"))
    assert dispatcher.wishes() == [{"events": ["a"]}, {"events": ["b"], "policy": "latest"}]


def test_many_names_do_not_grow_the_dispatcher() -> None:
    dispatcher = Dispatcher()
    dispatcher.add(Subscription([">"], queue_max=1))
    for number in range(5000):
        dispatcher.dispatch(params(f"n.{number}"))
    assert len(dispatcher._cache) <= 1000


def test_an_event_decodes_late_and_into_classes() -> None:
    class Order:
        pass

    event = Event(params("x", b'{"id":7}'))
    assert event.data == {"id": 7}
    assert event.into(dict[str, int]) == {"id": 7}
    assert "x" in repr(event)
    with pytest.raises(ValueError, match="range"):
        _ = Event(params("x", b"1e400")).data
