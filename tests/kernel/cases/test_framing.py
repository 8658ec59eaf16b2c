"""Cases W-01 to W-10: framing and JSON."""

from __future__ import annotations

import json
import socket
import struct

import pytest
import trio
from tests.support.frames import client_close, client_frame
from tests.support.raw_peer import RawPeer, head_of, is_event
from tests.support.stage import Stage, stage

ECHO = b'{"jsonrpc":"2.0","id":1,"method":"c.echo","params":%b}'


async def call_raw(on: Stage, params: bytes) -> tuple[bytes, bytes]:
    """Let a call c.echo with these params as they stand; return what c saw and what a got, as bytes."""
    a, c = on.a, on.c
    await a.send(ECHO % params)
    request = await c.request("echo")
    seen = c.heard[-1]
    body = seen[seen.index(b'"params":') + 9 : -1]
    await c.send(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(request["id"]).encode(), body))
    await a.answer_to(1)
    got = a.heard[-1]
    return body, got[got.index(b'"result":') + 9 : -1]


async def is_alive(peer: RawPeer) -> bool:
    return "version" in await peer.result("kernel.info", {})


@pytest.mark.parametrize(
    "text", [b"", b"   ", b"{", b"hello", b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"kernel.info"}']
)
async def test_w01_text_that_is_no_json_is_answered_and_the_wire_stays_open(text: bytes) -> None:
    async with stage("a") as on:
        await on.a.send(text)
        answer = await on.a.until(lambda m: "error" in m)
        assert answer["id"] is None
        assert answer["error"]["code"] == -32700
        assert answer["error"]["data"]["reason"]
        assert await is_alive(on.a)


async def test_w02_params_and_result_are_carried_byte_by_byte() -> None:
    params = b'{"x":1e400, "y":18446744073709551617,"z":1.10,"w":"\\u00e9"}'
    async with stage("a", "c") as on:
        assert await call_raw(on, params) == (params, params)


BAD_VALUES = [b"NaN", b"-Infinity", b'"\\ud83d"']


@pytest.mark.parametrize("value", BAD_VALUES)
async def test_w03_no_json_in_a_call_or_an_event_is_refused_to_its_sender(value: bytes) -> None:
    async with stage("a", "c") as on:
        await on.c.result("event.subscribe", {"events": ["x.>"]})
        for text in (
            ECHO % b"[%b]" % value,
            b'{"jsonrpc":"2.0","id":1,"method":"event.publish","params":{"event":"x.y","data":%b}}' % value,
        ):
            await on.a.send(text)
            answer = await on.a.until(lambda m: "error" in m)
            assert answer["error"]["code"] == -32700
        await on.a.settle()
        await on.c.settle()
        assert [m for m in on.c.take() if "id" in m or is_event("x.y")(m)] == []


@pytest.mark.parametrize("value", BAD_VALUES)
async def test_w03_no_json_in_a_result_ends_the_call_for_the_caller(value: bytes) -> None:
    async with stage("a", "c") as on:
        ident = await on.a.ask("c.echo", {})
        request = await on.c.request("echo")
        await on.c.send(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(request["id"]).encode(), value))
        error = (await on.a.answer_to(ident))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32603, "unknown")
        refused = await on.c.until(lambda m: "error" in m)
        assert refused["error"]["code"] == -32700
        await on.a.settle()
        assert [m for m in on.a.take() if m.get("id") == ident] == []


async def test_w03_no_json_without_a_readable_id_ends_the_call_at_its_deadline() -> None:
    async with stage("a", "c") as on:
        ident = await on.a.ask("c.echo", {}, meta={"timeout": 2})
        await on.c.request("echo")
        await on.c.send(b'{"jsonrpc":"2.0","result":NaN}')
        error = (await on.a.answer_to(ident))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32003, "unknown")


async def test_w04_depth_is_judged_outside_strings_and_never_raises() -> None:
    async with stage("a", "c") as on:
        deepest = b"[" * 63 + b"]" * 63  # with the envelope 64
        text = b'["' + b"[" * 10_000 + b'\\"' * 10_000 + b'"]'
        for params in (deepest, text):
            assert await call_raw(on, params) == (params, params)
        for bad in (ECHO % (b"[" * 64 + b"]" * 64), b"[" * 200_000, ECHO % (b"[" * 200_000)):
            await on.a.send(bad)
            answer = await on.a.until(lambda m: "error" in m)
            assert answer["error"]["code"] == -32600
        assert await is_alive(on.a)


async def test_w05_a_member_twice_is_refused_and_twins_inside_params_pass() -> None:
    async with stage("a", "c") as on:
        for bad in (
            b'{"jsonrpc":"2.0","id":1,"method":"c.echo","method":"c.secret"}',
            b'{"jsonrpc":"2.0","id":1,"id":2,"method":"c.echo"}',
            b'{"jsonrpc":"2.0","id":1,"method":"c.echo","params":{},"params":{"x":1}}',
        ):
            await on.a.send(bad)
            answer = await on.a.until(lambda m: "error" in m)
            assert answer["error"]["code"] == -32600
        params = b'{"x":1,"x":2,"y":{"z":1,"z":2}}'
        assert await call_raw(on, params) == (params, params)
        assert [m for m in on.c.take() if "id" in m] == []


@pytest.mark.parametrize("raw", [b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
async def test_w06_what_is_no_utf8_closes_1007_and_nobody_sees_it(raw: bytes) -> None:
    async with stage("a", "c") as on:
        await on.a.send(ECHO % b'["%b"]' % raw)
        assert (await on.a.end()).code == 1007
        await on.c.settle()
        assert [m for m in on.c.take() if "id" in m] == []


async def test_w06_a_character_cut_by_a_fragment_border_is_carried_whole() -> None:
    async with stage("a", "c") as on:
        text = ECHO % '["\U0001f600"]'.encode()
        cut = text.index(b"\xf0") + 2
        await on.a.send_bytes(client_frame(text[:cut], fin=False))
        await on.a.send_bytes(client_frame(text[cut:], opcode=0))
        request = await on.c.request("echo")
        assert request["params"] == ["\U0001f600"]
        await on.c.reply(request)
        await on.a.answer_to(1)


CALL = b'{"jsonrpc":"2.0","id":1,"method":"c.echo","params":{}}'


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"\xc1\x80\0\0\0\0", 1002),
        (client_frame(CALL, opcode=3), 1002),
        (client_frame(CALL, opcode=11), 1002),
        (b"\x81" + bytes((len(CALL),)) + CALL, 1002),
        (client_frame(b"x" * 126, opcode=9), 1002),
        (client_frame(b"", opcode=9, fin=False), 1002),
        (client_frame(CALL, opcode=0), 1002),
        (client_frame(CALL[:9], fin=False) + client_frame(CALL), 1002),
        (client_frame(CALL, opcode=2), 1003),
    ],
    ids=[
        "RSV1",
        "opcode 3",
        "opcode 11",
        "no mask",
        "ping 126",
        "ping FIN=0",
        "continuation",
        "text in text",
        "binary",
    ],
)
@pytest.mark.parametrize("authenticated", [True, False])
async def test_w07_a_broken_frame_closes_and_executes_nothing(wire: bytes, code: int, authenticated: bool) -> None:
    async with stage("a", "c") as on:
        peer = on.a if authenticated else await on.stranger()
        await peer.send_bytes(wire)
        closed = await peer.end(1.5)
        assert closed.code == code
        assert closed.reason
        await on.c.settle()
        assert [m for m in on.c.take() if "id" in m] == []


async def test_w08_a_call_of_exactly_the_limit_is_answered_although_it_grows_on_its_way() -> None:
    limit = 1 << 20
    async with stage("a", "c") as on:
        await on.c.result("registry.register", {"methods": ["echo"], "accepts_meta": True})
        empty = len(ECHO % b'[""]')
        params = b'["' + b"x" * (limit - empty) + b'"]'
        assert len(ECHO % params) == limit
        await on.a.send(ECHO % params)
        request = await on.c.request("echo")
        assert request["params"] == [params[2:-2].decode()]
        assert request["meta"]["caller"] == "a"
        assert len(on.c.heard[-1]) > limit
        await on.c.reply(request, "got it")
        assert (await on.a.answer_to(1))["result"] == "got it"


async def test_w08_a_byte_more_closes_1009_although_the_peer_writes_on_and_on() -> None:
    limit = 1 << 20
    async with stage("a", "c") as on:
        text = ECHO % (b'["' + b"x" * (limit - len(ECHO % b'[""]') + 1) + b'"]')
        assert len(text) == limit + 1
        async with trio.open_nursery() as writing:

            async def write_on() -> None:
                try:
                    await on.a.send(text)
                    while True:
                        await on.a.send_bytes(b"x" * 65536)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass

            writing.start_soon(write_on)
            closed = await on.a.end(3)
        assert closed.code in (1009, None)  # a reset may overtake the close frame at a peer that never stops writing
        record = await on.closed_record("a")
        assert record["code"] == 1009
        assert str(limit) in record["why"]


async def reset(stream: trio.SocketStream) -> None:
    """End a connection with RST instead of FIN."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


AUTH_CUT = client_frame(b'{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"abc"}}')


@pytest.mark.parametrize(
    "before",
    [
        b"GET /ws HTT",
        head_of("/ws"),
        head_of("/ws") + AUTH_CUT[:9],
        bytes(range(128, 192)),
        b"",
    ],
    ids=["mid head", "after 101", "mid auth", "64 noise bytes", "nothing"],
)
async def test_w09_a_reset_before_authentication_ends_only_itself(before: bytes) -> None:
    async with stage("a", "c") as on:
        for _ in range(5):
            stream = await trio.open_tcp_stream("127.0.0.1", on.port)
            await stream.send_all(before)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await reset(stream)
        fresh = await on.stranger()
        await fresh.auth(on.tokens["d"], "d")
        await on.check_bystanders()


@pytest.mark.parametrize(
    "last",
    [client_frame(CALL)[:20], client_frame(CALL[:20], fin=False), client_frame(CALL), client_close(1000, "")],
    ids=["mid frame", "mid fragment", "call in flight", "while closing"],
)
async def test_w09_a_reset_of_a_module_executes_no_half_message(last: bytes) -> None:
    async with stage("a", "c") as on:
        await on.a.send_bytes(last)
        await trio.testing.wait_all_tasks_blocked(0.01)
        on.a.stop_reading()
        assert isinstance(on.a.stream, trio.SocketStream)
        await reset(on.a.stream)
        await on.c.settle()
        executed = [m for m in on.c.take() if "id" in m]
        assert len(executed) == (1 if last == client_frame(CALL) else 0)
        if executed:
            assert (await on.c.notice("$/cancelRequest"))["id"] == executed[0]["id"]
        await on.check_bystanders()


@pytest.mark.parametrize("late", [client_frame(b"late?", opcode=9), client_frame(b"x" * 1000) * 2000])
async def test_w09_what_arrives_while_the_kernel_closes_harms_nobody(late: bytes) -> None:
    async with stage("a", "c") as on:
        on.a.answers_close = False
        await on.a.send_bytes(client_frame(CALL, opcode=2))
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)):  # noqa: PT012
            with trio.fail_after(3):
                while True:
                    await on.a.send_bytes(late)
        await on.check_bystanders()


async def test_w10_a_reason_that_would_be_too_long_is_clipped_to_whole_characters() -> None:
    async with stage("a", "c") as on:
        peer = await on.stranger()
        params = {"token": "no such token", "module_id": "é" * 300, "protocol": 2}
        await peer.ask("auth", params)
        closed = await peer.end()
        assert closed.code == 4001
        assert len(closed.reason.encode()) <= 123
        assert "�" not in closed.reason
