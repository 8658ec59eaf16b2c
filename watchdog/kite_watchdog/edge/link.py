"""The watchdog's wire: connects by the strategy table, answers pings at once, carries calls and events.

One task reads, one task writes and owns the socket; both end with the connection's nursery. What a failure means is
decided in `core.link`. Every wait has a bound, both queues have one. Source: spec 10-wire, 30-clients §1.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import trio
import trio_websocket

from kite_watchdog._contract import CLOSE_RATE_LIMITED, E_METHOD_NOT_FOUND, INTERNAL_COOLDOWN
from kite_watchdog.core import frames
from kite_watchdog.core.frames import Answer
from kite_watchdog.core.link import Session
from kite_watchdog.core.reconnect import Decision, decide
from kite_watchdog.edge.connect import (
    Ended,
    OpenStream,
    Target,
    ended_by_answer,
    ended_by_close,
    first_of,
    open_connection,
)
from kite_watchdog.edge.log import Log
from kite_watchdog.edge.peer import Peer

HANDSHAKE_S: Final = 5.0  # seconds, connect and upgrade and auth each; never below one second, whatever the scale
OUTGOING_MAX: Final = 4096  # frames waiting for the writer; beyond it calls fail at once and events are counted away
PENDING_MAX: Final = 4096  # calls waiting for an answer
GRACE_S: Final = 2.0  # seconds that the kernel may be late with its own deadline before it counts as silent

NOT_SENT: Final = Answer(error=-32001, message="not connected", outcome="not_sent", lost=True)
NO_ANSWER: Final = Answer(error=-32003, message="no answer in time", outcome="unknown", lost=True)
WIRE_LOST: Final = Answer(error=-32002, message="wire lost", outcome="unknown", lost=True)


class _Pending:
    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer = WIRE_LOST


class Link:
    """One module's wire to the kernel.

    Args: url of the kernel; token, which never leaves this object but in the auth request; scale of all waits.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        module_id: str,
        methods: tuple[str, ...],
        peer: Peer,
        log: Log,
        scale: float = 1.0,
        open_stream: OpenStream = trio.open_tcp_stream,
        rng: Callable[[], float] = random.random,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self._target = Target.of(url)
        self._token, self._module_id, self._methods, self._meta = token, module_id, methods, meta or {}
        self._peer, self._log, self._scale, self._rng = peer, log, scale, rng
        self._open_stream = open_stream
        self._instance = f"{random.getrandbits(64):016x}"
        self.session = Session()
        self.is_open = False
        self.stay_away = False  # set by the owner: the next end of the wire is the last one
        self.last_in_at = 0.0  # trio time of the last frame
        self.dropped = 0  # events that found the queue full
        self.garbage = 0  # frames that said nothing
        self.attempts: dict[str, int] = {}  # attempts by reason
        self._outgoing: deque[str] = deque()
        self._wake, self._drained = trio.Event(), trio.Event()
        self._pending: dict[int, _Pending] = {}
        self._next_id = 2
        self._scope: trio.CancelScope | None = None
        self._connection: trio_websocket.WebSocketConnection | None = None
        self._stopping = False
        self._closed = trio.Event()  # set once `stop` has said goodbye
        self._authenticated = False
        self._retry_now = trio.Event()

    async def run(self) -> Decision | None:
        """Keep the wire open; return the decision that ended it for good, or None after `stop`. Cancel: safe."""
        attempt, limited = 0, 0
        while True:
            self._authenticated = False
            ended = await self._connection_once()
            self.is_open = False
            if self._stopping or self.stay_away:
                self._fail_pending()
                return None
            if self._authenticated:
                attempt, limited = 0, 0
            attempt += 1
            limited = limited + 1 if ended.code == CLOSE_RATE_LIMITED else 0
            decision = decide(
                ended.code,
                limited or attempt,
                random=self._rng,
                protocol=ended.protocol,
                close_reason=ended.reason,
                retry_after_s=ended.retry_after_s,
            )
            self.attempts[decision.kind] = self.attempts.get(decision.kind, 0) + 1
            self._say(decision, ended, limited)
            if not decision.retry:
                self._fail_pending()
                return decision
            self._peer.on_failure(decision)
            self._retry_now = trio.Event()
            with trio.move_on_after(decision.delay_s * self._scale):
                await self._retry_now.wait()
            if self._stopping:
                self._fail_pending()
                return None

    async def call(
        self, method: str, params: object, *, timeout_s: float, wait: bool = True, grace_s: float | None = None
    ) -> Answer:
        """Call a method; always gives an Answer, at the latest `timeout_s` and a grace after now. Cancel: safe."""
        if not self._authenticated or len(self._pending) >= PENDING_MAX:
            return NOT_SENT
        number, pending = self._next_id, _Pending()
        self._next_id += 1
        if not self._send(frames.request(number, method, params, timeout_s=timeout_s, wait=wait)):
            return NOT_SENT
        self._pending[number] = pending
        try:
            with trio.move_on_after(timeout_s + (GRACE_S * self._scale if grace_s is None else grace_s)):
                await pending.done.wait()
                return pending.answer
            return NO_ANSWER
        finally:
            self._pending.pop(number, None)

    def publish(self, event: str, data: object) -> bool:
        """Publish an event as a notification; False = not connected or the queue is full, it is counted away."""
        if self._authenticated and self._send(frames.publish(event, data)):
            return True
        self.dropped += 1
        return False

    def drop(self, why: str) -> None:
        """Give the present connection up, as one that is open and silent; the strategy table follows."""
        if self._scope is not None:
            self._log.warning("the wire is given up", why=why)
            self._scope.cancel()

    async def stop(self, *, within_s: float = 1.0) -> None:
        """Send what is queued, close with 1000, and don't come back. Cancel: cuts the wire."""
        self._stopping = True
        self._retry_now.set()
        with trio.move_on_after(within_s):
            if self._outgoing and self.is_open:
                await self._drained.wait()
            if self._connection is not None:
                await self._connection.aclose(1000)
        self._closed.set()
        if self._scope is not None:
            self._scope.cancel()

    async def _connection_once(self) -> Ended:
        ended = Ended()
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                ended = await self._converse(nursery)
                if self._stopping:  # the library's reader, in this nursery, still has the closing handshake to hear
                    await self._closed.wait()
                nursery.cancel_scope.cancel()
        except* trio_websocket.ConnectionRejected as group:
            ended = ended_by_answer(group)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as group:
            ended = Ended(None, f"{first_of(group)}")
        except* trio_websocket.ConnectionClosed:
            ended = Ended(None, "closed during the handshake")
        except* Exception as group:  # a bug of a library below must not end the last one to fail
            self._log.error("a fault on the wire", fault=repr(first_of(group)))
            ended = Ended(None, "a fault of the watchdog's own")
        finally:
            self._scope = self._connection = None
        return ended

    async def _converse(self, nursery: trio.Nursery) -> Ended:
        limit_s = max(1.0, HANDSHAKE_S * self._scale)
        with trio.move_on_after(limit_s):
            connection = await open_connection(nursery, self._target, self._open_stream)
            if connection is None:
                return Ended(None, "the connection ended before the answer to the upgrade")
            self._connection = connection
        if self._connection is None:
            return Ended(None, f"no handshake within {limit_s:g} s")
        answer = await self._authenticate(self._connection, limit_s)
        if isinstance(answer, Ended):
            return answer
        replay = self.session.resumed(answer)
        if replay is None:
            self._fail_pending()
            self._outgoing.clear()
        self._authenticated = True
        nursery.start_soon(self._write, self._connection, replay or [])
        nursery.start_soon(self._sync, replay is not None, answer)
        protocol = answer.get("protocol")
        return await self._read(self._connection, protocol if isinstance(protocol, int) else 2)

    async def _authenticate(self, connection: trio_websocket.WebSocketConnection, limit_s: float) -> Any:
        params: dict[str, Any] = {
            "token": self._token,
            "module_id": self._module_id,
            "instance": self._instance,
            "protocol": 2,
        }
        if (resume := self.session.resume()) is not None:
            params["resume"] = resume
        try:
            with trio.move_on_after(limit_s):
                await connection.send_message(frames.request(1, "auth", params))
                while True:  # an error and a `bye` may come before the close code, which says what it means
                    text = await connection.get_message()
                    frame = frames.parse(text) if isinstance(text, str) else frames.Garbage("binary")
                    if isinstance(frame, frames.Reply) and frame.answer.error is None:
                        value = frame.answer.value()
                        return value if isinstance(value, dict) else Ended(None, "an auth answer that is no object")
        except trio_websocket.ConnectionClosed as closed:
            return ended_by_close(closed, None)
        return Ended(None, f"no auth answer within {limit_s:g} s")

    async def _sync(self, resumed: bool, answer: dict[str, Any]) -> None:
        if not resumed:
            limit_s = max(1.0, HANDSHAKE_S * self._scale)
            for method, params in (
                ("event.subscribe", {"events": []}),
                ("registry.register", {"methods": list(self._methods), "meta": self._meta}),
            ):
                said = await self.call(method, params, timeout_s=limit_s)
                if said.error is not None:
                    self.drop(f"{method} was answered {said.error} {said.message}")
                    return
            self.publish("module.ready", {"module_id": self._module_id})
        self.is_open = True
        kernel = answer.get("kernel")
        self._log.info("connected", resumed=resumed)
        self._peer.on_open(resumed=resumed, kernel=kernel if isinstance(kernel, dict) else {})

    async def _write(self, connection: trio_websocket.WebSocketConnection, replay: list[str]) -> None:
        with contextlib.suppress(trio_websocket.ConnectionClosed):
            for text in replay:
                await connection.send_message(text)
            while True:
                while self._outgoing:
                    text = self._outgoing.popleft()
                    self.session.sent(text)
                    await connection.send_message(text)
                self._drained.set()
                self._wake = trio.Event()
                await self._wake.wait()

    async def _read(self, connection: trio_websocket.WebSocketConnection, protocol: int) -> Ended:
        try:
            while True:
                message = await connection.get_message()
                self.last_in_at = trio.current_time()
                if isinstance(message, str):
                    self.session.received()
                    self._take(frames.parse(message))
        except trio_websocket.ConnectionClosed as closed:
            return ended_by_close(closed, protocol)

    def _take(self, frame: frames.Reply | frames.Event | frames.Call | frames.Garbage) -> None:
        match frame:
            case frames.Reply(id=number, answer=answer):
                pending = self._pending.get(number) if isinstance(number, int) else None
                if pending is not None:
                    pending.answer = answer
                    pending.done.set()
            case frames.Event(name="system.ping"):
                self.session.acknowledged(frame.data.get("received"))
                pong = {"ping_time": frame.data.get("ping_time"), "pong_time": time.time()}
                self._send(frames.publish("system.pong", pong | {"received": self.session.in_count}))
            case frames.Event():
                self._peer.on_event(frame)
            case frames.Call(notice=True):
                if frame.method == "bye":
                    why = frames.plain(str(frame.params.get("why", "")))
                    self._log.info("the kernel says goodbye", code=frame.params.get("code"), why=why)
            case frames.Call():
                self._answer(frame)
            case frames.Garbage():
                self.garbage += 1

    def _answer(self, call: frames.Call) -> None:
        try:
            text = frames.reply(call.id, self._peer.on_call(call.method, call.params))
        except KeyError:
            data = {"reason": "unknown_method", "outcome": "not_sent", "nearest": list(self._methods)}
            text = frames.refusal(call.id, E_METHOD_NOT_FOUND, "method not found", data)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            text = frames.refusal(call.id, -32603, "internal error", {"reason": "bug", "outcome": "unknown"})
            self._log.error("a call could not be answered", method=call.method, fault=repr(error))
        self._send(text)

    def _send(self, text: str) -> bool:
        if len(self._outgoing) >= OUTGOING_MAX:
            return False
        self._outgoing.append(text)
        if self._drained.is_set():
            self._drained = trio.Event()
        self._wake.set()
        return True

    def _fail_pending(self) -> None:
        for pending in self._pending.values():
            pending.answer = WIRE_LOST
            pending.done.set()
        self._pending.clear()

    def _say(self, decision: Decision, ended: Ended, limited: int) -> None:
        if not decision.retry:
            self._log.error(f"[module] 致命错误 (code {ended.code})，退出", code=ended.code, why=decision.reason)
        elif decision.strategy == "cooldown":
            self._log.warning(
                f"[module] 速率限制，{decision.delay_s:g}s 后重试 ({limited}/{INTERNAL_COOLDOWN.max_tries})",
                code=ended.code,
                attempt=limited,
            )
        else:
            self._log.info(
                "not connected",
                why=ended.reason or decision.reason,
                again_in_s=round(decision.delay_s * self._scale, 3),
            )
