"""The stream under the WebSocket: tells when it ended, and is never used again after half a frame.

Measured: a cancelled `send_all` leaves half a frame on a wire that still looks open, and a connection that ends before
the answer to the upgrade leaves the handshake waiting for ever. Source: spec 00 §4, §5.
"""

from __future__ import annotations

import trio


class Transport(trio.abc.Stream):
    """Wraps a stream. `ended` is set when nothing more will come in."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.ended = trio.Event()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive; b"" and a broken wire set `ended`. Cancel: safe."""
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise
        if not data:
            self.ended.set()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Cancel: closes the wire, so that no byte ever follows a torn frame."""
        try:
            await self._stream.send_all(data)
        except BaseException:
            await trio.aclose_forcefully(self._stream)
            self.ended.set()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        """As of the stream below. Cancel: safe."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream below. Cancel: closes it all the same."""
        self.ended.set()
        await self._stream.aclose()
