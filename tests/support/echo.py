"""A real kernel that echoes at `/`: its own door, wire and codec, so that a conformance suite can talk to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from kite_kernel.config import build as config_of
from kite_kernel.core.auth import Tokens
from kite_kernel.core.http import switching_protocols
from kite_kernel.core.websocket import Closed, Codec, Fault, Ping, Pong, text_frame
from kite_kernel.edge.kernel import build, run
from kite_kernel.edge.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kite_kernel.core.http import Head
    from kite_kernel.edge.port import Port

LIMIT_BYTES = 32 * 1024 * 1024


class Echo:
    """What one wire owes: every text that came in, in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.urgent = b""
        self.owed: list[bytes] = []

    def take(self) -> bytes:
        """See kite_kernel.edge.wire.Source."""
        owed, self.owed = self.owed, []
        return b"".join(owed)

    async def serve(self, port: Port, head: Head, leftover: bytes) -> None:
        """Echo from the 101 to the end."""
        wire = Wire(port, self.nursery, self)
        self.urgent = switching_protocols(head)
        wire.flush()
        codec = Codec(max_message_bytes=LIMIT_BYTES, max_fragments=LIMIT_BYTES)
        data = leftover or await wire.receive()
        while data:
            for event in codec.feed(data):
                match event:
                    case bytes():
                        self.owed.append(text_frame(event))
                        if not wire.flush():
                            await self.drained(wire)
                    case Ping(payload=payload):
                        wire.pong(payload)
                    case Closed(code=code):
                        wire.flush()
                        wire.close(code)
                    case Fault(code=code, reason=reason):
                        wire.flush()
                        wire.close(code, reason)
                    case Pong():
                        pass
            wire.flush()
            data = await wire.receive()
        wire.end()

    async def drained(self, wire: Wire) -> None:
        """Wait for a reader that reads slower than it writes: an echo has no bound of its own."""
        while wire.blocked and not wire.ended:
            await trio.sleep(0.001)


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Run it on a free loopback port for the length of the block; yields the port."""
    async with trio.open_nursery() as nursery:
        config = config_of({}, "", "kite.toml", standalone=True)
        kernel = build(config, Tokens({}), nursery, version="0", epoch="epoch-1")

        async def plane(port: Port, head: Head, addr: str, leftover: bytes) -> None:
            del addr
            await Echo(nursery).serve(port, head, leftover)

        kernel.door.planes[""] = plane
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        kernel.listen(listener.socket._sock)  # type: ignore[attr-defined]
        nursery.start_soon(run, kernel)
        try:
            yield listener.socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
    listener.socket.close()
