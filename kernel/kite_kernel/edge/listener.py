"""The front door: accepts, reads the request head, judges it, and gives the stream to its plane.

Laws:
- Nothing is allocated for a stranger but one task and its buffer, and it has `[timing] auth` for head and first frame.
- An exception of one connection ends that connection: one line in the log, the door stays open.
- Without a descriptor left, a spare one is used to say no; the door never spins.

Source: spec 00 §4, 10-wire §1, 20-kernel §6, 05-surface §9, cases W-09, W-50, W-67 to W-70, X-40.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

import trio

from kite_kernel.core.http import (
    Head,
    Refusal,
    judge_host,
    judge_origin,
    judge_query,
    judge_upgrade,
    parse_head,
    refusal_response,
    response,
    switching_protocols,
)
from kite_kernel.edge.ears import Ears
from kite_kernel.edge.logs import say_bug
from kite_kernel.edge.port import Port, SocketPort, TlsPort
from kite_kernel.edge.waiting import WaitingRoom

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from kite_kernel.edge.hand import Hand

    Plane = Callable[[Port, Head, str, bytes], Awaitable[None]]
    Page = Callable[[Head], tuple[int, bytes, str]]

_ACCEPTS_A_TURN: Final = 64
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REST_S: Final = 0.05  # after a refusal for want of descriptors: some time for others to leave
_ANSWER_S: Final = 1.0  # how long a plain answer may take to be read
_RETRY_SPREAD_S: Final = (1, 10)  # Retry-After values, spread so that a crowd does not come back as one


_PIECE: Final = memoryview(bytearray(4096))  # one for all: nothing waits between reading and looking
_WHOLE_PATHS: Final = frozenset({"", "ws"})  # planes that have no names below them


class Door:
    """Serves listening sockets. `planes` maps the first path segment to who serves it, `pages` plain GET paths.

    A plane is called after the head was judged; it sends its own 101 (see `accept_upgrade`).
    """

    def __init__(
        self,
        hand: Hand,
        *,
        hosts: frozenset[str] = frozenset(),
        origins: frozenset[str] = frozenset(),
        tls: ssl.SSLContext | None = None,
        max_connections: int = 100_000,
        spread: Callable[[int, int], int],
    ) -> None:
        self.hand = hand
        self.ears = Ears()
        self.planes: dict[str, Plane] = {}
        self.pages: dict[str, Page] = {}
        self.open_connections = 0
        self.refused = 0
        self._hosts = hosts
        self._origins = origins
        self._tls = tls
        self._max_connections = max_connections
        self._spread = spread
        self._left = trio.Event()
        self.waiting = WaitingRoom(hand)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    # --- accepting ---

    async def serve(self, listener: socket.socket) -> None:
        """Accept for ever. Cancel: safe."""
        listener.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(_ACCEPTS_A_TURN):
                if not self.waiting.has_room():
                    await trio.sleep(_REST_S)
                    break
                try:
                    sock, address = listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _NO_DESCRIPTOR:
                        self._use_spare(listener)
                        await trio.sleep(_REST_S)
                    break
                self._take(sock, address)
            await trio.lowlevel.checkpoint()

    def _take(self, sock: socket.socket, address: object) -> None:
        if self.open_connections >= self._max_connections:
            self._say_no(sock)
            return
        addr = address[0] if isinstance(address, tuple) else "unix"
        if sock.family == socket.AF_UNIX and not is_own_peer(sock):
            sock.close()
            return
        port: Port
        try:
            plain = self._tls is None or sock.family == socket.AF_UNIX
            port = SocketPort(sock, self.ears) if self._tls is None or plain else TlsPort(sock, self._tls)
        except OSError:
            sock.close()
            return
        self.hand.nursery.start_soon(self.serve_port, port, str(addr))

    def _use_spare(self, listener: socket.socket) -> None:
        """Give the spare descriptor to one waiting connection, say no, and take it back."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        try:
            sock, _ = listener.accept()
        except OSError:
            pass
        else:
            self._say_no(sock)
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._spare = None

    def _say_no(self, sock: socket.socket) -> None:
        """Answer 503 without waiting for anything, and let go."""
        self.refused += 1
        self.hand.hub.board.counts["refused_503"] += 1
        try:
            sock.setblocking(False)
            sock.send(self.busy_answer())
            sock.shutdown(socket.SHUT_WR)
            sock.recv(65536)
        except OSError:
            pass
        finally:
            sock.close()

    def busy_answer(self) -> bytes:
        """Make a 503 whose Retry-After differs from one to the next."""
        seconds = self._spread(*_RETRY_SPREAD_S)
        return response(503, "busy, come back later\n", [("Retry-After", str(seconds))])

    # --- one connection ---

    async def serve_port(self, port: Port, addr: str) -> None:
        """Serve one stream to its end. Never raises but for cancellation."""
        self.open_connections += 1
        try:
            await self._serve(port, addr)
        except* (OSError, EOFError, trio.ClosedResourceError, trio.BrokenResourceError):
            self._say_broken(addr)
        except* Exception as group:
            say_bug("connection ended by a fault of the kernel", group, address=addr)
        finally:
            self.open_connections -= 1
            port.close()
            self._left.set()

    def _say_broken(self, addr: str) -> None:
        text = "[kernel] connection ended before its request was whole"
        self.hand.hub.board.log_seldom("info", "broke", addr, text, now=trio.current_time(), address=addr)
        self.hand.settle()

    async def wait_one_left(self) -> None:
        """Wait until the next connection has ended. Cancel: safe."""
        self._left = trio.Event()
        await self._left.wait()

    async def _serve(self, port: Port, addr: str) -> None:
        buffer = bytearray()
        found = None if isinstance(port, TlsPort) else take_head(port, buffer)  # mostly it is there already
        if found is None:
            found = await self._await_head(port, buffer)
        if found is None:
            return
        head, leftover = found
        if isinstance(head, Refusal):
            await self.refuse(port, addr, head)
            return
        await self._dispatch(port, head, addr, leftover)

    async def _await_head(self, port: Port, buffer: bytearray) -> tuple[Head | Refusal, bytes] | None:
        """Wait for the rest of the head, at most `[timing] auth`. Returns: None where it never came."""
        now = trio.current_time()
        mark = self.waiting.enter(port)
        try:
            with trio.CancelScope(deadline=now + self.hand.hub.settings.timing.auth):
                if isinstance(port, TlsPort):
                    await port.shake_hands()
                while (found := take_head(port, buffer)) is None:
                    await port.wait_readable()
                return found
        finally:
            self.waiting.leave(mark)
        return None

    async def _dispatch(self, port: Port, head: Head, addr: str, leftover: bytes) -> None:
        page = self.pages.get(head.path)
        if page is not None:
            await answer(port, self._page(head, page))
            return
        segment = head.path.split("/", 2)[1]
        plane = self.planes.get(segment)
        if segment in _WHOLE_PATHS and head.path not in ("/", "/ws"):
            plane = None
        if plane is not None:
            refusal = judge_upgrade(head, hosts=self._hosts, origins=self._origins)
        else:
            refusal = judge_host(head, self._hosts) or judge_origin(head, self._origins) or judge_query(head)
            refusal = refusal or Refusal(404, "no such path")
        if refusal is not None or plane is None:
            refusal = refusal or Refusal(404, "no such path")
            await self.refuse(port, addr, refusal)
            return
        if self.hand.hub.draining:
            self.hand.hub.board.counts["refused_503"] += 1
            await answer(port, self.busy_answer())
            return
        await plane(port, head, addr, leftover)

    async def refuse(self, port: Port, addr: str, refusal: Refusal) -> None:
        """Answer a refused request; one line a minute for each address and cause."""
        self.hand.hub.board.log_seldom(
            "info",
            "refused",
            f"{addr} {refusal.status}",
            f"[kernel] request refused: {refusal.why}",
            now=trio.current_time(),
            address=addr,
            status=refusal.status,
        )
        self.hand.settle()
        await answer(port, refusal_response(refusal))

    def _page(self, head: Head, page: Page) -> bytes:
        refusal = judge_host(head, self._hosts) or judge_origin(head, self._origins) or judge_query(head)
        if refusal is None and head.method not in ("GET", "HEAD"):
            refusal = Refusal(405, "GET only", (("Allow", "GET, HEAD"),))
        if refusal is not None:
            return refusal_response(refusal)
        status, body, kind = page(head)
        return response(status, body, content_type=kind, head_only=head.method == "HEAD")


def take_head(port: Port, buffer: bytearray) -> tuple[Head | Refusal, bytes] | None:
    """Read what is there of the head. Returns: None to wait for more, else the head and the bytes after it.

    Errors: EOFError: the other side ended first.
    """
    while True:
        try:
            count = port.receive_into(_PIECE)
        except BlockingIOError:
            return None
        if not count:
            raise EOFError
        buffer += _PIECE[:count]
        head = parse_head(buffer)
        if isinstance(head, Head):
            return head, bytes(buffer[head.size_bytes :])
        if isinstance(head, Refusal):
            return head, b""


async def answer(port: Port, data: bytes) -> None:
    """Send a plain answer whole, give the peer a moment to read it, and end. Bounded by a second."""
    with trio.move_on_after(_ANSWER_S):
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[port.send(rest) :]
            except BlockingIOError:
                await port.wait_writable()
        port.end_writing()
        sink = memoryview(bytearray(4096))
        while True:
            try:
                if not port.receive_into(sink):
                    return
            except BlockingIOError:
                await port.wait_readable()
            else:
                await trio.lowlevel.checkpoint()


def accept_upgrade(head: Head, subprotocol: str | None = None) -> bytes:
    """Return the 101 that a plane sends first."""
    return switching_protocols(head, subprotocol)


def is_own_peer(sock: socket.socket) -> bool:
    """Tell whether the process at the other end of a Unix socket is this user's (or root's)."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = int.from_bytes(raw[4:8], "little")
    return uid in (0, os.getuid())
