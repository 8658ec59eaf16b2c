"""A trio-websocket client that a test drops without ceremony: the library's own close fails on a ping that meets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio_websocket import WebSocketConnection, connect_websocket_url


@asynccontextmanager
async def dropped_after(url: str) -> AsyncIterator[WebSocketConnection]:
    """Connect for the time of the block; afterwards the TCP connection just ends."""
    async with trio.open_nursery() as nursery:
        wire = await connect_websocket_url(nursery, url)
        try:
            yield wire
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(wire._stream)
