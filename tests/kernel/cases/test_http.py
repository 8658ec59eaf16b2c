"""Cases W-67 to W-70 and X-01, X-02, X-07: what stands in front of the wire."""

from __future__ import annotations

import json

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.raw_peer import UPGRADE, head_of, http
from tests.support.stage import stage


def with_fields(**changes: str) -> list[tuple[str, str]]:
    fields = dict(UPGRADE) | {name.replace("_", "-"): value for name, value in changes.items()}
    return list(fields.items())


async def test_w67_a_plain_get_and_another_method_are_told_what_is_spoken_here() -> None:
    async with stage("c") as on:
        status, headers, _ = await http(on.port, head_of("/ws", [("Host", "localhost")]))
        assert (status, headers["upgrade"]) == (426, "websocket")
        status, headers, _ = await http(on.port, head_of("/ws", [("Host", "localhost")], method="POST"))
        assert (status, headers["allow"]) == (405, "GET")
        status, headers, _ = await http(on.port, head_of("/ws", with_fields(Sec_WebSocket_Version="8")))
        assert (status, headers["sec-websocket-version"]) == (426, "13")


@pytest.mark.parametrize(
    ("noise", "statuses"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), {400, 0}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 0}),
        (bytes(range(128, 192)), {400, 0}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", {431, 0}),
    ],
    ids=["TLS", "HTTP/2", "noise", "200 kB"],
)
async def test_w67_noise_is_refused_at_once_with_one_line(noise: bytes, statuses: set[int]) -> None:
    async with stage("c") as on:
        began = trio.current_time()
        status, _, body = await http(on.port, noise)
        assert status in statuses
        assert trio.current_time() - began < 2
        assert b"Traceback" not in body
        await on.c.settle()
        assert len(on.lines("request refused")) == 1


async def test_w67_a_head_at_a_byte_a_second_is_cut_after_five() -> None:
    async with stage("c") as on:
        began = trio.current_time()
        stream = await trio.open_tcp_stream("127.0.0.1", on.port)
        async with stream:
            with pytest.raises(trio.BrokenResourceError):  # noqa: PT012
                for at in range(60):
                    await stream.send_all(head_of("/ws")[at : at + 1])
                    await trio.sleep(1)
        assert 4 < trio.current_time() - began < 9


async def test_w68_the_pages_answer_while_strangers_and_a_slow_reader_press() -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        on.a.stop_reading()
        for _ in range(200):
            await on.stranger()
        note = {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "x.t", "data": "y" * 1000}}
        await on.c.send_bytes(client_frame(json.dumps(note).encode()) * 3000)
        for path, wanted in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200)):
            began = trio.current_time()
            status, headers, body = await http(on.port, head_of(path, [("Host", "localhost")]))
            assert (status, int(headers["content-length"])) == (wanted, len(body)), path
            assert trio.current_time() - began < 1
        operator = await on.operator()
        await operator.result("kernel.drain", {})
        assert (await http(on.port, head_of("/readyz", [("Host", "localhost")])))[0] == 503
        assert (await http(on.port, head_of("/healthz", [("Host", "localhost")])))[0] == 200
        status, headers, _ = await http(on.port, head_of("/ws"))
        assert status == 503
        assert int(headers["retry-after"]) > 0
        on.hub.draining = False  # the stage's own newcomers


async def test_w68_pages_answer_head_and_refuse_other_methods() -> None:
    async with stage("c") as on:
        status, headers, body = await http(on.port, head_of("/healthz", [("Host", "localhost")], method="HEAD"))
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0
        assert (await http(on.port, head_of("/healthz", [("Host", "localhost")], method="POST")))[0] == 405
        assert (await http(on.port, b"GET /healthz HTTP/1.0\r\n\r\n"))[0] == 200


async def test_w69_names_that_peers_choose_make_no_series() -> None:
    async with stage("a", "c") as on:

        async def series(count: int, tag: str) -> set[str]:
            for n in range(count):
                await on.c.publish(f"{tag}.e{n}", "payload-canary")
                await on.c.ask(f"{tag}-{n}.method-canary", {})
                await http(on.port, head_of(f"/{tag}/path{n}", [("Host", "localhost")]))
            await on.c.settle()
            _, _, body = await http(on.port, head_of("/metrics", [("Host", "localhost")]))
            assert b"canary" not in body
            assert not any(token.encode() in body for token in on.tokens.values())
            return {line.rpartition(b" ")[0].decode() for line in body.splitlines() if not line.startswith(b"#")}

        few = await series(10, "few")
        assert few
        assert all(name.startswith("kite_") for name in few)
        assert await series(150, "many") == few


@pytest.mark.parametrize("path", ["/ws", "/", "/sub", "/sub/ticks", "/pub"])
@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil"}, 403),
        ({"Origin": "http://localhost:90000"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil"}, 403),
    ],
    ids=str,
)
async def test_w70_foreign_origins_and_hosts_get_403_before_101(path: str, fields: dict[str, str], right: int) -> None:
    async with stage("c") as on:
        status, _, body = await http(on.port, head_of(path, with_fields(**fields)))
        if path.startswith(("/sub", "/pub")) and path[1:4] not in on.kernel.door.planes:
            assert status in (403, 404)
        else:
            assert status == right
        assert b"token" not in body


async def test_w70_two_hosts_and_a_path_that_is_none() -> None:
    async with stage("c") as on:
        assert (await http(on.port, head_of("/ws", [*UPGRADE.items(), ("Host", "localhost")])))[0] == 400
        for path in ("/nope", "/ws/x", "//ws", "/ws/", "/WS", "/%77s", "/healthz/x"):
            assert (await http(on.port, head_of(path)))[0] == 404, path


async def test_w70_without_an_origin_a_wire_opens_and_gives_nothing_without_a_token() -> None:
    async with stage("c") as on:
        peer = await on.stranger()
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "registry.list_modules", "params": {}})
        assert (await peer.end()).code == 4003
        assert "z1" not in json.dumps(peer.take())


@pytest.mark.parametrize("page", ["/metrics", "/healthz", "/readyz"])
async def test_x02_a_rebound_name_reads_no_page(page: str) -> None:
    async with stage("c") as on:
        status, _, body = await http(on.port, head_of(page, [("Host", "evil.example")]))
        assert status == 403
        assert b"kite_" not in body


@pytest.mark.parametrize("field", ["token", "access_token"])
@pytest.mark.parametrize("path", ["/ws", "/"])
async def test_x07_a_token_in_the_url_is_refused_good_or_bad_and_never_logged(path: str, field: str) -> None:
    async with stage("c") as on:
        for token in (on.tokens["a"], "no-such-token-canary"):
            status, _, body = await http(on.port, head_of(f"{path}?{field}={token}"))
            assert status == 400
            assert token.encode() not in body
            assert token not in json.dumps(on.logs, default=str)
