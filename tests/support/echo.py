"""An echo server made of the kernel's own head parser and frame codec: what a conformance suite can talk to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from kite_kernel.core.http import Head, Incomplete, parse_head, switching_protocols
from kite_kernel.core.websocket import Closed, Codec, Fault, Ping, close_frame, pong_frame, text_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ_BYTES = 65536
LIMIT_BYTES = 32 * 1024 * 1024


def answers(codec: Codec, data: bytes) -> tuple[list[bytes], bool]:
    """Return what an echo answers to these bytes, and whether the connection ends with it."""
    out: list[bytes] = []
    for event in codec.feed(data):
        if isinstance(event, bytes):
            out.append(text_frame(event))
        elif isinstance(event, Ping):
            out.append(pong_frame(event.payload))
        elif isinstance(event, Closed):
            return [*out, close_frame(event.code)], True
        elif isinstance(event, Fault):
            return [*out, close_frame(event.code, event.reason)], True
    return out, False


async def _serve(stream: trio.SocketStream) -> None:
    """Echo until either side says goodbye; a peer that resets ends only itself."""
    try:
        async with stream:
            buffer = b""
            while True:
                head = parse_head(buffer)
                if isinstance(head, Head):
                    break
                assert isinstance(head, Incomplete), head
                data = await stream.receive_some(READ_BYTES)
                if not data:
                    return
                buffer += data
            await stream.send_all(switching_protocols(head))
            codec = Codec(max_message_bytes=LIMIT_BYTES, max_fragments=LIMIT_BYTES)
            data = buffer[head.size_bytes :]
            while True:
                out, ends = answers(codec, data)
                if out:
                    await stream.send_all(b"".join(out))
                if ends:
                    await stream.send_eof()
                    with trio.move_on_after(1):
                        while await stream.receive_some(READ_BYTES):
                            pass
                    return
                data = await stream.receive_some(READ_BYTES)
                if not data:
                    return
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Run the echo on a free loopback port for the length of the block; yields the port."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, _serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()
