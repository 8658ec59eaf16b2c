"""The real kernel over memory streams: no socket, no real time where the test asks for `autojump_clock`.

    async with KernelBox(tokens={"a": "module", "o": "operator"}) as box:
        a = await box.ready("a", methods=["echo"])
        await a.call("b.echo", {"x": 1})

Each peer is a trio-websocket client on one end of a `MemoryPipe`; the kernel's own door serves the other end. Verbs of
the wire: `peer.cut()` (both ends gone, as after RST), `peer.stall()` (nothing passes any more, no end is told),
`peer.unread()` stops the client's side from taking bytes, so that the kernel's queue grows.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import structlog
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from kite_kernel.config import Config, build
from kite_kernel.core.auth import Tokens
from kite_kernel.edge import kernel as edge

if TYPE_CHECKING:
    from types import TracebackType

PIPE_BYTES = 1 << 16
"""What a direction holds before its writer would block: about what a loopback socket is given at first."""


class _Way:
    """One direction of a pipe: bounded bytes, an end, and who waits."""

    def __init__(self, capacity: int) -> None:
        self.data = bytearray()
        self.capacity = capacity
        self.ended = False
        self.broken = False
        self.stalled = False
        self.cut_after: int | None = None  # so many bytes more pass, then this way is broken
        self._changed = trio.Event()

    def put(self, piece: bytes) -> None:
        """Let bytes pass, up to the byte at which this way is to break."""
        if self.cut_after is not None:
            piece = piece[: self.cut_after]
            self.cut_after -= len(piece)
            self.broken = self.cut_after == 0
        self.data += piece
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        await self._changed.wait()

    @property
    def readable(self) -> bool:
        return self.broken or (not self.stalled and (bool(self.data) or self.ended))

    @property
    def writable(self) -> bool:
        return self.broken or len(self.data) < self.capacity


class MemoryPort:
    """The kernel's end (see kite_kernel.edge.port.Port)."""

    def __init__(self, incoming: _Way, outgoing: _Way) -> None:
        self._in = incoming
        self._out = outgoing
        self._closed = False

    def receive_into(self, buffer: memoryview) -> int:
        way = self._in
        if way.broken and not way.data:
            raise ConnectionResetError
        if not way.readable:
            raise BlockingIOError
        count = min(len(buffer), len(way.data))
        buffer[:count] = way.data[:count]
        del way.data[:count]
        way.wake()
        return count

    def send(self, data: bytes | memoryview) -> int:
        way = self._out
        if way.broken or self._closed:
            raise BrokenPipeError
        room = way.capacity - len(way.data)
        if room <= 0:
            raise BlockingIOError
        piece = bytes(data[:room])
        way.put(piece)
        return len(piece)

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._in.readable:
            if self._closed:
                raise trio.ClosedResourceError
            await self._in.wait()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._out.writable:
            if self._closed:
                raise trio.ClosedResourceError
            await self._out.wait()

    def end_writing(self) -> None:
        self._out.ended = True
        self._out.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.end_writing()
            self._in.wake()


class ClientStream(trio.abc.Stream):
    """The client's end, as trio-websocket wants it."""

    def __init__(self, incoming: _Way, outgoing: _Way) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.deaf = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        rest = bytes(data)
        while rest:
            way = self.outgoing
            if way.broken or way.ended:
                raise trio.BrokenResourceError
            room = way.capacity - len(way.data)
            if room <= 0:
                await way.wait()
                continue
            piece, rest = rest[:room], rest[room:]
            way.put(piece)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        way = self.incoming
        while self.deaf or not way.readable:
            await way.wait()
        if way.broken and not way.data:
            raise trio.BrokenResourceError
        piece = bytes(way.data[: max_bytes or 65536])
        del way.data[: len(piece)]
        way.wake()
        return piece

    async def aclose(self) -> None:
        self.outgoing.ended = True
        self.outgoing.wake()
        self.incoming.wake()
        await trio.lowlevel.checkpoint()


class Peer:
    """One client of the box: raw JSON-RPC over trio-websocket."""

    def __init__(self, ws: WebSocketConnection, stream: ClientStream) -> None:
        self.ws = ws
        self.stream = stream
        self.answers_pings = True
        self.hello: dict[str, Any] = {}
        self.seen: list[dict[str, Any]] = []
        self.received = 0
        self.sent = 0
        self._next_id = 100

    # --- frames ---

    async def send(self, frame: Any) -> None:
        """Send one frame: text as it is, anything else as compact JSON."""
        text = frame if isinstance(frame, str) else json.dumps(frame, separators=(",", ":"), ensure_ascii=False)
        await self.ws.send_message(text)
        self.sent += 1

    async def raw(self) -> str:
        """Return the next text frame as it came. Errors: ConnectionClosed."""
        text: str = await self.ws.get_message()
        self.received += 1
        if self.answers_pings and '"event":"system.ping"' in text:
            data = {"ping_time": json.loads(text)["params"]["data"]["ping_time"], "pong_time": 0}
            with suppress(ConnectionClosed):
                await self.say("system.pong", data)
        return text

    async def next(self, within_s: float = 30.0) -> dict[str, Any]:
        """Return the next frame that is no ping."""
        with trio.fail_after(within_s):
            while True:
                frame: dict[str, Any] = json.loads(await self.raw())
                if not is_ping(frame):
                    return frame

    async def until(self, wanted: Any, within_s: float = 60.0) -> dict[str, Any]:
        """Read until `wanted(frame)` is true and return that frame; the others are kept in `seen`."""
        with trio.fail_after(within_s):
            while True:
                frame: Any = json.loads(await self.raw())
                if wanted(frame):
                    return frame  # type: ignore[no-any-return]
                self.seen.append(frame)

    async def request(self, method: str, params: Any = None, **more: Any) -> int:
        """Send a request and return its id."""
        self._next_id += 1
        frame: dict[str, Any] = {"jsonrpc": "2.0", "id": self._next_id, "method": method}
        if params is not None:
            frame["params"] = params
        await self.send(frame | more)
        return self._next_id

    async def answer_of(self, ident: Any, within_s: float = 60.0) -> dict[str, Any]:
        """Read until the answer to an id."""
        return await self.until(lambda frame: isinstance(frame, dict) and frame.get("id") == ident, within_s)

    async def ask(self, method: str, params: Any = None, **more: Any) -> dict[str, Any]:
        """Send a request and return its whole answer."""
        return await self.answer_of(await self.request(method, params, **more))

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        frame: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            frame["params"] = params
        await self.send(frame)

    async def say(self, event: str, data: Any = None, **more: Any) -> None:
        """Publish without an answer."""
        await self.notify("event.publish", {"event": event, "data": data} | more)

    async def event(self, name: str, within_s: float = 60.0) -> dict[str, Any]:
        """Read until an event of this name and return its params."""
        frame = await self.until(
            lambda f: isinstance(f, dict) and f.get("method") == "event" and f["params"]["event"] == name, within_s
        )
        params: dict[str, Any] = frame["params"]
        return params

    async def call_in(self, within_s: float = 60.0) -> dict[str, Any]:
        """Read until a request from another module."""
        return await self.until(lambda f: isinstance(f, dict) and "method" in f and "id" in f, within_s)

    async def reply(self, ident: Any, result: Any) -> None:
        """Answer a request."""
        await self.send({"jsonrpc": "2.0", "id": ident, "result": result})

    async def close_code(self, within_s: float = 60.0) -> tuple[int, str]:
        """Read to the end and return the close code and reason; 1006 for none. Frames are kept in `seen`."""
        with trio.fail_after(within_s):
            try:
                while True:
                    self.seen.append(json.loads(await self.raw()))
            except ConnectionClosed as closed:
                if closed.reason is None:
                    return 1006, ""
                return closed.reason.code, closed.reason.reason or ""

    # --- verbs of the wire ---

    def cut(self) -> None:
        """Cut the wire as a reset does; what is under way is lost."""
        for way in (self.stream.incoming, self.stream.outgoing):
            way.broken = True
            way.data.clear()
            way.wake()

    def stall(self) -> None:
        """Let nothing pass any more, in either direction, and tell nobody."""
        self.stream.incoming.stalled = self.stream.outgoing.stalled = True
        self.stream.incoming.capacity = self.stream.outgoing.capacity = 1 << 30

    def unread(self) -> None:
        """Stop taking bytes from the kernel."""
        self.stream.deaf = True

    def read_again(self) -> None:
        """Take bytes again."""
        self.stream.deaf = False
        self.stream.incoming.wake()


def is_ping(frame: Any) -> bool:
    """Tell whether a frame is a `system.ping`."""
    return isinstance(frame, dict) and frame.get("method") == "event" and frame["params"].get("event") == "system.ping"


class KernelBox:
    """A running kernel. `tokens`: name -> role; the token of NAME is `token-NAME`. `config`: a parsed kite.toml."""

    def __init__(
        self,
        tokens: dict[str, str] | None = None,
        config: dict[str, Any] | None = None,
        *,
        standalone: bool = True,
        pipe_bytes: int = PIPE_BYTES,
    ) -> None:
        self.roles = tokens or {**dict.fromkeys("abcdefgh", "module"), "o": "operator"}
        self.config: Config = build(config or {}, "", "kite.toml", standalone=standalone)
        self.pipe_bytes = pipe_bytes
        self.kernel: edge.Kernel
        self.logs: list[Any] = []
        self.ended = trio.Event()
        self.reason = ""
        self._stack = AsyncExitStack()
        self._clients: trio.Nursery

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self.logs = self._stack.enter_context(structlog.testing.capture_logs())
        outer = await self._stack.enter_async_context(trio.open_nursery())
        self._outer = outer
        self.kernel = await outer.start(self._run)
        self._clients = await self._stack.enter_async_context(trio.open_nursery())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._clients.cancel_scope.cancel()
        self._outer.cancel_scope.cancel()
        swallowed = await self._stack.__aexit__(kind, error, trace)
        bugs = [line for line in self.logs if line.get("key") == "bug"]
        assert not bugs, bugs
        return swallowed

    async def _run(self, task_status: trio.TaskStatus[edge.Kernel]) -> None:
        async with trio.open_nursery() as nursery:
            kernel = edge.build(self.config, self.tokens(), nursery, version="0.0-test", epoch="epoch-1")
            task_status.started(kernel)
            self.reason = await edge.run(kernel)
        self.ended.set()

    def tokens(self) -> Tokens:
        """Return the tokens of everybody in `roles`."""
        return Tokens({name: (role, (f"token-{name}",)) for name, role in self.roles.items()})

    def open_pipe(self) -> ClientStream:
        """Connect a raw byte stream to the kernel's door."""
        up, down = _Way(self.pipe_bytes), _Way(self.pipe_bytes)
        self.kernel.nursery.start_soon(self.kernel.door.serve_port, MemoryPort(up, down), "127.0.0.1")
        return ClientStream(down, up)

    async def connect(self, path: str = "/ws") -> Peer:
        """Open a WebSocket without authenticating."""
        stream = self.open_pipe()
        ws = await wrap_client_stream(
            self._clients, stream, "127.0.0.1", path, message_queue_size=100_000, max_message_size=1 << 26
        )
        return Peer(ws, stream)

    async def auth(self, name: str, *, instance: str | None = "i1", **params: Any) -> Peer:
        """Connect and authenticate; the answer's result is `peer.hello`. Errors: AssertionError where refused."""
        peer = await self.connect()
        given: dict[str, Any] = {"token": f"token-{name}"} | params
        if instance is not None:
            given["instance"] = f"{name}-{instance}"
        await peer.ws.send_message(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": given}))
        answer = json.loads(await peer.ws.get_message())
        assert "result" in answer, answer
        peer.hello = answer["result"]
        return peer

    async def ready(
        self,
        name: str,
        methods: list[Any] | None = None,
        events: list[str] | None = None,
        *,
        instance: str | None = "i1",
        register: dict[str, Any] | None = None,
        **params: Any,
    ) -> Peer:
        """Connect a module that is ready; it has read its own `module.ready`."""
        peer = await self.auth(name, instance=instance, **params)
        assert "result" in await peer.ask("event.subscribe", {"events": events or []})
        given = {"methods": ["echo"] if methods is None else methods} | (register or {})
        assert "result" in await peer.ask("registry.register", given)
        await peer.say("module.ready")
        await peer.until(
            lambda f: (
                f.get("method") == "event"
                and f["params"]["event"] == "module.ready"
                and f["params"]["data"]["module_id"] == peer.hello["module_id"]
            )
        )
        return peer

    def lines(self, text: str) -> list[Any]:
        """Return the log lines whose text holds this."""
        return [line for line in self.logs if text in str(line.get("event", ""))]
