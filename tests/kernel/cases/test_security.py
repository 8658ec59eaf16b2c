"""Cases X-06 to X-08, X-14 to X-20 and X-37 to X-43 where they concern the kernel's wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.raw_peer import UPGRADE, head_of, is_event
from tests.support.stage import Stage, stage

from kite_kernel.core.permissions import Permissions

FORBIDDEN = (-32004, "not_sent")


def verdict(error: dict[str, Any]) -> tuple[int, str]:
    assert error["data"]["reason"]
    return error["code"], error["data"]["outcome"]


def bad_tokens(good: str) -> dict[str, dict[str, Any]]:
    return {
        "another's id": {"token": good, "module_id": "b"},
        "empty": {"token": ""},
        "newline": {"token": good + "\n"},
        "capitals": {"token": good.upper()},
        "no ASCII": {"token": "é" * 40},
        "lone surrogate escaped": {"token": "\\ud800"},
        "long": {"token": "x" * 3_900},
        "NUL": {"token": good + "\0"},
    }


async def test_x06_every_bad_token_has_one_text_and_touches_nobody() -> None:
    async with stage("a", "b") as on:
        texts = set()
        for name, params in bad_tokens(on.tokens["a"]).items():
            peer = await on.stranger()
            await peer.ask("auth", params)
            closed = await peer.end()
            assert closed.code == 4001, name
            (answer, *_) = peer.take()
            texts.add((json.dumps(answer["error"]), closed.reason))
        assert len(texts) == 1
        assert on.a.closed is None
        assert on.b.closed is None
        assert [line for line in on.logs if line["log_level"] == "error"] == []


async def test_x08_a_second_auth_changes_nothing_and_is_never_written_down() -> None:
    async with stage("a", "b") as on:
        for token in (on.tokens["a"], on.tokens["b"], "bad-token-canary"):
            error = await on.a.error("auth", {"token": token, "module_id": "b"})
            assert verdict(error) == (-32600, "not_sent")
            assert token not in json.dumps(error)
        stats = await on.a.result("registry.list_modules", {})
        assert {row["module_id"] for row in stats["modules"]} >= {"a", "b"}
        ident = await on.b.ask("a.echo", {})
        await on.a.reply(await on.a.request("echo"), "still a")
        assert (await on.b.answer_to(ident))["result"] == "still a"
        closed = await (await on.operator()).result("kernel.closed", {})
        written = json.dumps([on.logs, closed], default=str)
        assert not any(token[:12] in written for token in (*on.tokens.values(), "bad-token-canary"))


async def test_x09_a_revoked_token_closes_its_wire_and_nobody_elses() -> None:
    async with stage("a", "b", "c") as on:
        ident = await on.a.ask("b.slow", {})
        await on.b.request("slow")
        began = trio.current_time()
        old = on.tokens["b"]
        on.set_tokens(b="a fresh token for b")
        error = (await on.a.answer_to(ident))["error"]
        assert verdict(error) == (-32002, "unknown")
        assert (await on.b.end()).code == 4001
        assert (await on.b.notice("bye"))["verdict"] == "never"
        assert trio.current_time() - began < 1.5
        peer = await on.stranger()
        await peer.ask("auth", {"token": old})
        assert (await peer.end()).code == 4001
        assert on.a.closed is None
        assert on.c.closed is None


@pytest.mark.parametrize("method", ["fact.get", "fact.list", "kernel.drain", "kernel.pending", "kernel.closed"])
async def test_x14_a_module_may_not_administer(method: str) -> None:
    async with stage("b") as on:
        error = await on.b.error(method, {})
        if error["code"] == -32601:
            assert method.startswith("fact.")  # this stage has no stores
        else:
            assert verdict(error) == FORBIDDEN
        assert on.hub.draining is False


@pytest.mark.parametrize("name", ["launcher", "kernel", "operator", "watchdog", "a"])
async def test_x14_a_modules_token_is_good_for_its_own_name_alone(name: str) -> None:
    async with stage("b") as on:
        peer = await on.stranger()
        await peer.ask("auth", {"token": on.tokens["d"], "module_id": name})
        assert (await peer.end()).code == 4001


async def test_x15_answers_and_asides_of_others_change_no_call() -> None:
    async with stage("a", "b", "c") as on:
        ids = [await on.a.ask("c.slow", {"n": n}) for n in range(10)]
        requests = [await on.c.request("slow") for _ in ids]
        async with trio.open_nursery() as nursery:

            async def forge() -> None:
                for first in range(0, 20_000, 500):
                    parts = []
                    for n in range(first, first + 500):
                        parts.append(f'{{"jsonrpc":"2.0","id":{n},"result":"forged"}}')
                        parts.append(f'{{"jsonrpc":"2.0","id":"{n}","result":"forged"}}')
                        parts.append(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{n}}}}}')
                        parts.append(f'{{"jsonrpc":"2.0","method":"$/progress","params":{{"id":{n},"value":0}}}}')
                    await on.b.send_bytes(b"".join(client_frame(part.encode()) for part in parts))

            nursery.start_soon(forge)
        await on.b.settle()
        for request in requests:
            await on.c.reply(request, request["params"]["n"])
        assert [(await on.a.answer_to(ident))["result"] for ident in ids] == list(range(10))
        await on.c.settle()
        assert [m for m in on.c.take() if m.get("method") == "$/cancelRequest"] == []
        assert [m for m in on.a.take() if m.get("method") == "$/progress"] == []


@pytest.mark.parametrize("event", ["module.shutdown", "module.offline", "system.ping"])
async def test_x16_nobody_speaks_for_the_kernel(event: str) -> None:
    async with stage("a", "b") as on:
        error = await on.b.error("event.publish", {"event": event, "data": {"module_id": "a"}, "source": "kernel"})
        assert verdict(error) == FORBIDDEN
        await on.a.result("event.subscribe", {"events": ["x.y"]})
        on.a.take()
        await on.b.notify("event.publish", {"event": "x.y", "data": 1, "source": "kernel"})
        await on.b.settle()
        await on.a.settle()
        heard = [m["params"] for m in on.a.take() if m.get("method") == "event"]
        assert [e["source"] for e in heard if e["event"] == "x.y"] in (["b"], [])
        assert [e for e in heard if e["event"] == event and e["data"].get("module_id") == "a"] == []


async def test_x17_a_name_of_another_is_never_taken() -> None:
    async with stage("a", "b", "c") as on:
        assert verdict(await on.b.error("registry.register", {"methods": ["run"], "service": "c"})) == (
            -32007,
            "not_sent",
        )
        assert (await on.b.error("registry.register", {"methods": ["run"], "service": "kernel"}))["code"] == -32602
        answer = await on.b.call("registry.register", {"methods": ["c.run", "kernel.info"]})
        assert "result" in answer or answer["error"]["code"] == -32602
        error = await on.a.error("c.run", {})
        assert error["code"] == -32601
        assert "version" in await on.a.result("kernel.info", {})
        await on.b.settle()
        assert [m for m in on.b.take() if "id" in m and "method" in m] == []


async def test_x18_the_callee_reads_the_true_caller_and_deadline() -> None:
    async with stage("a", "b") as on:
        await on.ready("c", ["echo"], accepts_meta=True)
        forged = {"caller": "o", "deadline": 9e9, "key": "k", "timeout": 5}
        ident = await on.b.ask("c.echo", {}, meta=forged)
        request = await on.c.request("echo")
        assert request["meta"]["caller"] == "b"
        assert request["meta"]["deadline"] < 8e9
        await on.c.reply(request, "b's")
        assert (await on.b.answer_to(ident))["result"] == "b's"
        ident = await on.a.ask("c.echo", {}, meta={"key": "k"})
        await on.c.reply(await on.c.request("echo"), "a's")
        assert (await on.a.answer_to(ident))["result"] == "a's"


def permit(on: Stage, name: str, **lists: tuple[str, ...] | None) -> None:
    allowed = Permissions(*(lists.get(kind) for kind in ("call", "publish", "subscribe")))
    on.hub.use_config(on.hub.settings, {name: allowed})


async def test_x19_a_list_denies_everything_else() -> None:
    async with stage("a", "c") as on:
        await on.c.result("registry.register", {"methods": ["read", "write"]})
        await on.c.result("event.publish", {"event": "c.x", "data": "retained-canary", "retain": True})
        permit(on, "b", call=("c.read",), publish=("b.>",), subscribe=("b.>",))
        b = await on.ready("b", events=["b.>"])
        assert verdict(await b.error("c.write", {})) == FORBIDDEN
        assert verdict(await b.error("event.publish", {"event": "c.x", "data": 1})) == FORBIDDEN
        assert verdict(await b.error("event.subscribe", {"events": ["c.x"]})) == FORBIDDEN
        wide = await b.call("event.subscribe", {"events": [">"]})
        assert "result" in wide or verdict(wide["error"]) == FORBIDDEN
        ident = await b.ask("c.read", {})
        await on.c.reply(await on.c.request("read"), "allowed")
        assert (await b.answer_to(ident))["result"] == "allowed"
        b.take()
        await b.send(
            [
                {"jsonrpc": "2.0", "id": 1, "method": "c.write", "params": {}},
                {"jsonrpc": "2.0", "id": 2, "method": "event.publish", "params": {"event": "c.x", "data": 1}},
                {"jsonrpc": "2.0", "id": 3, "method": "event.subscribe", "params": {"events": ["c.x"]}},
                {"jsonrpc": "2.0", "id": 4, "method": "event.publish", "params": {"event": "b.y", "data": "own"}},
                {"jsonrpc": "2.0", "method": "c.write", "params": {}},
                {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "c.x", "data": 1}},
            ]
        )
        answers = {item["id"]: item for item in await b.until(lambda m: isinstance(m, list))}
        assert set(answers) == {1, 2, 3, 4}
        assert {verdict(answers[n]["error"]) for n in (1, 2, 3)} == {FORBIDDEN}
        await on.c.publish("c.x", "live-canary")
        await on.c.settle()
        await b.settle()
        assert not any(b"canary" in text for text in b.heard)
        assert [m["params"]["data"] for m in b.take() if is_event("b.y")(m)] == ["own"]
        assert [m for m in on.c.take() if m.get("method") == "write"] == []


async def test_x20_a_permission_that_is_taken_away_holds_at_once_and_the_wire_stays() -> None:
    async with stage("a", "c") as on:
        permit(on, "b", subscribe=("b.>", "c.>"))
        b = await on.ready("b", events=["b.>", "c.>"])
        await on.c.result("event.publish", {"event": "c.x", "data": 1})
        await b.event("c.x")
        permit(on, "b", subscribe=("b.>",))
        assert (await on.c.result("event.publish", {"event": "c.x", "data": 2}))["delivered"] == 0
        assert (await on.c.result("event.publish", {"event": "b.x", "data": 3}))["delivered"] == 1
        await b.event("b.x")
        assert [m for m in b.take() if is_event("c.x")(m)] == []
        assert b.closed is None


CANARY = "Qz7-canary-Xk92mPvL"


def spoiled_auths() -> list[bytes]:
    whole = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": CANARY}}).encode()
    cut = [whole[:at] for at in range(3, len(whole), 3)]
    others: list[Any] = [
        {"jsonrpc": "2.0", "id": 1, "method": CANARY, "params": {}},
        {"jsonrpc": "2.0", "id": CANARY, "method": "auth", "params": 5},
        {"jsonrpc": "2.0", "id": 1, "method": "auth", CANARY: 1},
        {"jsonrpc": "2.0", "id": 1, "method": "auth", "params": [CANARY]},
        {"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": 5, "resume": CANARY}},
        {"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": "x", "module_id": CANARY}},
    ]
    twice = b'{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"%b","token":"%b"}}'
    return [
        *cut,
        *(json.dumps(other).encode() for other in others),
        twice % (CANARY.encode(), CANARY.encode()),
        b" " * 3000 + whole,
    ]


async def test_x37_no_answer_log_or_record_quotes_a_token() -> None:
    async with stage("a") as on:
        for payload in spoiled_auths():
            peer = await on.stranger()
            await peer.send(payload)
            closed = await peer.end()
            said = [text for text in peer.heard if b'"id":"' + CANARY.encode() not in text]
            assert_no_piece(json.dumps([text.decode() for text in said]) + closed.reason, payload)
            await trio.sleep(1)  # the address may fail so often
        await on.a.error("auth", {"token": CANARY})
        closed_rows = await (await on.operator()).result("kernel.closed", {})
        assert_no_piece(json.dumps([on.logs, closed_rows], default=str), b"everything written")


def assert_no_piece(text: str, context: bytes) -> None:
    pieces = [CANARY[at : at + 8] for at in range(len(CANARY) - 7)]
    assert not any(piece in text for piece in pieces), context


@pytest.mark.parametrize("authenticated", [False, True])
async def test_x39_a_declared_gigabyte_is_refused_at_the_header(authenticated: bool) -> None:
    async with stage("c") as on:
        for _ in range(64):
            if authenticated:
                peer = await on.connect("a")
            else:
                peer = await on.stranger()
            await peer.send_bytes(b"\x81\xff" + (1 << 30).to_bytes(8, "big") + b"mask" + b"x" * 10)
            assert (await peer.end(3)).code == 1009
            if authenticated:
                await trio.sleep(0.6)  # twenty authentications in ten seconds


async def test_x42_a_flood_of_pings_is_owed_one_pong_at_most() -> None:
    async with stage("a", "c") as on:
        on.a.stop_reading()
        ping = b"".join(client_frame(b"%05d" % n + b"p" * 100, opcode=9) for n in range(1000))
        sent = 0
        with trio.move_on_after(5):
            for _ in range(200):
                sent += 1
                await on.a.send_bytes(ping)
        await on.check_bystanders()
        link = on.hub.board.peers["a"].link
        assert link is None or len(link.urgent) < 1000
        on.a.read_again(on.nursery)
        await trio.sleep(3)
        assert len(on.a.pongs) < sent * 1000


async def test_x42_a_flood_of_bad_frames_is_answered_and_its_log_is_bounded() -> None:
    async with stage("a", "c") as on:
        before = len(on.logs)
        for _ in range(20):
            await on.a.send_bytes(client_frame(b"{bad") * 1000)
            await on.a.settle()
            assert len([m for m in on.a.take() if "error" in m]) == 1000
        assert len(on.logs) - before < 100


async def test_x42_storms_of_resets_leave_tables_and_descriptors_as_they_were() -> None:
    async with stage("c") as on:
        operator = await on.operator()
        await on.check_bystanders()
        before = (len(on.hub.board.peers), len(on.hub.gate.strangers), on.kernel.door.open_connections)
        for n in range(300):
            peer = await on.stranger()
            await peer.auth(on.tokens["o"], f"guest-{n}")
            assert isinstance(peer.stream, trio.SocketStream)
            peer.stop_reading()
            peer.stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SOL_SOCKET, SO_LINGER: close is a reset
            await peer.stream.aclose()
        await trio.sleep(7)
        await operator.settle()
        assert (len(on.hub.board.peers), len(on.hub.gate.strangers), on.kernel.door.open_connections) == before


async def test_x43_compression_is_not_agreed_on_so_its_bit_is_a_fault() -> None:
    async with stage("c") as on:
        offer = [*UPGRADE.items(), ("Sec-WebSocket-Extensions", "permessage-deflate")]
        async with await trio.open_tcp_stream("127.0.0.1", on.port) as stream:
            await stream.send_all(head_of("/ws", offer))
            head = await stream.receive_some(4096)
            assert b" 101 " in head
            assert b"xtensions" not in head
        peer = await on.stranger("/ws", offer)
        await peer.send_bytes(b"\xc1\x85mask12345")
        assert (await peer.end()).code == 1002
