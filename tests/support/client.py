"""A trio-websocket client that a test drops without ceremony: the library's own close fails on a ping that meets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio
from trio_websocket import WebSocketConnection, wrap_client_stream


@asynccontextmanager
async def dropped_after(url: str) -> AsyncIterator[WebSocketConnection]:
    """Connect for the time of the block; afterwards the TCP connection just ends."""
    place = urlsplit(url)
    stream = await trio.open_tcp_stream(place.hostname or "", place.port or 0)
    try:
        async with trio.open_nursery() as nursery:
            yield await wrap_client_stream(nursery, stream, place.netloc, place.path or "/")
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
