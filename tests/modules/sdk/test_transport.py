"""Wires to servers that misbehave: the right strategy, bounded memory and time. Source: issue's bad input, 30 §5."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import trio
import trio.testing
import trio_websocket

from kite_modules.sdk import transport
from kite_modules.sdk.transport import Endpoint, Lost, Wire, WireLost, open_wire, retry_after_s

Server = Callable[[trio.abc.Stream], Awaitable[None]]


async def answer_head(stream: trio.abc.Stream, answer: bytes) -> None:
    await stream.receive_some(65536)
    await stream.send_all(answer)


@asynccontextmanager
async def served(server: Server) -> AsyncGenerator[Callable[[], Awaitable[trio.abc.Stream]], None]:
    """Give a connector to a server that runs on memory streams."""
    async with trio.open_nursery() as nursery:

        async def run(stream: trio.abc.Stream) -> None:
            try:
                await server(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio_websocket.ConnectionClosed):
                return

        async def connect() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            near, far = trio.testing.memory_stream_pair()
            nursery.start_soon(run, far)
            return near

        yield connect
        nursery.cancel_scope.cancel()


async def how_it_fails(server: Server) -> tuple[Lost, float]:
    """Return how opening a wire to this server fails, and after how many seconds."""
    start = trio.current_time()
    async with served(server) as connect, trio.open_nursery() as nursery:
        with pytest.raises(WireLost) as caught:
            await open_wire(nursery, connect, host="x", path="/ws")
        nursery.cancel_scope.cancel()
    return caught.value.lost, trio.current_time() - start


async def silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def closes_at_once(stream: trio.abc.Stream) -> None:
    await stream.aclose()


async def closes_after_the_request(stream: trio.abc.Stream) -> None:
    await stream.receive_some(65536)
    await stream.aclose()


async def says_noise(stream: trio.abc.Stream) -> None:
    await answer_head(stream, b"\x16\x03\x01\x00\xa5 noise")
    await trio.sleep_forever()


async def dribbles(stream: trio.abc.Stream) -> None:
    for byte in b"HTTP/1.1 101 Switching" * 100:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)


async def never_ends_its_head(stream: trio.abc.Stream) -> None:
    await answer_head(stream, b"HTTP/1.1 101 Switching Protocols\r\n")
    while True:
        await stream.send_all(b"X-Filler: " + b"y" * 4000 + b"\r\n")
        await trio.lowlevel.checkpoint()


async def bad_gateway(stream: trio.abc.Stream) -> None:
    page = b"<html>" + b"z" * 100_000
    await answer_head(stream, b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n" + page)
    await trio.sleep_forever()


async def too_busy(stream: trio.abc.Stream) -> None:
    await answer_head(stream, b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 30\r\nContent-Length: 0\r\n\r\n")


async def forged_accept(stream: trio.abc.Stream) -> None:
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    await answer_head(stream, head + b"Sec-WebSocket-Accept: bm8=\r\n\r\n")
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("server", "status", "retry_after"),
    [
        (silent, None, None),
        (closes_at_once, None, None),
        (closes_after_the_request, None, None),
        (says_noise, None, None),
        (dribbles, None, None),
        (never_ends_its_head, None, None),
        (bad_gateway, 502, None),
        (too_busy, 503, 30.0),
        (forged_accept, None, None),
    ],
)
async def test_a_handshake_that_fails_is_a_network_loss_within_five_seconds(
    server: Server, status: int | None, retry_after: float | None, autojump_clock: trio.testing.MockClock
) -> None:
    lost, took_s = await how_it_fails(server)
    assert lost.code in (None, 1002)
    assert (lost.status, lost.retry_after_s) == (status, retry_after)
    assert lost.reason
    assert took_s <= 5.0


async def test_a_refused_connect_is_a_network_loss(autojump_clock: trio.testing.MockClock) -> None:
    async def refuse() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "Connection refused")

    async with trio.open_nursery() as nursery:
        with pytest.raises(WireLost) as caught:
            await open_wire(nursery, refuse, host="x", path="/")
    assert caught.value.lost.code is None
    assert "refused" in caught.value.lost.reason


# ------------------------------------------------------------------ after the upgrade


@asynccontextmanager
async def upgraded(
    server: Callable[[trio_websocket.WebSocketConnection, trio.abc.Stream], Awaitable[None]],
) -> AsyncGenerator[Wire, None]:
    async def serve(stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(nursery, stream)
            await server(await request.accept(), stream)

    async with served(serve) as connect, trio.open_nursery() as nursery:
        wire = await open_wire(nursery, connect, host="x", path="/")
        yield wire
        await wire.abort()
        nursery.cancel_scope.cancel()


async def end_of(wire: Wire) -> Lost:
    with trio.fail_after(60):
        while True:
            try:
                await wire.receive()
            except WireLost as lost:
                return lost.lost


@pytest.mark.parametrize("code", [1000, 1001, 1011, 4001, 4010, 4020])
async def test_a_close_code_arrives_with_its_reason(code: int, autojump_clock: trio.testing.MockClock) -> None:
    async def close(ws: trio_websocket.WebSocketConnection, _: trio.abc.Stream) -> None:
        await ws.aclose(code, "because")

    async with upgraded(close) as wire:
        lost = await end_of(wire)
    assert (lost.code, lost.reason) == (code, "because")


async def test_what_came_before_a_close_is_read_first(autojump_clock: trio.testing.MockClock) -> None:
    async def talk(ws: trio_websocket.WebSocketConnection, _: trio.abc.Stream) -> None:
        await ws.send_message("last words")
        await ws.aclose(4012)

    async with upgraded(talk) as wire:
        assert await wire.receive() == "last words"
        assert (await end_of(wire)).code == 4012


async def test_a_binary_message_is_none_and_the_wire_stays(autojump_clock: trio.testing.MockClock) -> None:
    async def talk(ws: trio_websocket.WebSocketConnection, _: trio.abc.Stream) -> None:
        await ws.send_message(b"\x00\x01")
        await ws.send_message("text")
        await trio.sleep_forever()

    async with upgraded(talk) as wire:
        assert await wire.receive() is None
        assert await wire.receive() == "text"


@pytest.mark.parametrize(
    ("bytes_sent", "code"),
    [
        (b"\xff\xff\xff", 1002),
        (b"\x81\x02\xc3\x28", 1002),  # no UTF-8; the library names its own reason
        (b"\x83\x00", 1002),
    ],
)
async def test_frames_that_are_none_end_the_wire_as_a_protocol_fault(
    bytes_sent: bytes, code: int, autojump_clock: trio.testing.MockClock
) -> None:
    async def talk(_: trio_websocket.WebSocketConnection, stream: trio.abc.Stream) -> None:
        await stream.send_all(bytes_sent)
        await trio.sleep_forever()

    async with upgraded(talk) as wire:
        lost = await end_of(wire)
    assert lost.code in (code, 1007)


async def test_a_gigabyte_in_one_message_is_cut_at_the_bound(autojump_clock: trio.testing.MockClock) -> None:
    sent = 0

    async def flood(_: trio_websocket.WebSocketConnection, stream: trio.abc.Stream) -> None:
        nonlocal sent
        await stream.send_all(b"\x81\x7f" + (1 << 30).to_bytes(8, "big"))
        while sent < 1 << 30:
            await stream.send_all(b"x" * (1 << 20))
            sent += 1 << 20
            await trio.testing.wait_all_tasks_blocked()

    async with upgraded(flood) as wire:
        lost = await end_of(wire)
    assert lost.code == 1009
    assert sent < 32 << 20


async def test_fragments_without_end_are_cut_at_the_bound(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(transport, "MESSAGE_BYTES_MAX", 1000)

    async def flood(_: trio_websocket.WebSocketConnection, stream: trio.abc.Stream) -> None:
        await stream.send_all(b"\x01\x00")
        while True:
            await stream.send_all(b"\x00\x00" * 10_000)
            await trio.testing.wait_all_tasks_blocked()

    async with upgraded(flood) as wire:
        assert (await end_of(wire)).code == 1009


async def test_a_ping_that_arrives_while_the_wire_closes_is_no_error(autojump_clock: trio.testing.MockClock) -> None:
    async def talk(_: trio_websocket.WebSocketConnection, stream: trio.abc.Stream) -> None:
        while True:
            await stream.send_all(b"\x89\x00")
            await trio.sleep(0.1)

    async with upgraded(talk) as wire:
        await trio.sleep(1)
        await wire.close(1000)


async def test_closing_waits_for_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async def frozen(_: trio_websocket.WebSocketConnection, __: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    async with upgraded(frozen) as wire:
        start = trio.current_time()
        await wire.close(1000, "bye")
        assert trio.current_time() - start <= 1.0


async def test_a_send_that_is_cancelled_ends_the_wire(autojump_clock: trio.testing.MockClock) -> None:
    class Narrow(trio.abc.Stream):
        """A stream that takes the handshake and then blocks in the middle of a send."""

        def __init__(self, inner: trio.abc.Stream) -> None:
            self.inner = inner
            self.sends = 0

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            self.sends += 1
            if self.sends > 1:
                await self.inner.send_all(bytes(data)[:5])
                await trio.sleep_forever()
            await self.inner.send_all(data)

        async def wait_send_all_might_not_block(self) -> None:
            await self.inner.wait_send_all_might_not_block()

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            return bytes(await self.inner.receive_some(max_bytes))

        async def aclose(self) -> None:
            await self.inner.aclose()

    async def serve(stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(nursery, stream)
            await request.accept()
            await trio.sleep_forever()

    async with served(serve) as connect, trio.open_nursery() as nursery:

        async def narrow() -> trio.abc.Stream:
            return Narrow(await connect())

        wire = await open_wire(nursery, narrow, host="x", path="/")
        with trio.move_on_after(1):
            await wire.send("x" * 1000)
        with pytest.raises(WireLost):
            await wire.send("never after a torn frame")
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------ small things


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0), ("30", 30), ("99999999999", 3600), ("-5", None), ("soon", None), ("1.5", None), ("", None), ("١", None)],
)
def test_retry_after_is_read_or_left_alone(value: str, seconds: float | None) -> None:
    assert retry_after_s(value) == seconds


def test_retry_after_may_be_a_date() -> None:
    soon = retry_after_s(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert soon is not None
    assert 50 < soon <= 61
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "127.0.0.1:1",
        "",
        "ws://",
        "ws://user:secret@h:1",
        "ws://h:1/?token=x",
        "ws+unix://",
    ],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url") as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


def test_addresses_give_host_and_path() -> None:
    assert (Endpoint("ws://127.0.0.1:7390").host, Endpoint("ws://127.0.0.1:7390").path) == ("127.0.0.1:7390", "/")
    assert Endpoint("wss://h/ws").path == "/ws"
    assert Endpoint("ws+unix:///run/kernel.sock").host == "localhost"
