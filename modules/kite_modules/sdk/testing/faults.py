"""A wire that can be cut, slowed down or made to drop everything: what tests do to a connection."""

from __future__ import annotations

import math
from contextlib import suppress

import trio
import trio.testing

_CHUNK_BYTES = 65536


class FaultyWire:
    """A pair of stream ends with faults between them. `near` is the client's end, `far` the server's."""

    def __init__(self) -> None:
        self.near, self._near_inner = trio.testing.memory_stream_pair()
        self.far, self._far_inner = trio.testing.memory_stream_pair()
        self.delay_s = 0.0
        self._flowing = trio.Event()
        self._flowing.set()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Carry bytes both ways until one end closes or the wire is cut."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, self._near_inner, self._far_inner)
                nursery.start_soon(self._carry, self._far_inner, self._near_inner)
        for stream in (self._near_inner, self._far_inner, self.near, self.far):
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    def cut(self) -> None:
        """End it as a pulled cable does: no close frame, an error on both ends."""
        self._scope.cancel()

    def drop(self) -> None:
        """Let nothing through any more; both ends stay open and hear nothing."""
        self._flowing = trio.Event()

    def heal(self) -> None:
        """Let everything through again, what was held back first."""
        self.delay_s = 0.0
        self._flowing.set()

    async def _carry(self, source: trio.abc.Stream, target: trio.abc.Stream) -> None:
        """Carry one direction; each chunk is late by the delay, none overtakes another."""
        send, receive = trio.open_memory_channel[tuple[float, bytes]](math.inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, receive, target)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while data := await source.receive_some(_CHUNK_BYTES):
                    send.send_nowait((trio.current_time() + self.delay_s, bytes(data)))
            send.close()

    async def _deliver(self, receive: trio.MemoryReceiveChannel[tuple[float, bytes]], target: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for due_at, data in receive:
                await trio.sleep_until(due_at)
                await self._flowing.wait()
                await target.send_all(data)
            await self._flowing.wait()
        self._scope.cancel()
