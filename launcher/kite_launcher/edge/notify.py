"""NOTIFY_SOCKET, both ways: one socket for each child, and the launcher's own word to its service manager.

A socket of its own tells whose word it is even when a short-lived child of the module said it and is gone already.
Source: spec 05 §4; cases S-51, S-56, S-87, S-90.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from typing import Final

import trio

from kite_launcher.core.notify import Note, parse_note
from kite_launcher.edge.statedir import StateDir

PATH_MAX_BYTES: Final = 107  # sun_path without its closing zero
DATAGRAM_MAX: Final = 4096
_CREDENTIALS: Final = struct.Struct("iII")


class NotifyRoom:
    """Where the sockets stand: in the state directory, or in a short private one when its path is too long."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._short: str | None = None

    def bind(self, name: str) -> tuple[socket.socket, str]:
        """Return a fresh socket for a module and the path by which its child reaches it. Raises OSError."""
        number = _number(name)
        self._state.make_dir("notify")
        path = f"{self._state.path}/notify/{number}.sock"
        near = self._state.near(f"notify/{number}.sock")
        if len(os.fsencode(path)) > PATH_MAX_BYTES:
            if self._short is None:
                self._short = tempfile.mkdtemp(prefix="kite-")
            path = near = f"{self._short}/{number}.sock"
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(near)
            old = os.umask(0o177)
            try:
                bound.bind(near)
            finally:
                os.umask(old)
        except OSError:
            bound.close()
            raise
        return bound, path

    def take(self, name: str, fd: int) -> tuple[socket.socket, str]:
        """Go on with a socket that an earlier launcher bound for this module."""
        bound = socket.socket(fileno=fd)
        bound.set_inheritable(False)
        where = os.fsdecode(bound.getsockname())
        if where.startswith("/proc/self/"):
            return bound, f"{self._state.path}/notify/{_number(name)}.sock"
        self._short = os.path.dirname(where)
        return bound, where

    def clear(self) -> None:
        """Remove all sockets and the directories that hold them."""
        for folder in (self._state.near("notify"), self._short):
            if folder is None or not os.path.isdir(folder):
                continue
            for name in os.listdir(folder):
                if name.endswith(".sock"):
                    os.unlink(os.path.join(folder, name))
        if self._short is not None:
            os.rmdir(self._short)
            self._short = None


def _number(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]


async def hear(bound: socket.socket, uids: frozenset[int], on_note: Callable[[Note], None]) -> None:
    """Hand every datagram of these users to `on_note` until cancelled; strangers' are dropped."""
    ears = trio.socket.from_stdlib_socket(bound)
    while True:
        data, ancillary, _, _ = await ears.recvmsg(DATAGRAM_MAX, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                _, uid, _ = _CREDENTIALS.unpack(payload[: _CREDENTIALS.size])
                if uid in uids:
                    on_note(parse_note(data))


class ServiceManager:
    """The launcher's own NOTIFY_SOCKET (systemd and others): READY, STOPPING, WATCHDOG."""

    def __init__(self, address: str | None, watchdog_usec: str | None) -> None:
        self._address = address or None
        usec = int(watchdog_usec) if watchdog_usec is not None and watchdog_usec.isdigit() else 0
        self.ping_every_s = usec / 1e6 / 2 if usec > 0 else None

    def say(self, text: str) -> None:
        """Send one message; a manager that is gone is no fault of ours."""
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as mouth:
            mouth.sendto(text.encode("utf-8"), address)
