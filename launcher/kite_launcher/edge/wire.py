"""The launcher's connection to the kernel: comes back by the strategy table, loses nothing over a cut, never blocks.

One writer task owns the socket; whoever wants to send puts a text into a bounded queue. Everything works while the
kernel is away: calls answer `None`, publishes are dropped, the supervision goes on.
Source: spec 10 §2–§8; 05 §8; 00 §5.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio
import trio_websocket

from kite_launcher.core.link import Session, decide, read
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.pulse import Pulse

FRAMES_MAX: Final = 1000
BYTES_MAX: Final = 4 << 20
QUEUE_MAX: Final = 2000  # texts waiting for the wire; a kernel that reads none of them is replaced long before
HANDSHAKE_S: Final = 5.0
CLOSE_S: Final = 1.0
NEVER_S: Final = 10.0  # the pace at which a launcher knocks on a kernel that said `never`
RETRY_AFTER_MAX_S: Final = 60.0
CALLS_MAX: Final = 256  # calls of others that we serve at once
MESSAGE_MAX: Final = 16 << 20
MODULE_ID: Final = "launcher"

OnCall = Callable[[str, Any, str], Awaitable[dict[str, Any]]]
OnEvent = Callable[[str, Any], None]
"""(event, data)"""


@attrs.define(eq=False)
class _Call:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: dict[str, Any] | None = None


@attrs.define
class _Ended:
    """How one connection ended."""

    code: int | None = None
    reason: str = ""
    opened: bool = False
    retry_after_s: float | None = None


class KernelWire:
    """The session of module `launcher`. `on_call(method, params, caller)` returns `{"result": …}` or `{"error": …}`."""

    def __init__(
        self,
        *,
        token: Callable[[], str],
        journal: Journal,
        random: Callable[[], float],
        open_stream: Callable[[str, int], Awaitable[trio.SocketStream]] = trio.open_tcp_stream,
    ) -> None:
        self._token, self._journal, self._random = token, journal, random
        self._open_stream = open_stream
        self._instance = secrets.token_hex(8)
        self._session = Session(frames_max=FRAMES_MAX, bytes_max=BYTES_MAX)
        self._calls: dict[str, _Call] = {}
        self._next_id = 0
        self._queue: trio.MemorySendChannel[str] | None = None
        self._socket: trio_websocket.WebSocketConnection | None = None
        self._announced = False
        self._final = False
        self.url = ""
        self.methods: tuple[str, ...] = ()
        self.on_call: OnCall | None = None
        self.on_event: OnEvent = lambda _event, _data: None
        self.on_open: Callable[[], Awaitable[None]] | None = None
        self.pulse = Pulse()
        self.wanted = Pulse()
        self.dropped = 0
        self._serving = 0

    @property
    def connected(self) -> bool:
        """True while the session is open and registered."""
        return self._announced

    # -- the life of the wire --------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Keep the connection until cancelled or `leave`."""
        attempt = 0
        while not self._final:
            ended = await self._one()
            if self._final:
                return
            attempt = 1 if ended.opened else attempt + 1
            decision = decide(
                ended.code,
                attempt,
                random=self._random,
                protocol=2,
                close_reason=ended.reason,
                retry_after_s=ended.retry_after_s,
            )
            # A launcher never gives its kernel up: a verdict of `never` means that the kernel is to be replaced or
            # the token table was stale, so it comes back at the slowest pace instead.
            delay = decision.delay_s if decision.retry else NEVER_S
            self._journal.info("wire to the kernel lost", why=ended.reason or decision.reason, code=ended.code)
            await self.wanted.wait(trio.current_time() + delay)

    def come_back(self) -> None:
        """A kernel is ready: try now instead of at the due time."""
        self.wanted.beat()

    async def _one(self) -> _Ended:
        """Hold one connection; returns how it ended. Whatever the library raises ends this connection alone."""
        ended = _Ended()
        try:
            async with trio.open_nursery() as nursery:
                await self._converse(nursery, ended)
                nursery.cancel_scope.cancel()
        except* trio_websocket.ConnectionRejected as group:
            ended.retry_after_s = _retry_after(group)
        except* (OSError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as group:
            ended.reason = ended.reason or repr(_first(group))
        except* (trio_websocket.ConnectionClosed, trio_websocket.HandshakeError):
            pass
        except* Exception as group:
            # A bug of the wire must not take the supervision of everything else down.
            ended.reason = repr(_first(group))
            self._journal.error("wire to the kernel failed", why=ended.reason)
        finally:
            self._announced, self._socket, self._queue = False, None, None
            self.pulse.beat()
        return ended

    async def _converse(self, nursery: trio.Nursery, ended: _Ended) -> None:
        host, _, port = self.url.split("://", 1)[1].rpartition(":")
        with trio.fail_after(HANDSHAKE_S):
            stream = await self._open_stream(host.strip("[]"), int(port))
            socket = await trio_websocket.wrap_client_stream(
                nursery, stream, f"{host}:{port}", "/ws", max_message_size=MESSAGE_MAX
            )
        self._socket = socket
        try:
            answer = await self._authenticate(socket)
            ended.opened = True
            await self._hold(socket, answer)
        finally:
            await self._shut(socket)
            if socket.closed is not None:
                ended.code, ended.reason = socket.closed.code, socket.closed.reason or ""

    async def _authenticate(self, socket: trio_websocket.WebSocketConnection) -> dict[str, Any]:
        params: dict[str, Any] = {
            "token": self._token(),
            "module_id": MODULE_ID,
            "instance": self._instance,
            "protocol": 2,
        }
        offer = self._session.resume()
        if offer is not None:
            params["resume"] = offer
        with trio.fail_after(HANDSHAKE_S):
            await socket.send_message(_text({"id": 0, "method": "auth", "params": params}))
            kind, frame = read(str(await socket.get_message()))
        result = frame.get("result")
        if kind != "answer" or not isinstance(result, dict):
            raise ValueError(f"the kernel refused the launcher: {frame.get('error')}")
        return result

    async def _hold(self, socket: trio_websocket.WebSocketConnection, answer: dict[str, Any]) -> None:
        again = self._session.resumed(answer)
        sender, receiver = trio.open_memory_channel[str](QUEUE_MAX)
        self._queue = sender
        async with trio.open_nursery() as nursery:
            if again is None:
                self._fail_calls()
            nursery.start_soon(self._write, socket, again or [], receiver)
            nursery.start_soon(self._announce, again is not None)
            await self._read(socket, nursery)
            nursery.cancel_scope.cancel()

    async def _announce(self, resumed: bool) -> None:
        """Register, then say `module.ready`; after a resume both still stand."""
        if not resumed:
            await self.call("event.subscribe", {"events": ["watchdog.>"]}, timeout_s=HANDSHAKE_S)
            await self.call(
                "registry.register", {"methods": list(self.methods), "accepts_meta": True}, timeout_s=HANDSHAKE_S
            )
            self.publish("module.ready", {"module_id": MODULE_ID})
        self._announced = True
        self.pulse.beat()
        if self.on_open is not None:
            await self.on_open()

    async def _write(
        self, socket: trio_websocket.WebSocketConnection, again: list[str], texts: trio.MemoryReceiveChannel[str]
    ) -> None:
        for text in again:
            await socket.send_message(text)
        async for text in texts:
            self._session.sent(text)
            await socket.send_message(text)

    async def _read(self, socket: trio_websocket.WebSocketConnection, nursery: trio.Nursery) -> None:
        while True:
            text = await socket.get_message()
            if not isinstance(text, str):
                continue
            self._session.received()
            kind, frame = read(text)
            match kind:
                case "answer":
                    call = self._calls.pop(str(frame["id"]), None)
                    if call is not None:
                        call.answer = frame
                        call.done.set()
                case "request":
                    self._serve(frame, nursery)
                case "event":
                    self._heard(frame["params"])
                case _:
                    pass

    def _heard(self, params: dict[str, Any]) -> None:
        event, data = params["event"], params.get("data")
        details = data if isinstance(data, dict) else {}
        if event == "system.ping":
            received = details.get("received")
            if type(received) is int:
                self._session.acknowledged(received)
            pong = {"ping_time": details.get("ping_time"), "pong_time": _wall(), "received": self._session.count}
            self.publish("system.pong", pong)
            return
        if event == "module.shutdown":
            self.publish("module.shutdown_ack", {"module_id": MODULE_ID})
        self.on_event(event, details)

    def _serve(self, frame: dict[str, Any], nursery: trio.Nursery) -> None:
        if self._serving >= CALLS_MAX or self.on_call is None:
            self._put(_text({"id": frame["id"], "error": {"code": -32005, "message": "overloaded"}}))
            return
        self._serving += 1
        nursery.start_soon(self._answer, frame, self.on_call)

    async def _answer(self, frame: dict[str, Any], on_call: OnCall) -> None:
        meta = frame.get("meta")
        caller = str(meta.get("caller", "")) if isinstance(meta, dict) else ""
        try:
            method = str(frame["method"]).removeprefix(f"{MODULE_ID}.")
            answer = await on_call(method, frame.get("params", {}), caller)
            self._put(_text({"id": frame["id"], **answer}))
        finally:
            self._serving -= 1

    async def _shut(self, socket: trio_websocket.WebSocketConnection) -> None:
        with trio.move_on_after(CLOSE_S, shield=True):
            await socket.aclose()
        stream = getattr(socket, "_stream", None)
        if stream is not None:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    def dump(self) -> dict[str, Any]:
        """Return what the next image of this process needs to resume the session."""
        return {"instance": self._instance, "session": self._session.dump(), "next_id": self._next_id}

    def load(self, dump: dict[str, Any]) -> None:
        """Go on with the session of an earlier image."""
        self._instance, self._next_id = dump["instance"], dump["next_id"]
        self._session.load(dump["session"])

    # -- what others use -------------------------------------------------------------------------------------

    async def call(self, method: str, params: dict[str, Any], *, timeout_s: float) -> dict[str, Any] | None:
        """Call a method; the whole answer frame, or None: no wire, or no answer in time. Cancel: safe."""
        self._next_id += 1
        number = str(self._next_id)
        call = self._calls[number] = _Call()
        try:
            if not self._put(_text({"id": number, "method": method, "params": params, "meta": {"timeout": timeout_s}})):
                return None
            with trio.move_on_after(timeout_s):
                await call.done.wait()
            return call.answer
        finally:
            self._calls.pop(number, None)

    def publish(self, event: str, data: dict[str, Any]) -> None:
        """Publish an event as a notification, now or not at all."""
        self._put(_text({"method": "event.publish", "params": {"event": event, "data": data}}))

    async def shutdown_module(self, name: str, reason: str, deadline_s: float) -> bool:
        """Have the kernel say `module.shutdown` to one module; False when it could not."""
        params = {"module_id": name, "reason": reason, "deadline_s": deadline_s}
        answer = await self.call("kernel.shutdown_module", params, timeout_s=min(deadline_s / 4, 2.0))
        return answer is not None and "result" in answer

    async def leave(self) -> None:
        """Close with 1000 and stay away."""
        self._final = True
        socket = self._socket
        self.wanted.beat()
        if socket is not None:
            with trio.move_on_after(CLOSE_S):
                # An answered call proves that all before it (module.exiting) has arrived.
                await self.call("registry.get_module", {"module_id": MODULE_ID}, timeout_s=CLOSE_S / 2)
                await socket.aclose(1000, "instance ends")

    def _put(self, text: str) -> bool:
        if self._queue is None:
            return False
        try:
            self._queue.send_nowait(text)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self.dropped += 1
            return False
        return True

    def _fail_calls(self) -> None:
        for call in self._calls.values():
            call.done.set()
        self._calls.clear()


def _text(frame: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", **frame}, ensure_ascii=False, separators=(",", ":"))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _retry_after(group: BaseExceptionGroup[trio_websocket.ConnectionRejected]) -> float | None:
    """Read Retry-After of a refused upgrade, None where it says nothing sensible."""
    rejected = _first(group)
    for name, value in getattr(rejected, "headers", None) or ():
        if bytes(name).lower() == b"retry-after" and bytes(value).strip().isdigit():
            return min(float(bytes(value)), RETRY_AFTER_MAX_S)
    return None


def _wall() -> float:
    return time.time()  # a stamp on the wire, never a duration
