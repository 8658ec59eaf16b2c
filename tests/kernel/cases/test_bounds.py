"""Case X-41: every table that a peer can fill has a bound, says so, and is empty again once the peer is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.stage import Stage, stage

REFUSED = {-32600, -32005}


async def leave(on: Stage, name: str) -> None:
    """Let a module go offline for good."""
    await on.peers[name].goodbye()
    await trio.sleep(7)


async def fill(on: Stage, method: str, make: Any, count: int) -> list[dict[str, Any]]:
    """Send many calls at once and return their answers."""
    calls = [{"jsonrpc": "2.0", "id": n, "method": method, "params": make(n)} for n in range(count)]
    await on.b.send_bytes(b"".join(client_frame(json.dumps(call).encode()) for call in calls))
    answers: dict[int, dict[str, Any]] = {}
    while len(answers) < count:
        answers |= {m["id"]: m for m in await on.b.more() if "method" not in m}
    return [answers[n] for n in range(count)]


async def test_x41_subscriptions() -> None:
    async with stage("a", "b") as on:
        chunk = 1_000
        answers = await fill(on, "event.subscribe", lambda n: {"events": [f"s{n}.e{m}" for m in range(chunk)]}, 12)
        codes = [answer["error"]["code"] if "error" in answer else 0 for answer in answers]
        assert codes[:10] == [0] * 10
        assert set(codes[10:]) <= REFUSED
        assert "10000" in json.dumps(answers[-1]) or "subscriptions" in json.dumps(answers[-1])
        assert (await on.a.result("event.publish", {"event": "s0.e0", "data": 1}))["delivered"] == 1
        await leave(on, "b")
        assert on.hub.board.topics.count == 0


async def test_x41_methods() -> None:
    async with stage("a", "b") as on:
        chunk = 2_000
        answers = await fill(on, "registry.register", lambda n: {"methods": [f"m{n}x{m}" for m in range(chunk)]}, 6)
        codes = [answer["error"]["code"] if "error" in answer else 0 for answer in answers]
        assert codes[:4] == [0] * 4
        assert codes[-1] in REFUSED
        await leave(on, "b")
        assert "b" not in on.hub.board.peers


async def test_x41_retained_names() -> None:
    async with stage("a", "b") as on:
        answers = await fill(on, "event.publish", lambda n: {"event": f"r.n{n}", "data": n, "retain": True}, 10_050)
        codes = [answer["error"]["code"] if "error" in answer else 0 for answer in answers]
        assert codes[:10_000] == [0] * 10_000
        assert set(codes[10_000:]) <= REFUSED
        await on.a.result("event.subscribe", {"events": ["r.n7"]})
        assert (await on.a.event("r.n7"))["data"] == 7


async def test_x41_retained_bytes() -> None:
    async with stage("b") as on:
        text = "x" * 900_000
        codes = []
        for n in range(80):
            answer = await on.b.call("event.publish", {"event": f"r.n{n}", "data": text, "retain": True})
            codes.append(answer["error"]["code"] if "error" in answer else 0)
        assert codes[0] == 0
        assert codes[-1] in REFUSED


async def test_x41_idempotency_keys_let_the_oldest_go() -> None:
    async with stage("a", "b") as on:
        await on.a.result("event.subscribe", {"events": ["k.>"]})
        answers = await fill(on, "event.publish", lambda n: {"event": "k.e", "data": n, "key": f"key{n}"}, 10_100)
        assert all("result" in answer for answer in answers)
        again = {"event": "k.e", "data": "again"}
        await on.a.settle()
        on.a.take()
        await on.b.result("event.publish", again | {"key": "key10099"})
        await on.b.result("event.publish", again | {"key": "key0"})
        await on.a.settle()
        heard = [m["params"]["data"] for m in on.a.take() if m.get("method") == "event"]
        assert heard == ["again"]


@pytest.mark.parametrize("size", [257, 5_000])
async def test_an_id_longer_than_256_bytes_is_no_request(size: int) -> None:
    async with stage("a", "b") as on:
        await on.b.send({"jsonrpc": "2.0", "id": "i" * size, "method": "a.echo", "params": {}})
        error = (await on.b.until(lambda m: "error" in m))["error"]
        assert error["code"] == -32600
        await on.b.send({"jsonrpc": "2.0", "id": "i" * 250, "method": "kernel.info"})
        await on.b.until(lambda m: "result" in m)


async def test_calls_in_flight_have_a_bound_with_advice() -> None:
    async with stage("a", "b") as on:
        calls = [{"jsonrpc": "2.0", "id": n, "method": "a.never", "params": {}} for n in range(1_100)]
        await on.b.send_bytes(b"".join(client_frame(json.dumps(call).encode()) for call in calls))
        errors = [await on.b.answer_to(n) for n in range(1_024, 1_100)]
        for answer in errors:
            assert answer["error"]["code"] == -32005
            assert answer["error"]["data"]["reason"] == "too_many_in_flight"
            assert answer["error"]["data"]["retry_after"] > 0
        for n in range(1_024):
            await on.b.notify("$/cancelRequest", {"id": n})
        await on.b.settle()
