"""`<state-dir>/launcher.sock`: newline-delimited JSON-RPC 2.0 for `kite-launch`, alive while the kernel is not.

0600 from its first instant; only this user and root are heard. A long order may send `progress` notices before its
answer. One peer's garbage or silence costs nobody else anything. Source: spec 05 §3; 00 §8.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import trio

from kite_launcher.edge.guard import first_of
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.statedir import StateDir

SOCKET: Final = "launcher.sock"
PEERS_MAX: Final = 64
LINE_MAX_BYTES: Final = 1 << 20
FIRST_LINE_S: Final = 30.0
WRITE_S: Final = 5.0
PROGRESS_MAX: Final = 100
_CREDENTIALS: Final = struct.Struct("3i")

Say = Callable[[str, str], None]
Execute = Callable[[str, Any, Say], Awaitable[dict[str, Any]]]
"""(method, params, say(name, text)) -> {"result": …} or {"error": …}; never raises"""


# Whose order is being executed: the descriptor of the peer's connection and the id of its request.
PEER: Final[ContextVar[tuple[int, object] | None]] = ContextVar("PEER", default=None)


def open_control(state: StateDir) -> socket.socket:
    """Bind the socket; a stale one is replaced (the instance lock is ours). Raises OSError."""
    path = state.near(SOCKET)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        old = os.umask(0o177)
        try:
            bound.bind(path)
        finally:
            os.umask(old)
        bound.listen(PEERS_MAX)
    except OSError:
        bound.close()
        raise
    return bound


class Control:
    """Serves the socket; `execute` does the work."""

    def __init__(self, bound: socket.socket, execute: Execute, journal: Journal) -> None:
        self._listener = trio.socket.from_stdlib_socket(bound)
        self._execute, self._journal = execute, journal
        self._peers = 0
        self.refused = 0

    async def run(self) -> None:
        """Accept peers until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    peer, _ = await self._listener.accept()
                except OSError as error:
                    self._journal.warning("control socket", why=error.strerror)
                    await trio.sleep(0.1)
                    continue
                _, uid, _ = _CREDENTIALS.unpack(
                    peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                )
                if uid not in (os.geteuid(), 0) or self._peers >= PEERS_MAX:
                    self.refused += 1
                    peer.close()
                    continue
                nursery.start_soon(self._serve, trio.SocketStream(peer))

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._peers += 1
        try:
            async with stream:
                gone = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError)
                with contextlib.suppress(*gone):
                    await self._lines(stream)
        except Exception as error:
            self._journal.error("a fault of the launcher's own", name="control", why=first_of(error))
        finally:
            self._peers -= 1

    async def _lines(self, stream: trio.SocketStream) -> None:
        pending = b""
        while True:
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                await self._one(line, stream)
            with trio.move_on_after(FIRST_LINE_S) as patience:
                chunk = await stream.receive_some(65536)
            if patience.cancelled_caught or not chunk or len(pending) > LINE_MAX_BYTES:
                return
            pending += chunk

    async def _one(self, line: bytes, stream: trio.SocketStream) -> None:
        number, method, params = _request(line)
        if method is None:
            await _send(stream, {"id": number, "error": {"code": -32600, "message": "not a JSON-RPC 2.0 request"}})
            return
        sender, receiver = trio.open_memory_channel[dict[str, Any]](PROGRESS_MAX)

        def say(name: str, text: str) -> None:
            with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):
                sender.send_nowait({"method": "progress", "params": {"name": name, "text": text}})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, receiver, stream)
            PEER.set((stream.socket.fileno(), number))
            answer = await self._execute(method, params, say)
            sender.close()
        await _send(stream, {"id": number, **answer})

    @property
    def fd(self) -> int:
        """The listening descriptor."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


async def _pump(texts: trio.MemoryReceiveChannel[dict[str, Any]], stream: trio.SocketStream) -> None:
    """Send progress; a peer that went away loses only its view of the order, never the order itself."""
    alive = True
    async for text in texts:
        if alive:
            try:
                await _send(stream, text)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                alive = False


async def _send(stream: trio.SocketStream, message: dict[str, Any]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"
    with trio.fail_after(WRITE_S):
        await stream.send_all(data)


def _request(line: bytes) -> tuple[object, str | None, Any]:
    try:
        frame = json.loads(line)
    except (ValueError, RecursionError):
        return None, None, None
    if not isinstance(frame, dict) or not isinstance(frame.get("method"), str):
        return None, None, None
    return frame.get("id"), frame["method"], frame.get("params", {})
