"""Cases W-11 to W-26: ids, batches, the life of a call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.raw_peer import RawPeer, is_event
from tests.support.stage import Stage, stage

if TYPE_CHECKING:
    from collections.abc import Callable

OFFLINE, LOST, DEADLINE, FORBIDDEN, OVERLOADED, CANCELLED = -32001, -32002, -32003, -32004, -32005, -32800


def verdict(answer: dict[str, Any]) -> tuple[int, str]:
    """Return code and outcome of an error answer; every error of the kernel has a reason."""
    error = answer["error"]
    assert error["data"]["reason"]
    return error["code"], error["data"]["outcome"]


def requests_in(messages: list[Any]) -> list[Any]:
    return [m for m in messages if isinstance(m, dict) and "id" in m and "method" in m]


async def test_w11_every_answer_has_its_id_in_its_own_spelling() -> None:
    ids = [b"1", b"1.0", b'"1"', b"1e3", b"1000", b"9007199254740992", b"9007199254740993", b"3.14", b'""', b"0", b"-0"]
    async with stage("a", "c") as on:
        for number, ident in enumerate(ids):
            await on.a.send(b'{"jsonrpc":"2.0","id":%b,"method":"c.echo","params":[%d]}' % (ident, number))
        requests = [await on.c.request("echo") for _ in ids]
        assert len({json.dumps(request["id"]) for request in requests}) == len(ids)
        for request in reversed(requests):
            await on.c.reply(request, request["params"][0])
        for _ in ids:
            await on.a.until(lambda m: "result" in m)
        answers = [text for text in on.a.heard if b'"result":' in text][-len(ids) :]
        got = {}
        for text in answers:
            ident, _, rest = text.removeprefix(b'{"jsonrpc":"2.0","id":').partition(b',"result":')
            got[ident] = int(rest[:-1])
        assert got == {ident: number for number, ident in enumerate(ids)}


async def test_w12_the_same_id_twice_in_flight_is_refused_and_the_first_unharmed() -> None:
    async with stage("a", "c") as on:
        await on.a.ask("c.echo", {"n": 1}, id=5)
        first = await on.c.request("echo")
        assert verdict(await on.a.call("c.echo", {"n": 2}, id=5)) == (-32600, "not_sent")
        await on.c.reply(first, "first")
        assert (await on.a.answer_to(5))["result"] == "first"
        await on.a.ask("c.echo", {"n": 3}, id=5)
        again = await on.c.request("echo")
        assert again["params"] == {"n": 3}
        await on.c.reply(again, "again")
        assert (await on.a.answer_to(5))["result"] == "again"
        assert requests_in(on.c.take()) == []


async def test_w13_batches_empty_wrong_silent_mixed() -> None:
    async with stage("a", "c") as on:
        await on.a.send("[]")
        answer = await on.a.until(lambda m: isinstance(m, dict) and "error" in m)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        await on.a.send("[1]")
        (one,) = await on.a.until(lambda m: isinstance(m, list))
        assert (one["error"]["code"], one["id"]) == (-32600, None)
        note = {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "x.y", "data": 1}}
        await on.a.send([note, note])
        await on.a.settle()
        assert [m for m in on.a.take() if isinstance(m, list) or "error" in m] == []
        await on.a.send([{"jsonrpc": "2.0", "id": 1, "method": "c.echo", "params": {}}, note, {"foo": 1}])
        await on.c.reply(await on.c.request("echo"), "yes")
        two = await on.a.until(lambda m: isinstance(m, list))
        assert len(two) == 2
        assert {json.dumps(item.get("id")) for item in two} == {"1", "null"}
        assert next(item for item in two if item.get("id") == 1)["result"] == "yes"


async def test_w13_a_batch_over_the_limit_executes_nothing() -> None:
    async with stage("a", "c") as on:
        call = '{"jsonrpc":"2.0","id":%d,"method":"c.ok"}'
        await on.a.send("[" + ",".join(call % n for n in range(10_001)) + "]")
        answer = await on.a.until(lambda m: isinstance(m, dict) and "error" in m)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        assert "1000" in json.dumps(answer)
        await on.c.settle()
        assert requests_in(on.c.take()) == []


async def test_w14_a_batch_is_one_array_and_holds_nobody_up() -> None:
    async with stage("a", "c") as on:
        began = trio.current_time()
        await on.a.send(
            [
                {"jsonrpc": "2.0", "id": 1, "method": "c.ok", "params": {}},
                {"jsonrpc": "2.0", "id": 2, "method": "c.never", "params": {}, "meta": {"timeout": 1}},
                {"jsonrpc": "2.0", "id": 3, "method": "d.x", "params": {}},
            ]
        )
        await on.c.reply(await on.c.request("ok"), "fast")
        await on.c.request("never")
        ident = await on.a.ask("c.echo", {})
        await on.c.reply(await on.c.request("echo"), "meanwhile")
        assert (await on.a.answer_to(ident))["result"] == "meanwhile"
        assert trio.current_time() - began < 0.9
        answers = {item["id"]: item for item in await on.a.until(lambda m: isinstance(m, list))}
        assert 0.9 < trio.current_time() - began < 3
        assert answers[1]["result"] == "fast"
        assert verdict(answers[2]) == (DEADLINE, "unknown")
        assert verdict(answers[3]) == (OFFLINE, "not_sent")


async def test_w15_who_is_not_ready_is_said_at_once() -> None:
    async with stage("a", "c") as on:
        await on.connect("f")
        g = await on.connect("g")
        await g.result("event.subscribe", {"events": []})
        await g.result("registry.register", {"methods": ["x"]})
        began = trio.current_time()
        for target, state in (("e", "offline"), ("d", "offline"), ("f", "connected"), ("g", "registered")):
            answer = await on.a.call(f"{target}.x", {})
            assert verdict(answer) == (OFFLINE, "not_sent")
            data = answer["error"]["data"]
            assert (data["module_id"], data["state"]) == (target, state)
            assert "since" in data
        answer = await on.a.call("c.ehco", {})
        assert verdict(answer) == (-32601, "not_sent")
        assert "c.echo" in json.dumps(answer["error"]["data"])
        assert trio.current_time() - began < 0.5
        await on.c.settle()
        assert requests_in(on.c.take()) == []


async def leave_by_close(peer: RawPeer, on: Stage) -> None:
    await peer.goodbye()


async def leave_by_word(peer: RawPeer, on: Stage) -> None:
    await peer.publish("module.exiting", {"reason": "done"})
    await peer.cut()


async def leave_as_another(peer: RawPeer, on: Stage) -> None:
    await peer.cut()
    await on.connect("c", "i2")


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_word, leave_as_another])
async def test_w16_calls_in_the_hands_of_a_process_that_is_known_gone_end_at_once(leave: Callable[..., Any]) -> None:
    async with stage("a", "c") as on:
        ids = [await on.a.ask("c.slow", {}) for _ in range(20)]
        for _ in ids:
            await on.c.request("slow")
        began = trio.current_time()
        await leave(on.c, on)
        for ident in ids:
            assert verdict(await on.a.answer_to(ident)) == (LOST, "unknown")
        assert trio.current_time() - began < 1


async def test_w16_after_a_cut_they_end_with_the_debounce_and_later_calls_were_never_sent() -> None:
    async with stage("a", "c") as on:
        ids = [await on.a.ask("c.slow", {}) for _ in range(20)]
        for _ in ids:
            await on.c.request("slow")
        began = trio.current_time()
        await on.c.cut()
        await trio.sleep(0.5)
        later = await on.a.ask("c.slow", {})
        for ident in ids:
            assert verdict(await on.a.answer_to(ident)) == (LOST, "unknown")
        assert 4.5 < trio.current_time() - began < 8
        assert verdict(await on.a.answer_to(later)) == (OFFLINE, "not_sent")
        await on.a.settle()
        assert [m for m in on.a.take() if "error" in m] == []


async def test_w17_a_callee_is_told_when_its_callers_are_gone_for_good() -> None:
    async with stage("c") as on:
        names = {f"m{n}": f"token-of-m{n}-0123456789" for n in range(100)}
        on.set_tokens(**names)
        for name in names:
            await (await on.connect(name, None)).ask("c.slow", {})
        requests = [await on.c.request("slow") for _ in names]
        for name in names:
            await on.peers[name].cut()
        cancelled = {(await on.c.notice("$/cancelRequest"))["id"] for _ in names}
        assert cancelled == {request["id"] for request in requests}
        for request in requests:
            await on.c.reply(request, "late")
        await on.c.settle()
        assert [m for m in on.c.take() if m.get("method") == "$/cancelRequest" or "error" in m] == []


async def test_w18_only_the_first_answer_of_the_one_who_was_asked_counts() -> None:
    async with stage("a", "b", "c") as on:
        ident = await on.a.ask("c.echo", {})
        request = await on.c.request("echo")
        for forged in (request["id"], str(request["id"]), 999_999):
            await on.b.send({"jsonrpc": "2.0", "id": forged, "result": "forged"})
            await on.b.send({"jsonrpc": "2.0", "id": forged, "error": {"code": 1, "message": "forged"}})
        await on.b.settle()
        await on.c.send({"jsonrpc": "2.0", "id": 999_999, "result": "nobody asked"})
        await on.c.reply(request, "first")
        await on.c.reply(request, "second")
        assert (await on.a.answer_to(ident))["result"] == "first"
        for peer in (on.a, on.b, on.c):
            await peer.settle()
        assert [m for m in on.a.take() if "result" in m or "error" in m] == []


@pytest.mark.parametrize(
    "members",
    [
        {"result": 1, "error": {"code": 1, "message": "x"}},
        {},
        {"error": {"message": "no code"}},
        {"error": "text"},
        {"error": {"code": 1.5, "message": "x"}},
        {"error": {"code": 1, "message": 5}},
    ],
)
async def test_w19_an_answer_that_is_none_ends_the_call_as_unknown(members: dict[str, Any]) -> None:
    async with stage("a", "c") as on:
        ident = await on.a.ask("c.echo", {})
        request = await on.c.request("echo")
        await on.c.send({"jsonrpc": "2.0", "id": request["id"]} | members)
        assert verdict(await on.a.answer_to(ident)) == (-32603, "unknown")
        await on.c.reply(request, "too late")
        await on.a.settle()
        assert [m for m in on.a.take() if m.get("id") == ident] == []


async def test_w19_an_error_of_the_callee_passes_untouched() -> None:
    async with stage("a", "c") as on:
        await on.a.ask("c.echo", {}, id=1)
        request = await on.c.request("echo")
        error = b'{"code":7, "message":"m\\u0061", "data":{"x":1e400}}'
        await on.c.send(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (json.dumps(request["id"]).encode(), error))
        await on.a.answer_to(1)
        assert on.a.heard[-1].endswith(b'"error":' + error + b"}")


async def test_w20_fifty_thousand_calls_with_tiny_deadlines_end_once_each() -> None:
    async with stage("a", "c") as on:
        count = 50_000
        text = '{"jsonrpc":"2.0","id":%d,"method":"c.never","params":{},"meta":{"timeout":0.005}}'
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                for first in range(0, count, 500):
                    texts = (text % n for n in range(first, first + 500))
                    await on.a.send_bytes(b"".join(client_frame(one.encode()) for one in texts))

            nursery.start_soon(ask)
            ended: dict[int, tuple[int, str]] = {}
            with trio.fail_after(60):
                while len(ended) < count:
                    for answer in await on.a.more():
                        if "error" not in answer:
                            continue
                        assert answer["id"] not in ended
                        ended[answer["id"]] = verdict(answer)
                        if ended[answer["id"]][0] == OVERLOADED:
                            assert answer["error"]["data"]["retry_after"] > 0
        assert set(ended.values()) <= {(DEADLINE, "unknown"), (OVERLOADED, "not_sent")}
        await on.c.settle()
        taken = on.c.take()
        assert {m["params"]["id"] for m in taken if m.get("method") == "$/cancelRequest"} == {
            m["id"] for m in requests_in(taken)
        }
        assert len(requests_in(taken)) == sum(code == DEADLINE for code, _ in ended.values())


async def test_w21_a_cancelled_call_ends_once_with_its_result_or_as_cancelled() -> None:
    async with stage("a", "c") as on:
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                while True:
                    request = await on.c.request("slow", 1000)
                    nursery.start_soon(answer, request)

            async def answer(request: dict[str, Any]) -> None:
                await trio.sleep(0.020)
                await on.c.reply(request, "done")
                await on.c.notify("$/progress", {"id": request["id"], "value": "late"})

            nursery.start_soon(serve)
            finals: dict[Any, list[Any]] = {}
            for n in range(150):
                await on.a.ask("c.slow", {}, id=n)
                await trio.sleep(0.001 * (n * 7 % 41))
                await on.a.notify("$/cancelRequest", {"id": n})
                await on.a.notify("$/cancelRequest", {"id": "unknown"})
            for n in range(150):
                finals[n] = [await on.a.answer_to(n)]
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        await on.a.settle()
        assert [m for m in on.a.take() if m.get("method") == "$/progress" or "error" in m or "result" in m] == []
        codes = [answer["error"]["code"] if "error" in answer else 0 for (answer,) in finals.values()]
        assert set(codes) == {0, CANCELLED}


async def test_w22_a_call_into_the_debounce_is_held_or_refused_as_asked() -> None:
    async with stage("a", "c") as on:
        await on.c.cut()
        await on.a.settle()
        began = trio.current_time()
        held = await on.a.ask("c.echo", {"n": 1})
        assert verdict(await on.a.call("c.echo", {"n": 2}, meta={"wait": False})) == (OFFLINE, "not_sent")
        assert trio.current_time() - began < 0.5
        assert verdict(await on.a.call("c.echo", {"n": 3}, meta={"timeout": 1})) == (DEADLINE, "not_sent")
        assert 0.9 < trio.current_time() - began < 2.5
        await trio.sleep_until(began + 3)
        await on.connect("c")
        request = await on.c.request("echo")
        assert request["params"] == {"n": 1}
        await on.c.reply(request, "held")
        assert (await on.a.answer_to(held))["result"] == "held"
        await on.c.settle()
        assert requests_in(on.c.take()) == []


async def test_w23_calls_in_circles_end_and_answers_are_never_held_up() -> None:
    async with stage("a", "c") as on:
        await on.a.result("registry.register", {"methods": ["x"]})
        depth = 20

        async def serve(peer: RawPeer, other: str) -> None:
            async with trio.open_nursery() as inner:
                while True:
                    request = await peer.until(lambda m: "id" in m and m.get("method") in ("x", "slow"), 1000)
                    inner.start_soon(work, peer, other, request)

        async def work(peer: RawPeer, other: str, request: dict[str, Any]) -> None:
            left = request["params"]["left"]
            if left:
                answer = await peer.call(other, {"left": left - 1})
                await peer.reply(request, answer.get("result", answer.get("error", {}).get("code")))
            else:
                await peer.reply(request, "bottom")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, on.a, "c.slow")
            nursery.start_soon(serve, on.c, "a.x")
            await on.connect("b")
            answers = []
            async with trio.open_nursery() as asking:

                async def ask() -> None:
                    answers.append(await on.b.call("a.x", {"left": depth}))

                for _ in range(20):
                    asking.start_soon(ask)
            assert [answer["result"] for answer in answers] == ["bottom"] * 20
            nursery.cancel_scope.cancel()


async def test_w24_progress_goes_to_the_caller_alone_and_in_order() -> None:
    async with stage("a", "b", "c") as on:
        ident = await on.a.ask("c.slow", {})
        request = await on.c.request("slow")
        await on.b.notify("$/progress", {"id": request["id"], "value": "forged"})
        await on.b.settle()
        for n in range(5):
            await on.c.notify("$/progress", {"id": request["id"], "value": n})
        await on.c.reply(request, "done")
        await on.c.notify("$/progress", {"id": request["id"], "value": "late"})
        await on.c.settle()
        assert (await on.a.answer_to(ident))["result"] == "done"
        await on.a.settle()
        told = [m["params"] for m in map(json.loads, on.a.heard) if m.get("method") == "$/progress"]
        assert told == [{"id": ident, "value": n} for n in range(5)]
        order = [m for m in map(json.loads, on.a.heard) if m.get("method") == "$/progress" or m.get("id") == ident]
        assert order[-1]["result"] == "done"


async def test_w25_an_idempotency_key_makes_a_call_run_once_with_equal_answers() -> None:
    async with stage("a", "b", "c") as on:
        first = await on.a.ask("c.echo", {"pay": 1}, meta={"key": "k1"})
        second = await on.a.ask("c.echo", {"pay": 1}, meta={"key": "k1"})
        request = await on.c.request("echo")
        await on.c.reply(request, {"receipt": 1})
        answers = [(await on.a.answer_to(ident))["result"] for ident in (first, second)]
        answers.append(await on.a.result("c.echo", {"pay": 1}, meta={"key": "k1"}))
        assert answers == [{"receipt": 1}] * 3
        await on.c.settle()
        assert requests_in(on.c.take()) == []
        other = await on.b.ask("c.echo", {"pay": 1}, meta={"key": "k1"})
        await on.c.reply(await on.c.request("echo"), "b's own")
        assert (await on.b.answer_to(other))["result"] == "b's own"


async def test_w25_an_idempotency_key_makes_a_publish_count_once() -> None:
    async with stage("a", "c") as on:
        await on.c.result("event.subscribe", {"events": ["x.>"]})
        one = await on.a.result("event.publish", {"event": "x.y", "data": 1, "key": "k2"})
        two = await on.a.result("event.publish", {"event": "x.y", "data": 1, "key": "k2"})
        assert one == two == {"delivered": 1}
        await on.c.settle()
        assert len([m for m in on.c.take() if is_event("x.y")(m)]) == 1


@pytest.mark.parametrize("params", ["7", '"x"', "true", "null"])
async def test_w26_params_that_are_no_structure_are_no_request(params: str) -> None:
    async with stage("a", "c") as on:
        await on.a.send(f'{{"jsonrpc":"2.0","id":1,"method":"c.echo","params":{params}}}')
        assert (await on.a.answer_to(1))["error"]["code"] == -32600
        await on.c.settle()
        assert requests_in(on.c.take()) == []


@pytest.mark.parametrize("params", [{}, {"events": "a.b"}, {"events": [1]}])
async def test_w26_wrong_params_name_their_member_and_notifications_are_never_answered(params: dict[str, Any]) -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["kept.x"]})
        error = await on.a.error("event.subscribe", params)
        assert (error["code"], error["data"]["field"]) == (-32602, "events")
        await on.a.notify("event.subscribe", params)
        assert (await on.a.result("event.subscribe", {"events": []}))["events"] == ["kept.x"]
        assert [m for m in on.a.take() if "error" in m or m.get("id", 0) is None] == []


@pytest.mark.parametrize(
    "method", ["$/cancelRequest", "$/progress", "$/credit", "$/unknown", "module.shutdown_ack", "system.pong", "event"]
)
async def test_every_request_with_an_id_is_answered_alone_and_in_a_batch(method: str) -> None:
    async with stage("a", "c") as on:
        request = {"jsonrpc": "2.0", "id": "x", "method": method, "params": {"id": 1}}
        await on.a.send(request)
        await on.a.answer_to("x")
        await on.a.send([request, {"jsonrpc": "2.0", "id": "y", "method": "kernel.info"}])
        answers = await on.a.until(lambda m: isinstance(m, list))
        assert {item["id"] for item in answers} == {"x", "y"}
        await on.a.send({"jsonrpc": "2.0", "method": method, "params": {"id": 1}})
        await on.a.settle()
        assert [m for m in on.a.take() if "error" in m or "result" in m] == []
