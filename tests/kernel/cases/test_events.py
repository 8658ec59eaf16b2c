"""Cases W-33 to W-38: events."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.support.raw_peer import is_event
from tests.support.stage import Stage, stage


async def heard_by(on: Stage, name: str) -> list[Any]:
    """Return the data of the events that this peer heard since it was last asked."""
    await on.peers[name].settle()
    return [
        m["params"] for m in on.peers[name].take() if m.get("method") == "event" and m["params"]["source"] != "kernel"
    ]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders.*", ["orders.a"], ["orders", "orders.a.b", "ordersx.a"]),
        ("orders.>", ["orders.a", "orders.a.b"], ["orders", "ordersx.a"]),
        ("a.*.c", ["a.b.c"], ["a.c", "a.b.b.c", "a.b.d"]),
        (">", ["orders", "a.b", "a.b.c.d"], []),
        ("*", ["orders"], ["a.b"]),
        ("a.b", ["a.b"], ["a", "a.b.c", "a.bb"]),
    ],
)
async def test_w33_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": [pattern]})
        for name in (*yes, *no):
            delivered = (await on.c.result("event.publish", {"event": name, "data": name}))["delivered"]
            assert delivered == (1 if name in yes else 0), name
        assert [event["data"] for event in await heard_by(on, "a")] == yes


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", "a.b*", ".a", "a.", "*a", ">a", " ", "a b", "a\n"])
async def test_w33_what_is_no_pattern_subscribes_nothing(pattern: str) -> None:
    async with stage("a", "c") as on:
        error = await on.a.error("event.subscribe", {"events": ["good.x", pattern]})
        assert (error["code"], error["data"]["field"]) == (-32602, "events")
        assert (await on.c.result("event.publish", {"event": "good.x", "data": 1}))["delivered"] == 0


async def test_w34_overlapping_patterns_give_one_copy_and_a_leaver_leaves_nothing() -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["a.*", "a.>", "a.b"]})
        assert set((await on.a.result("event.subscribe", {"events": ["a.b"]}))["events"]) == {"a.*", "a.>", "a.b"}
        assert (await on.c.result("event.publish", {"event": "a.b", "data": 1}))["delivered"] == 1
        await on.a.result("event.unsubscribe", {"events": ["a.>"]})
        assert (await on.c.result("event.publish", {"event": "a.b", "data": 2}))["delivered"] == 1
        assert [event["data"] for event in await heard_by(on, "a")] == [1, 2]
        await on.a.goodbye()
        assert (await on.c.event("module.offline"))["data"]["module_id"] == "a"
        assert (await on.c.result("event.publish", {"event": "a.b", "data": 3}))["delivered"] == 0
        assert on.hub.board.topics.count == 0


async def test_w35_the_answer_to_a_subscribe_precedes_its_first_event_and_an_unsubscribe_is_the_last_word() -> None:
    async with stage("a", "c") as on:
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                while True:
                    await on.c.publish("x.t", 1)

            nursery.start_soon(publish)
            for n in range(250):
                await on.a.ask("event.subscribe", {"events": ["x.t"]}, id=f"on{n}")
                await on.a.ask("event.unsubscribe", {"events": ["x.t"]}, id=f"off{n}")
                if n % 10 == 0:
                    await on.a.answer_to(f"off{n}")
            await on.a.answer_to("off249")
            nursery.cancel_scope.cancel()
        await on.a.settle()
        subscribed, events = False, 0
        for message in map(json.loads, on.a.heard):
            ident = message.get("id")
            if isinstance(ident, str) and ident.startswith(("on", "off")):
                subscribed = ident.startswith("on")
            elif is_event("x.t")(message):
                assert subscribed
                events += 1
        assert events


async def test_w36_one_order_over_publishes_calls_progress_and_answers() -> None:
    async with stage("a", "c") as on:
        await on.a.result("registry.register", {"methods": ["q"]})
        await on.a.result("event.subscribe", {"events": ["x.>"]})
        asked = await on.a.ask("c.slow", {})
        request = await on.c.request("slow")
        before = len(on.a.heard)
        await on.c.publish("x.big", "x" * 700_000)
        called = await on.c.ask("a.q", {})
        await on.c.publish("x.small", "y" * 10)
        await on.c.notify("$/progress", {"id": request["id"], "value": 1})
        await on.c.reply(request, "answer")
        await on.a.answer_to(asked)
        heard = [m for m in map(json.loads, on.a.heard[before:]) if not is_event("system.ping")(m)]
        assert [m["params"]["event"] if m.get("method") == "event" else m.get("method", "answer") for m in heard] == [
            "x.big", "q", "x.small", "$/progress", "answer",
        ]  # fmt: skip
        await on.a.reply(heard[1], None)
        await on.c.answer_to(called)


async def test_w37_a_late_subscriber_gets_the_last_retained_value_once_and_then_all() -> None:
    async with stage("a", "c") as on:
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                number = 0
                while True:
                    await on.c.publish("x.s", number, retain=True)
                    number += 1

            nursery.start_soon(publish)
            await trio.sleep(0.05)
            for n in range(5):
                await on.a.ask("event.subscribe", {"events": ["x.s"]}, id=n)
                await on.a.answer_to(n)
                await trio.sleep(0.02)
                await on.a.result("event.unsubscribe", {"events": ["x.s"]})
            nursery.cancel_scope.cancel()
        turns: list[list[int]] = []
        for message in map(json.loads, on.a.heard):
            if message.get("id") in range(5) and not isinstance(message.get("id"), bool):
                turns.append([])
            elif is_event("x.s")(message):
                turns[-1].append(message["params"]["data"])
        assert len(turns) == 5
        for numbers in turns:
            assert numbers
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_w37_exclude_self_and_null() -> None:
    async with stage("a", "c") as on:
        await on.c.result("event.subscribe", {"events": ["x.>"]})
        await on.c.result("event.publish", {"event": "x.s", "data": 1, "exclude_self": True, "retain": True})
        assert await heard_by(on, "c") == []
        await on.c.result("event.publish", {"event": "x.s", "data": None, "retain": True})
        assert [event["data"] for event in await heard_by(on, "c")] == [None]
        await on.a.result("event.subscribe", {"events": ["x.s"]})
        assert await heard_by(on, "a") == []


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("", -32602, None),
        ("a.*", -32602, None),
        ("a..b", -32602, None),
        ("a.>", -32602, None),
        ("x" * 10_240, -32602, None),
        ("a\nb", -32602, None),
        ("module.offline", -32004, "reserved_event"),
        ("module.shutdown", -32004, "reserved_event"),
        ("system.ping", -32004, "reserved_event"),
    ],
)
async def test_w38_names_that_may_not_be_published_are_heard_by_nobody(
    name: str, code: int, reason: str | None
) -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": [">"]})
        on.a.take()
        error = await on.c.error("event.publish", {"event": name, "data": {"module_id": "a"}})
        assert (error["code"], error["data"]["outcome"]) == (code, "not_sent")
        assert reason in (None, error["data"]["reason"])
        await on.c.notify("event.publish", {"event": name, "data": {"module_id": "a"}})
        await on.c.settle()
        await on.a.settle()
        assert [m for m in on.a.take() if m.get("method") == "event" and m["params"]["event"] == name] == []


async def test_w38_two_spellings_are_two_events() -> None:
    composed, decomposed = "x.\u00e9", "x.e\u0301"
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": [composed]})
        assert (await on.c.result("event.publish", {"event": decomposed, "data": 1}))["delivered"] == 0
        assert (await on.c.result("event.publish", {"event": composed, "data": 2}))["delivered"] == 1
        assert [(event["event"], event["data"]) for event in await heard_by(on, "a")] == [(composed, 2)]
