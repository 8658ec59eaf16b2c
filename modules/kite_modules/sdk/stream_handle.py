"""One stream of the kernel in a module's hands: read it from where one stands, publish into it exactly once.

    async for record in kite.stream("ticks").subscribe(last=cursor): ...
    async with kite.stream("ticks").publisher() as publisher: await publisher.publish("text")

Source: spec 30-clients §2, 40-streams.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self

import attrs
import msgspec
import trio

from kite_modules.sdk.stream import (
    End,
    Message,
    Steps,
    StreamClosed,
    StreamReset,
    backoff,
    read_message,
    read_wire,
    with_query,
)
from kite_modules.sdk.stream_file import Cursor, CursorFile
from kite_modules.sdk.stream_publisher import Publisher
from kite_modules.sdk.transport import Endpoint

BUFFER: Final = 256
"""Records that wait for the one who reads them; a reader that is slower than that is cut and comes back by itself."""

_BASE_S: Final = 0.1
_CAP_S: Final = 5.0


@attrs.frozen
class Record:
    """One message of a stream."""

    seq: int
    data: str

    def json(self) -> Any:
        """Read the text as JSON. Raises: ValueError."""
        return msgspec.json.decode(self.data)


class Stream:
    """One stream. Made by `kite.stream(name)`; may also be made by hand, with an own nursery and no `call`."""

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None,
        *,
        nursery: trio.Nursery | None = None,
        call: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        """Args: `url` of the kernel; `nursery` holds the subscriptions' readers; `call` asks the kernel's methods."""
        self.name = name
        self.endpoint = Endpoint(url)
        self.token = token
        self._nursery = nursery
        self._call = call

    def path(self, plane: str, **query: str | None) -> str:
        """Return the path of a plane (`pub`, `sub`, `stats`) of this stream."""
        return with_query(f"/{plane}/{self.name}", **query)

    def subscribe(
        self,
        last: int | Cursor | None = None,
        *,
        epoch: str | None = None,
        cursor_file: str | os.PathLike[str] | None = None,
        buffer: int = BUFFER,
    ) -> Subscription:
        """Read the stream: what follows `last`, or from now on.

        Comes back after cuts by itself, without gap or repeat. With `cursor_file` it goes on after the record whose
        turn was over when the file was last written: at the next record, and at the end of `async with`.

        Raises (while iterating): StreamReset when the stream can't go on there; asked for the next record then, it
        goes on behind what is lost. StreamClosed when it may not be asked again.
        """
        file = None if cursor_file is None else CursorFile(cursor_file)
        begin = last if isinstance(last, Cursor) or last is None else Cursor(last, epoch)
        begin = (None if file is None else file.load()) or begin
        follower = Follower(self, begin, epoch=epoch, buffer=buffer)
        return Subscription(follower, self._nursery, file)

    @asynccontextmanager
    async def publisher(self, *, window: int = 1024) -> AsyncGenerator[Publisher, None]:
        """Publish many messages over one wire; each is stored once, however often the wire is cut.

        Args: `window`: how many may be under way; beyond it `publish` waits.
        """
        publisher = Publisher(self.endpoint, self.path("pub", ack="1", ids="1"), self.token, window=window)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            try:
                yield publisher
                await publisher.flush()
            finally:
                nursery.cancel_scope.cancel()

    async def publish(self, data: str, *, id: str | None = None) -> int:
        """Publish one message and return its number once it is safe. With `id` a repeat gets the first number.

        Raises: CallError.
        """
        if self._call is None:
            async with self.publisher(window=1) as publisher:
                return await publisher.publish(data, id=id)
        params = {"stream": self.name, "data": data} | ({} if id is None else {"id": id})
        answer = await self._call("stream.publish", params)
        return int(answer["seq"])

    async def stats(self) -> dict[str, Any] | None:
        """Return the numbers of `/stats`; None when nobody uses this stream yet. Raises: StreamClosed."""
        found: list[dict[str, Any]] = []

        def on_text(text: str) -> bool:
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(text, type=dict[str, Any]))
            return False

        end = await read_wire(self.endpoint, self.path("stats"), on_text, token=self.token)
        if end is not None and end.is_final and end.code != 404:
            raise StreamClosed(end.code, end.reason)
        return found[0] if found else None


class Follower:
    """Reads one stream wire after wire into a bounded channel. Knows nothing of who takes from it."""

    def __init__(self, stream: Stream, cursor: Cursor | None, *, epoch: str | None, buffer: int) -> None:
        self._stream = stream
        self._steps = Steps(None if cursor is None else cursor.seq)
        self.epoch = epoch if cursor is None else cursor.epoch
        self.scope = trio.CancelScope()
        self._send, self.records = trio.open_memory_channel[Record | Exception](buffer)

    async def run(self) -> None:
        """Follow until the stream may not be asked again, or `scope` is cancelled."""
        attempt = 0
        with self.scope:
            async with self._send:
                await self._learn()
                while True:
                    before = self._steps.last
                    end = await self._read_once()
                    if end is not None and end.is_final:
                        await self._send.send(StreamClosed(end.code, end.reason))
                        return
                    attempt = 0 if self._steps.last != before else attempt + 1
                    wait_s = backoff(attempt, _BASE_S, _CAP_S, random)
                    await trio.sleep(max(wait_s, end.retry_after_s if end is not None else 0.0))

    async def _learn(self) -> None:
        """Ask where the stream stands: a subscriber that knows number and epoch misses nothing, whatever is cut."""
        if self._steps.last is not None and self.epoch is not None:
            return
        try:
            stats = await self._stream.stats()
        except StreamClosed:
            return  # said again, and to the reader, when the stream itself is asked
        if stats is None or type(stats.get("seq")) is not int:
            return
        if self._steps.last is None:
            self._steps.last = stats["seq"]
        epoch = stats.get("epoch")
        if self.epoch is None and isinstance(epoch, str):
            self.epoch = epoch

    async def _read_once(self) -> End | None:
        last = self._steps.last
        path = self._stream.path("sub", last=None if last is None else str(last), epoch=self.epoch)
        try:
            return await read_wire(self._stream.endpoint, path, self._on_text, token=self._stream.token)
        except StreamReset as reset:
            self._steps = Steps(reset.seq)
            self.epoch = reset.epoch or self.epoch
            await self._send.send(reset)
            return None

    async def _on_text(self, text: str) -> bool:
        message: Message | None = read_message(text)
        if message is None:
            return True
        verdict = self._steps.take(message)
        if verdict:
            data = message.data if isinstance(message.data, str) else msgspec.json.encode(message.data).decode()
            await self._send.send(Record(message.seq, data))
            self._steps.last = message.seq
        return verdict is not None


class Subscription:
    """The records of one stream, in order: `async for record in subscription`.

    Ends with its client. Dropped or closed (`aclose`, `async with`) it lets go of its wire.
    """

    def __init__(self, follower: Follower, nursery: trio.Nursery | None, file: CursorFile | None) -> None:
        self._follower = follower
        self._nursery = nursery
        self._file = file
        self._given: Record | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def cursor(self) -> Cursor | None:
        """Where one stands: after the record that was given last. None before the first."""
        return None if self._given is None else Cursor(self._given.seq, self._follower.epoch)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._token is None:
            if self._nursery is None:
                raise RuntimeError("a subscription without a client needs `Stream(…, nursery=…)`")
            self._token = trio.lowlevel.current_trio_token()
            self._nursery.start_soon(self._follower.run)
        self._store()
        try:
            item = await self._follower.records.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None
        if isinstance(item, Exception):
            raise item
        self._given = item
        return item

    def _store(self) -> None:
        """Write down that the last record's turn is over."""
        cursor = self.cursor
        if self._file is not None and cursor is not None:
            self._file.store(cursor)

    async def aclose(self) -> None:
        """Let go of the wire. The record that was given last counts as done."""
        self._store()
        self._follower.scope.cancel()
        await self._follower.records.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._file = None  # the record in hand was not finished
        await self.aclose()

    def __del__(self) -> None:
        """Whoever breaks out of the loop leaves this object behind: its wire must not stay."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._follower.scope.cancel)
