"""One browser's WebSocket: a bounded queue with one writer, a reader, and one place where it is closed.

Source: spec 00 §5, §6; 80 §1 (slow browser 4011); case X-33.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from kite_modules import _contract

FRAMES_MAX: Final = 1000
QUEUE_BYTES_MAX: Final = 4 << 20
FAREWELL_S: Final = 2.0  # how long the other side may take to answer our close
REASON_BYTES_MAX: Final = 123  # RFC 6455 §5.5

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Wire:
    """Frames out, frames in. `send` and `close` never wait."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._wake = trio.Event()
        self._close: tuple[int, str] | None = None
        self._room = trio.Event()
        self.gone = trio.Event()

    @property
    def closing(self) -> bool:
        """True once nothing more is sent."""
        return self._close is not None

    @property
    def half_full(self) -> bool:
        """True when whoever can do without should not be sent more."""
        return len(self._frames) * 2 >= FRAMES_MAX or self._bytes * 2 >= QUEUE_BYTES_MAX

    def send(self, text: str) -> None:
        """Put a frame in line; a browser that lets the line run full is cut with 4011."""
        if self._close is not None:
            return
        if len(self._frames) >= FRAMES_MAX or self._bytes >= QUEUE_BYTES_MAX:
            self._frames.clear()
            self.close(_contract.CLOSE_QUEUE_PRESSURE, "the browser reads too slowly")
            return
        self._frames.append(text)
        self._bytes += len(text)
        self._wake.set()

    async def wait_room(self) -> None:
        """Wait until the line is no longer half full. Cancel: safe."""
        while self.half_full and self._close is None:
            self._room = trio.Event()
            await self._room.wait()

    def close(self, code: int, reason: str) -> None:
        """Close after what is in line; the first reason counts."""
        if self._close is None:
            self._close = (code, reason)
            self._wake.set()
            self._room.set()

    async def write(self) -> None:
        """Send until closed, then wait a moment for the other side's close. Cancel: never tears a frame."""
        while True:
            while self._frames:
                text = self._frames.popleft()
                self._bytes -= len(text)
                if not self.half_full:
                    self._room.set()
                await self._send({"type": "websocket.send", "text": text})
            if self._close is not None:
                code, reason = self._close
                shown = reason.encode("utf-8")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
                await self._send({"type": "websocket.close", "code": code, "reason": shown})
                with trio.move_on_after(FAREWELL_S):
                    await self.gone.wait()
                return
            self._wake = trio.Event()
            await self._wake.wait()

    async def read(self) -> str | None:
        """Return the next text; None when the wire has ended, or is to be closed for what came."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self.gone.set()
                return None
            if self._close is not None:
                continue  # until the other side's close comes
            if message.get("text") is None:
                self.close(_contract.CLOSE_UNSUPPORTED_DATA, "text frames only")
                continue
            return str(message["text"])
