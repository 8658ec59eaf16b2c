"""A plain client that reads everything and answers every ping: what happens to it, happens to every healthy peer.

It does not come back by itself and resumes nothing; the one who made it hears how its wire ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio
import trio_websocket

HANDSHAKE_S: Final = 5.0
CALL_S: Final = 10.0
MESSAGE_BYTES_MAX: Final = 17_825_792


class Refused(Exception):
    """The kernel closed before or instead of an auth answer; `code` None = without a code."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(f"close {code} {reason}")
        self.code = code


class Peer:
    """One authenticated connection; `closed` holds the code once it ended."""

    def __init__(self, wire: trio_websocket.WebSocketConnection, hear: Callable[[str, Any], None]) -> None:
        self._wire, self._hear = wire, hear
        self._answers: dict[int, Any] = {}
        self._news = trio.lowlevel.ParkingLot()
        self._next = 10
        self.closed: int | None = None
        self.ended = trio.Event()

    async def call(self, method: str, params: Any) -> dict[str, Any] | None:
        """Call; the whole answer, or None where the wire ended or nobody answered in time."""
        self._next += 1
        number = self._next
        with trio.move_on_after(CALL_S), suppress(trio_websocket.ConnectionClosed):
            await self._send({"id": number, "method": method, "params": params})
            while number not in self._answers and not self.ended.is_set():
                await self._news.park()
        answer = self._answers.pop(number, None)
        return answer if isinstance(answer, dict) else None

    async def publish(self, event: str, data: Any) -> None:
        """Publish as a notification."""
        with suppress(trio_websocket.ConnectionClosed):
            await self._send({"method": "event.publish", "params": {"event": event, "data": data}})

    async def _send(self, frame: dict[str, Any]) -> None:
        await self._wire.send_message(json.dumps({"jsonrpc": "2.0", **frame}))

    async def read(self) -> None:
        """Read until the wire ends."""
        try:
            while True:
                await self._take(json.loads(await self._wire.get_message()))
        except trio_websocket.ConnectionClosed as closed:
            self.closed = closed.reason.code if closed.reason is not None else None
        finally:
            self.ended.set()
            self._news.unpark_all()

    async def _take(self, frame: dict[str, Any]) -> None:
        if frame.get("method") == "event":
            params = frame["params"]
            if params["event"] == "system.ping":
                pong = {"ping_time": params["data"]["ping_time"], "pong_time": time.time()}
                await self.publish("system.pong", pong)
            else:
                self._hear(params["event"], params.get("data"))
        elif "id" in frame and "method" not in frame:
            self._answers[frame["id"]] = frame
            self._news.unpark_all()


@asynccontextmanager
async def connected(
    url: str, token: str, module_id: str, hear: Callable[[str, Any], None], *, events: tuple[str, ...] = ()
) -> AsyncGenerator[Peer, None]:
    """Connect and authenticate for the time of the block. Raises: Refused, OSError."""
    wire: trio_websocket.WebSocketConnection
    async with trio.open_nursery() as nursery:
        try:
            with trio.fail_after(HANDSHAKE_S):
                host, _, port = url.partition("://")[2].rpartition(":")
                wire = await trio_websocket.connect_websocket(
                    nursery, host, int(port), "/ws", use_ssl=False, max_message_size=MESSAGE_BYTES_MAX
                )
                params = {"token": token, "module_id": module_id, "protocol": 2}
                await wire.send_message(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": params}))
                await _authenticated(wire)
        except trio.TooSlowError:
            raise Refused(None, "no answer in time") from None
        peer = Peer(wire, hear)
        nursery.start_soon(peer.read)
        if events:
            await peer.call("event.subscribe", {"events": list(events)})
        try:
            yield peer
        finally:
            with trio.move_on_after(1, shield=True):
                await wire.aclose(1000)
            nursery.cancel_scope.cancel()


async def _authenticated(wire: trio_websocket.WebSocketConnection) -> None:
    try:
        while True:
            frame = json.loads(await wire.get_message())
            if frame.get("id") == 1 and "result" in frame:
                return
    except trio_websocket.ConnectionClosed as closed:
        reason = closed.reason
        raise Refused(reason.code if reason else None, (reason.reason or "") if reason else "") from None


def first_of(error: BaseException) -> BaseException:
    """Give the first real error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
