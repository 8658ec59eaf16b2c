"""Cases W-55, W-56 and 10-wire §8: a cut wire loses nothing and repeats nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.raw_peer import RawPeer, is_event
from tests.support.stage import Stage, stage


def received(peer: RawPeer) -> int:
    """Frames that this wire got after its authentication: everything but the answer to `auth`."""
    return len(peer.heard) - 1


async def return_with(on: Stage, name: str, resume: Any) -> RawPeer:
    """Come back as the same process."""
    return await on.connect(name, resume=resume)


def events_in(peer: RawPeer, name: str) -> list[Any]:
    return [m["params"]["data"] for m in map(json.loads, peer.heard) if is_event(name)(m)]


async def test_w55_answers_and_events_of_a_cut_come_once_and_in_order() -> None:
    async with stage("a", "b", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        ids = [await on.a.ask("c.slow", {"n": n}) for n in range(3)]
        requests = [await on.c.request("slow") for _ in ids]
        await on.a.settle()
        old = on.a
        await old.cut()
        for request in requests[:2]:
            await on.c.reply(request, request["params"]["n"])
        for n in range(50):
            await on.c.publish("x.t", n)
        await on.c.settle()
        await trio.sleep(2)
        new = await return_with(on, "a", {"session": old.session["session"], "received": received(old)})
        assert new.session["resumed"] is True
        assert new.session["session"] == old.session["session"]
        assert new.session["state"] == "ready"
        assert [(await new.answer_to(ident))["result"] for ident in ids[:2]] == [0, 1]
        await on.c.reply(requests[2], 2)
        assert (await new.answer_to(ids[2]))["result"] == 2
        await new.settle()
        assert events_in(old, "x.t") + events_in(new, "x.t") == list(range(50))
        order = [m for m in map(json.loads, new.heard) if m.get("id") in ids or is_event("x.t")(m)]
        assert [m.get("id") for m in order[:2]] == ids[:2]
        await on.b.settle()
        assert [m for m in on.b.take() if is_event("module.offline")(m)] == []
        assert len(on.lines("[kernel] a reconnected within debounce window")) == 1


async def test_the_kernels_count_tells_a_module_what_to_send_again() -> None:
    async with stage("a", "c") as on:
        await on.a.settle()
        sent = on.a.sent  # after auth
        await on.a.send_bytes(client_frame(b'{"jsonrpc":"2.0","method":"event.publish"}')[:20])  # torn: never counts
        old = on.a
        await old.cut()
        new = await return_with(on, "a", {"session": old.session["session"], "received": received(old)})
        assert new.session["received"] == sent


async def test_resume_at_any_cut_of_the_wire_delivers_each_event_once() -> None:
    chance = random.Random(8)
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        number = 0
        heard: list[Any] = []
        for _ in range(12):
            for _ in range(chance.randrange(30)):
                await on.c.publish("x.t", number)
                number += 1
            old = on.a
            if chance.random() < 0.5:
                await old.settle()
            await old.cut()
            for _ in range(chance.randrange(30)):
                await on.c.publish("x.t", number)
                number += 1
            heard += events_in(old, "x.t")
            resume = {"session": old.session["session"], "received": old.base + received(old)}
            new = await return_with(on, "a", resume)
            assert new.session["resumed"] is True
            new.base = resume["received"]
        await on.c.settle()
        await on.a.settle()
        heard += events_in(on.a, "x.t")
        assert heard == list(range(number))


@pytest.mark.parametrize("wrong", ["b's session", "unknown", "ahead", "not a session"])
async def test_w56_a_resume_that_cannot_be_is_a_fresh_start_and_fails_the_calls(wrong: str) -> None:
    async with stage("a", "b", "c") as on:
        await on.b.result("event.subscribe", {"events": ["x.t"]})
        ident = await on.a.ask("c.slow", {})
        request = await on.c.request("slow")
        old = on.a
        await old.cut()
        await on.c.publish("x.t", "for b alone")
        resume = {
            "b's session": {"session": on.b.session["session"], "received": 0},
            "unknown": {"session": "nobody's", "received": 3},
            "ahead": {"session": old.session["session"], "received": 10**9},
            "not a session": {"session": "", "received": 0},
        }[wrong]
        new = await return_with(on, "a", resume)
        assert new.session["resumed"] is False
        assert new.session["received"] == 0
        assert new.session["session"] != old.session["session"]
        error = (await new.answer_to(ident))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32002, "unknown")
        await new.settle()
        assert events_in(new, "x.t") == []
        assert (await on.c.notice("$/cancelRequest"))["id"] == request["id"]


async def test_w56_an_overrun_buffer_says_so_and_replays_nothing_in_part() -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        old = on.a
        await old.cut()
        await on.c.settle()
        for n in range(3_000):
            await on.c.publish("x.t", n)
        await on.c.settle()
        new = await return_with(on, "a", {"session": old.session["session"], "received": received(old)})
        assert new.session["resumed"] is False
        await new.settle()
        assert events_in(new, "x.t") == []


@pytest.mark.parametrize("count", [-1, 1.5, "7", 2**63, None, True])
async def test_w56_a_count_that_is_none_is_malformed(count: Any) -> None:
    async with stage("a") as on:
        session = on.a.session["session"]
        await on.a.cut()
        peer = await on.stranger()
        params = {"token": on.tokens["a"], "module_id": "a", "instance": "a-i1", "protocol": 2}
        await peer.ask("auth", params | {"resume": {"session": session, "received": count}})
        assert (await peer.end()).code == 4003


async def test_a_client_without_resume_works_as_before() -> None:
    async with stage("a", "c") as on:
        await on.a.cut()
        await trio.sleep(1)
        new = await on.connect("a")
        assert new.session["resumed"] is False
        assert new.session["state"] == "ready"
        ident = await on.c.ask("a.echo", {})
        await new.reply(await new.request("echo"), "same process")
        assert (await on.c.answer_to(ident))["result"] == "same process"
