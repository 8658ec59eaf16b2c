"""Publishing many messages over one wire, each stored once: every message has an id, and what wasn't answered when the
wire was cut is sent again, in order, on the next one.

Source: spec 40-streams §1 (`ack`, `ids`), 05-surface §9, cases W-65.
"""

from __future__ import annotations

import random
import secrets
from collections import OrderedDict
from typing import Any, Final

import attrs
import msgspec
import trio

from kite_modules._contract import E_STORE_UNAVAILABLE, STREAM_ID_BYTES
from kite_modules.sdk.errors import CallError, kernel_error
from kite_modules.sdk.stream import StreamClosed, ask_for_life, backoff, end_of
from kite_modules.sdk.transport import Endpoint, Wire, WireLost, open_wire

_BASE_S: Final = 0.1
_CAP_S: Final = 5.0


class _Answer(msgspec.Struct):
    seq: int | None = None
    error: dict[str, Any] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


@attrs.define(eq=False)
class Receipt:
    """One message under way."""

    frame: str = attrs.field(repr=False)
    _done: trio.Event = attrs.field(factory=trio.Event)
    _outcome: int | Exception | None = None

    async def wait(self) -> int:
        """Return its number once it is safe. Raises: CallError, StreamClosed. Cancel: safe."""
        await self._done.wait()
        if isinstance(self._outcome, int):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    async def settled(self) -> None:
        """Wait until it was answered, whatever the answer is."""
        await self._done.wait()

    def finish(self, outcome: int | Exception) -> None:
        """Note the answer."""
        self._outcome = outcome
        self._done.set()


class Publisher:
    """One publisher. `run` is its task; `publish` and `send` may be called by many at once."""

    def __init__(self, endpoint: Endpoint, path: str, token: str | None, *, window: int) -> None:
        self._endpoint = endpoint
        self._path = path
        self._token = token
        self._room = trio.Semaphore(window)
        self._items: OrderedDict[int, Receipt] = OrderedDict()
        self._next = 0
        self._sent = 0
        self._prefix = secrets.token_hex(8)
        self._news = trio.Event()
        self._closed: StreamClosed | None = None

    async def publish(self, data: str, *, id: str | None = None) -> int:
        """Publish one message and return its number once it is safe.

        Args: `id` (at most 128 bytes): a repeat of it, by anyone, gets the first number. Raises: CallError when the
        store refused it, StreamClosed when the stream may not be asked again. Cancel: it may have been published.
        """
        return await (await self.send(data, id=id)).wait()

    async def send(self, data: str, *, id: str | None = None) -> Receipt:
        """Put one message on its way, behind those that were sent before; wait only while the window is full.

        Raises: StreamClosed. Cancel: nothing was sent.
        """
        if not isinstance(data, str):
            raise TypeError(f"data must be text, not {type(data).__name__}")
        if id is not None and len(id.encode()) > STREAM_ID_BYTES:
            raise ValueError(f"id must have at most {STREAM_ID_BYTES} bytes")
        await self._room.acquire()
        if self._closed is not None:
            self._room.release()
            raise self._closed
        frame = {"id": id if id is not None else f"{self._prefix}-{self._next}", "data": data}
        receipt = Receipt(msgspec.json.encode(frame).decode())
        self._items[self._next] = receipt
        self._next += 1
        self._news.set()
        return receipt

    async def flush(self) -> None:
        """Wait until everything was answered."""
        for item in list(self._items.values()):
            await item.settled()

    async def run(self) -> None:
        """Keep a wire until cancelled, or until the stream may not be asked again: then every `publish` is told."""
        attempt = 0
        while True:
            before = self._answered
            try:
                await self._serve_once()
            except WireLost as lost:
                end = end_of(lost.lost)
                if end.is_final:
                    self._give_up(StreamClosed(end.code, end.reason))
                    return
                attempt = 0 if self._answered > before else attempt + 1
                await trio.sleep(max(backoff(attempt, _BASE_S, _CAP_S, random), end.retry_after_s))

    def _give_up(self, closed: StreamClosed) -> None:
        self._closed = closed
        items, self._items = self._items, OrderedDict()
        for item in items.values():
            item.finish(closed)
            self._room.release()

    @property
    def _answered(self) -> int:
        return self._next - len(self._items)

    async def _serve_once(self) -> None:
        """Send what is not answered on a fresh wire, then what comes; read the answers. Raises: WireLost."""
        headers = [] if self._token is None else [(b"Authorization", f"Bearer {self._token}".encode())]
        lost: WireLost | None = None
        wire: Wire | None = None
        async with trio.open_nursery() as nursery:
            try:
                wire = await open_wire(
                    nursery, self._endpoint.connect, host=self._endpoint.host, path=self._path, headers=headers
                )
                self._sent = self._next - len(self._items)
                nursery.start_soon(self._send_all, wire)
                nursery.start_soon(ask_for_life, wire)
                while True:
                    self._take(await wire.receive())
            except WireLost as error:
                lost = error
            finally:
                if wire is not None:
                    await wire.abort()
            nursery.cancel_scope.cancel()
        if lost is not None:
            raise lost

    async def _send_all(self, wire: Wire) -> None:
        try:
            while True:
                while self._sent < self._next:
                    item = self._items[self._sent]
                    self._sent += 1
                    await wire.send(item.frame)
                self._news = trio.Event()
                await self._news.wait()
        except WireLost:
            return  # the reader hears it, too

    def _take(self, text: str | None) -> None:
        """Take one answer: they come one a frame, in order."""
        try:
            answer = None if text is None else _decode_answer(text)
        except msgspec.MsgspecError:
            return
        if answer is None or not self._items or (answer.seq is None and answer.error is None):
            return  # a notice
        _, item = self._items.popitem(last=False)
        item.finish(answer.seq if answer.seq is not None else _error_of(answer.error or {}))
        self._room.release()


def _error_of(error: dict[str, Any]) -> CallError:
    data = error.get("data")
    reason = data.get("reason", "unavailable") if isinstance(data, dict) else "unavailable"
    outcome = data.get("outcome", "unknown") if isinstance(data, dict) else "unknown"
    return kernel_error(E_STORE_UNAVAILABLE, reason, outcome)
