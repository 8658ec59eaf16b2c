"""One WebSocket after its upgrade: who writes, when, and how it ends. Used by every plane of the kernel.

Laws:
- Whoever has something new calls `flush` once per read batch; it sends with one non-blocking call.
- When the socket would wait, a writer task starts and is the only one to write until everything went out, so that no
  frame is ever torn by a cancellation.
- A wire that ends says its farewell, gives the peer a moment to read it, and then the socket is gone in any case.

Source: spec 00 §4-5, §8a, 10-wire §3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio

from kite_kernel._contract import READ_BATCH_BYTES
from kite_kernel.core.websocket import close_frame, pong_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.edge.port import Port

FAREWELL_S: Final = 0.9
"""How long a closing wire may take to take the farewell and answer it (cases: TCP is gone within 1 s)."""

_BUFFER: Final = memoryview(bytearray(READ_BATCH_BYTES))  # one for all: nothing waits between reading and feeding


class Source(Protocol):
    """What a wire sends: `urgent` first (whole frames, outside any numbering), then what `take` hands out."""

    urgent: bytes

    def take(self) -> bytes:
        """Return the next whole frames, joined; b"" where nothing waits."""


class Wire:
    """The hand on one socket.

    Args:
        port: the stream. nursery: where the writer and the farewell run. source: what to send.
        on_drained: called when a blocked socket took something (`True`: everything).
    """

    __slots__ = ("_gone", "_nursery", "_owed", "_rest", "blocked", "closing", "ended", "on_drained", "port", "source")

    def __init__(
        self, port: Port, nursery: trio.Nursery, source: Source, on_drained: Callable[[Wire, bool], None] | None = None
    ) -> None:
        self.port = port
        self.source = source
        self.on_drained = on_drained
        self.blocked = False
        self.closing = False
        self.ended = False
        self._nursery = nursery
        self._rest: bytes | memoryview = b""
        self._owed = b""  # the newest pong that a blocked wire owes
        self._gone: trio.Event | None = None

    # --- reading ---

    async def receive(self) -> bytes:
        """Wait for bytes and return what has arrived, at most one read batch; b"" at the end of the stream.

        Errors: none, a broken or closed stream is an ended one. Cancel: safe.
        """
        port = self.port
        try:
            await port.wait_readable()
            while True:
                try:
                    count = port.receive_into(_BUFFER)
                except BlockingIOError:
                    await port.wait_readable()
                else:
                    return bytes(_BUFFER[:count])
        except (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            return b""

    # --- writing ---

    def flush(self) -> bool:
        """Send what waits. Returns: True where everything went out (or the wire is ending anyway). Never waits."""
        if self.blocked:
            return False
        if self.closing or self.ended:
            return True
        source = self.source
        while True:
            data: bytes = source.urgent
            if data:
                source.urgent = b""
            else:
                data = source.take()
                if not data:
                    return True
            if not self._send(data):
                return False

    def _send(self, data: bytes | memoryview) -> bool:
        """Send at once; what does not fit is left to the writer task. Returns: True where all of it fitted."""
        try:
            sent = self.port.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._break()
            return True
        if sent == len(data):
            return True
        self._rest = memoryview(data)[sent:]
        self.blocked = True
        self._nursery.start_soon(self._write)
        return False

    async def _write(self) -> None:
        """Own the socket until everything that waits went out."""
        port = self.port
        try:
            while not self.ended:
                while len(self._rest):
                    await port.wait_writable()
                    try:
                        sent = port.send(self._rest)
                    except BlockingIOError:
                        continue
                    self._rest = self._rest[sent:]
                if self.closing:
                    port.end_writing()
                    return
                self._rest = self._next()
                if self.on_drained is not None:
                    self.on_drained(self, not self._rest)
                if not self._rest:
                    self._rest = self._next()  # being told may have made something new
                if not self._rest:
                    return
        except (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            self._break()
        finally:
            self._rest = b""
            self.blocked = False

    def _next(self) -> bytes:
        data = self._owed + self.source.urgent
        if data:
            self._owed = b""
            self.source.urgent = b""
            return data
        return self.source.take()

    def pong(self, payload: bytes) -> None:
        """Answer a ping: at once on a free wire; a blocked one owes the newest pong only."""
        if self.blocked:
            self._owed = pong_frame(payload)
        else:
            self.source.urgent += pong_frame(payload)

    # --- ending ---

    def close(self, code: int | None, reason: str = "", frames: bytes = b"", *, within_s: float = FAREWELL_S) -> None:
        """Say `frames` and the close frame, then let go after `within_s` whatever the peer does. Idempotent.

        What a blocked wire holds already goes out first, without a gap; what waits in the source does not.
        """
        if self.closing or self.ended:
            return
        self.closing = True
        self._gone = trio.Event()
        last = frames + close_frame(code, reason)
        if self.blocked:
            self._rest = bytes(self._rest) + last
        elif self._send(last) and not self.ended:
            self.port.end_writing()
        self._nursery.start_soon(self._farewell, within_s)

    async def _farewell(self, within_s: float) -> None:
        with trio.move_on_after(within_s):
            if self._gone is not None:
                await self._gone.wait()
        self.end()

    def _break(self) -> None:
        """The socket is broken: wake the reader, which then ends the wire."""
        self.end()

    def end(self) -> None:
        """Let go of the socket now. Idempotent."""
        if not self.ended:
            self.ended = True
            self.port.close()
        if self._gone is not None:
            self._gone.set()
