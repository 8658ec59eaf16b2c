"""A byte stream as the kernel wants it: non-blocking reads and writes that never wait, and two waits beside them.

`SocketPort` is TCP or a Unix socket, `TlsPort` the same under TLS. Tests give their own. Source: spec 00 §5, §8a.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from kite_kernel.edge.ears import Ear, Ears


class Port(Protocol):
    """One connected byte stream. `receive_into` and `send` raise BlockingIOError where they would wait."""

    def receive_into(self, buffer: memoryview) -> int:
        """Read what is there; 0 means that the other side ended. Errors: OSError: the stream is broken."""

    def send(self, data: bytes | memoryview) -> int:
        """Write what fits and return how much. Errors: OSError: the stream is broken."""

    async def wait_readable(self) -> None:
        """Wait until reading may give something. Errors: ClosedResourceError once closed. Cancel: safe."""

    async def wait_writable(self) -> None:
        """Wait until writing may take something. Errors: ClosedResourceError once closed. Cancel: safe."""

    def end_writing(self) -> None:
        """Say that no more comes from here."""

    def close(self) -> None:
        """Let go at once; wakes whoever waits. Idempotent."""


_ROOM_MIN_BYTES: Final = 262_144
_ROOM_ALL: Final = -1  # as unsigned: no bound


def keep_room(sock: socket.socket, *, keep: bool) -> None:
    """Leave half of a socket's send buffer free for a last word, or let it be used now (which wakes a writer).

    A peer that doesn't read fills the buffer to its brim; a close frame then never leaves this process. Linux bounds
    what is queued and not sent yet by TCP_NOTSENT_LOWAT; elsewhere, and on Unix sockets, nothing happens.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is None or sock.family == socket.AF_UNIX:
        return
    with contextlib.suppress(OSError):
        half = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
        sock.setsockopt(socket.IPPROTO_TCP, option, max(_ROOM_MIN_BYTES, half) if keep else _ROOM_ALL)


class SocketPort:
    """A non-blocking stdlib socket, heard through `ears`. Errors: OSError."""

    __slots__ = ("_closed", "_ear", "_ears", "_recv_into", "_sock", "send")

    def __init__(self, sock: socket.socket, ears: Ears) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._ears = ears
        self._ear: Ear | None = None  # registered by its first wait: mostly the head is there before that
        self._closed = False
        self._recv_into = sock.recv_into
        self.send = sock.send

    def receive_into(self, buffer: memoryview) -> int:
        """See Port."""
        count = self._recv_into(buffer)
        if count == len(buffer) and self._ear is not None:
            self._ear.heard = True  # there may be more, and nobody will tell again
        return count

    async def wait_readable(self) -> None:
        """See Port. Errors: OSError where it cannot be registered."""
        if self._closed:
            raise trio.ClosedResourceError("closed by another task")
        if self._ear is None:
            self._ear = self._ears.open(self._sock)
        await self._ear.wait()

    async def wait_writable(self) -> None:
        """See Port."""
        await trio.lowlevel.wait_writable(self._sock)

    def keep_room(self, *, keep: bool) -> None:
        """See the function."""
        keep_room(self._sock, keep=keep)

    def end_writing(self) -> None:
        """See Port."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See Port."""
        if not self._closed:
            self._closed = True
            if self._ear is not None:
                self._ears.forget(self._sock, self._ear)
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class TlsPort:
    """A non-blocking socket under TLS; the handshake is `shake_hands`, under the caller's deadline."""

    __slots__ = ("_closed", "_sock")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._closed = False

    async def shake_hands(self) -> None:
        """Do the TLS handshake. Errors: OSError (ssl.SSLError is one): the peer speaks no TLS. Cancel: safe."""
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._sock)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)
            else:
                return

    def receive_into(self, buffer: memoryview) -> int:
        """See Port."""
        try:
            return self._sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLEOFError:
            return 0

    def send(self, data: bytes | memoryview) -> int:
        """See Port."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    async def wait_readable(self) -> None:
        """See Port."""
        if self._sock.pending():
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._sock)

    async def wait_writable(self) -> None:
        """See Port."""
        await trio.lowlevel.wait_writable(self._sock)

    def keep_room(self, *, keep: bool) -> None:
        """See the function."""
        keep_room(self._sock, keep=keep)

    def end_writing(self) -> None:
        """See Port. TLS 1.3 has no half-close that peers agree on: the TCP side is ended."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See Port."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
