"""A client of the kernel with no manners of its own: it sends exactly what a test says and keeps everything it hears.

It parses server frames by itself (unmasked, no extension) and asserts that they are well-formed, so every test that
uses it also checks the kernel's side of RFC 6455. A task reads all the time and answers `system.ping`, until a test
calls `stop_reading`.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Self

import attrs
import trio
from tests.support.frames import client_close, client_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WAIT_S = 20.0  # a bound, not a measure
UPGRADE = {
    "Host": "127.0.0.1",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@attrs.frozen
class Closed:
    """The server said goodbye; `code` is None where the stream just ended."""

    code: int | None
    reason: str = ""


def head_of(path: str, headers: Iterable[tuple[str, str]] | None = None, *, method: str = "GET") -> bytes:
    """Return a request head; `headers` replaces the usual upgrade fields."""
    fields = UPGRADE.items() if headers is None else headers
    return ("\r\n".join([f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields)]) + "\r\n\r\n").encode(
        "latin-1"
    )


async def http(port: int, head: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a head as it stands; return status, lower-case headers and body of the answer (0 where it was cut)."""
    with trio.fail_after(WAIT_S):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            data = b""
            try:
                await stream.send_all(head)
                while piece := await stream.receive_some(65536):
                    data += piece
            except trio.BrokenResourceError:
                pass  # cut: what came before it counts
    if not data:
        return 0, {}, b""
    top, _, body = data.partition(b"\r\n\r\n")
    line, *lines = top.decode("latin-1").split("\r\n")
    return int(line.split()[1]), {k.lower(): v for k, _, v in (row.partition(": ") for row in lines)}, body


class RawPeer:
    """One connection. `heard` has every text message in order, as the server wrote it."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.heard: list[bytes] = []
        self.pongs: list[bytes] = []
        self.pings = 0
        self.answers_pings = True
        self.answers_close = True
        self.closed: Closed | None = None
        self.ended = trio.Event()
        self._buffer = b""
        self._waiting: dict[int, Any] = {}  # by their number, in order
        self._count = 0
        self._news = trio.lowlevel.ParkingLot()
        self._reading = trio.CancelScope()
        self._sending = trio.Lock()
        self._next_id = 0
        self.sent = 0  # text messages after authentication, by 10-wire §8
        self.base = 0  # what the session had received before this wire
        self.session: dict[str, Any] = {}  # the result of auth, where a stage made it

    @classmethod
    async def connect(
        cls,
        nursery: trio.Nursery,
        port: int,
        path: str = "/ws",
        headers: Iterable[tuple[str, str]] | None = None,
    ) -> Self:
        """Connect over TCP and upgrade; asserts the 101."""
        return await cls.upgrade(nursery, await trio.open_tcp_stream("127.0.0.1", port), path, headers)

    @classmethod
    async def upgrade(
        cls,
        nursery: trio.Nursery,
        stream: trio.abc.Stream,
        path: str = "/ws",
        headers: Iterable[tuple[str, str]] | None = None,
    ) -> Self:
        """Upgrade a stream that is connected, and begin to read."""
        peer = cls(stream)
        with trio.fail_after(WAIT_S):
            await stream.send_all(head_of(path, headers))
            while b"\r\n\r\n" not in peer._buffer:
                data = await stream.receive_some(65536)
                assert data, peer._buffer
                peer._buffer += data
        head, _, peer._buffer = peer._buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        nursery.start_soon(peer._read)
        return peer

    # --- sending ---

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        async with self._sending:
            await self.stream.send_all(data)

    async def send(self, message: bytes | str | dict[str, Any] | list[Any]) -> None:
        """Send one text frame; what is not text yet is written as compact JSON."""
        if isinstance(message, dict | list):
            message = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
        self.sent += 1
        await self.send_bytes(client_frame(message.encode() if isinstance(message, str) else message))

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.sent += 1
        await self.send_bytes(_note(method, params))

    async def publish(self, event: str, data: Any = None, **more: Any) -> None:
        """Publish without an answer."""
        await self.notify("event.publish", {"event": event, "data": data, **more})

    async def call(self, method: str, params: Any = None, **members: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; other messages wait for their own readers."""
        ident = await self.ask(method, params, **members)
        return await self.answer_to(ident)

    async def ask(self, method: str, params: Any = None, **members: Any) -> Any:
        """Send a request and return its id."""
        self._next_id += 1
        ident = members.pop("id", f"r{self._next_id}")
        await self.send(
            {"jsonrpc": "2.0", "id": ident, "method": method} | ({} if params is None else {"params": params}) | members
        )
        return ident

    async def answer_to(self, ident: Any) -> dict[str, Any]:
        """Wait for the answer with this id."""
        found: dict[str, Any] = await self.until(
            lambda m: (
                isinstance(m, dict) and "method" not in m and m.get("id") == ident and type(m["id"]) is type(ident)
            )
        )
        return found

    async def result(self, method: str, params: Any = None, **members: Any) -> Any:
        """Call and return the result; an error fails the test."""
        answer = await self.call(method, params, **members)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None, **members: Any) -> dict[str, Any]:
        """Call and return the error; a result fails the test."""
        answer = await self.call(method, params, **members)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def auth(self, token: str, module_id: str | None = None, **params: Any) -> dict[str, Any]:
        """Authenticate and return the result."""
        named = {} if module_id is None else {"module_id": module_id}
        result: dict[str, Any] = await self.result("auth", {"token": token, **named, "protocol": 2} | params)
        self.sent = 0
        return result

    async def become_ready(self, methods: Iterable[Any] = (), events: Iterable[str] = (), **register: Any) -> None:
        """Subscribe, register, say ready: the walk of every module."""
        await self.result("event.subscribe", {"events": list(events)})
        await self.result("registry.register", {"methods": list(methods), **register})
        await self.result("event.publish", {"event": "module.ready", "data": {}})

    # --- hearing ---

    async def until(self, wanted: Callable[[Any], bool], wait_s: float = WAIT_S) -> Any:
        """Return the first message (heard before or still to come) that is wanted; takes it out of what waits."""
        seen = 0
        with trio.fail_after(wait_s):
            while True:
                while seen < self._count:
                    seen += 1
                    if seen in self._waiting and wanted(self._waiting[seen]):
                        return self._waiting.pop(seen)
                assert not self.ended.is_set(), f"{self.closed} instead of the message"
                await self._news.park()

    async def more(self, wait_s: float = WAIT_S) -> list[Any]:
        """Wait until something waits; return all of it."""
        with trio.fail_after(wait_s):
            while not self._waiting:
                assert not self.ended.is_set(), f"{self.closed} instead of more"
                await self._news.park()
        return self.take()

    async def event(self, name: str, wait_s: float = WAIT_S) -> Any:
        """Wait for an event of this name; return its params."""
        return (await self.until(is_event(name), wait_s))["params"]

    async def request(self, method: str | None = None, wait_s: float = WAIT_S) -> dict[str, Any]:
        """Wait for a call that was routed here."""
        found: dict[str, Any] = await self.until(
            lambda m: "id" in m and "method" in m and method in (None, m["method"]), wait_s
        )
        return found

    async def notice(self, method: str, wait_s: float = WAIT_S) -> Any:
        """Wait for a notification; return its params."""
        return (await self.until(lambda m: m.get("method") == method and "id" not in m, wait_s))["params"]

    async def reply(self, request: dict[str, Any], result: Any = None) -> None:
        """Answer a routed call."""
        await self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def end(self, wait_s: float = WAIT_S) -> Closed:
        """Wait until the server has closed and TCP has ended; return how."""
        with trio.fail_after(wait_s):
            await self.ended.wait()
        assert self.closed is not None
        return self.closed

    async def settle(self) -> None:
        """Return once the kernel has read what was sent before: a question to it was answered."""
        await self.call("kernel.info", {})

    def take(self) -> list[Any]:
        """Return and forget the messages that nobody waited for."""
        taken, self._waiting = self._waiting, {}
        return list(taken.values())

    def stop_reading(self) -> None:
        """From now on nothing is read: the socket's buffers fill, pings go unanswered."""
        self._reading.cancel()

    def read_again(self, nursery: trio.Nursery) -> None:
        """Go on reading after `stop_reading`."""
        self._reading = trio.CancelScope()
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        with self._reading:
            while True:
                while (frame := self._cut()) is not None:
                    await self._take(*frame)
                try:
                    data = await self.stream.receive_some(1 << 18)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    data = b""
                if not data:
                    self.closed = self.closed or Closed(None)
                    self.ended.set()
                    self._news.unpark_all()
                    return
                self._buffer += data

    async def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == 1:
            self.heard.append(payload)
            message = json.loads(payload)
            if self.answers_pings and isinstance(message, dict) and is_event("system.ping")(message):
                self.pings += 1
                data = {"ping_time": message["params"]["data"]["ping_time"], "pong_time": 0}
                self.sent += 1
                await self._try_to_send(_note("event.publish", {"event": "system.pong", "data": data}))
            else:
                self._count += 1
                self._waiting[self._count] = message
                self._news.unpark_all()
        elif opcode == 8:
            code = int.from_bytes(payload[:2], "big") if payload else None
            self.closed = Closed(code, payload[2:].decode())
            if self.answers_close:
                await self._try_to_send(client_frame(payload[:2], opcode=8))
        elif opcode == 10:
            self.pongs.append(payload)
        else:
            assert opcode == 9, opcode
            await self._try_to_send(client_frame(payload, opcode=10))

    async def _try_to_send(self, data: bytes) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.send_bytes(data)

    def _cut(self) -> tuple[int, bytes] | None:
        """Cut one whole frame off the buffer."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        assert buffer[0] & 0xF0 == 0x80, f"not a whole frame without extensions: {buffer[:20]!r}"
        size, begin = buffer[1], 2
        assert size < 0x80, "a server never masks"
        if size == 126:
            size, begin = int.from_bytes(buffer[2:4], "big"), 4
        elif size == 127:
            size, begin = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < begin + size:
            return None
        self._buffer = buffer[begin + size :]
        return buffer[0] & 15, buffer[begin : begin + size]

    # --- leaving ---

    async def goodbye(self, code: int = 1000) -> None:
        """Close as a well-behaved client does and wait for the end."""
        await self.send_bytes(client_close(code, ""))
        await self.end()
        await self.stream.aclose()

    async def cut(self) -> None:
        """Drop the connection without a word."""
        await self.stream.aclose()


def _note(method: str, params: Any) -> bytes:
    note = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
    return client_frame(json.dumps(note, separators=(",", ":"), ensure_ascii=False).encode())


def is_event(name: str) -> Callable[[Any], bool]:
    """Return a test for event frames of this name."""

    def judge(message: Any) -> bool:
        return isinstance(message, dict) and message.get("method") == "event" and message["params"].get("event") == name

    return judge
