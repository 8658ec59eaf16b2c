"""The keeper's end of the launcher's socket: frames with descriptors, never blocking, bounded.

Descriptors of a frame are duplicated when it is queued and closed when it is sent; those that came with bytes
that were no frame are closed with the connection.
"""

import os
import socket
import struct
from collections import deque
from typing import Any, Final

from kite_launcher.core.keeper_frames import FrameReader, encode_frame
from kite_launcher.keeper.loop import Loop

OUT_MAX_BYTES: Final = (
    1024 * 1024
)  # what the launcher has not read; above it the connection ends, nothing is lost by that
CHUNK_BYTES: Final = 64 * 1024
_FDS: Final = 64


class OutOfDescriptors(Exception):
    """No descriptor is left to give a copy away; the connection is fine."""


class Connection:
    """One launcher. `begun` and `watches` map what it waits for to the id of its question, or the other way round."""

    def __init__(self, sock: socket.socket, loop: Loop) -> None:
        sock.setblocking(False)
        self.begun: dict[tuple[str, int], int] = {}
        self.watches: dict[int, tuple[str, int, str]] = {}
        self.greeted = False
        self._sock = sock
        self._loop = loop
        self._frames = FrameReader()
        self._out: deque[tuple[bytes, list[int]]] = deque()
        self._out_bytes = 0

    @property
    def fd(self) -> int:
        """Give the descriptor to wait on."""
        return self._sock.fileno()

    def receive(self) -> list[tuple[dict[str, Any], list[int]]] | None:
        """Give the frames that are whole now; None when the launcher is gone.

        Raises: BlockingIOError when nothing is there; OSError, BadFrame: of no use any more.
        """
        space = socket.CMSG_SPACE(_FDS * 4)
        data, ancillary, _, _ = self._sock.recvmsg(CHUNK_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += struct.unpack(f"{len(raw) // 4}i", raw[: len(raw) - len(raw) % 4])
        if not data:
            return None
        return self._frames.feed(data, fds)

    def send(self, data: dict[str, Any], fds: list[int]) -> None:
        """Queue a frame and send what goes; `fds` stay the caller's.

        Raises: OSError when the connection is of no use any more; OutOfDescriptors when nothing was sent.
        """
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(os.dup(fd))  # noqa: PERF401  what was made must be closed when the next one fails
        except OSError as problem:
            for fd in copies:
                os.close(fd)
            raise OutOfDescriptors from problem
        frame = encode_frame(data, len(copies))
        self._out.append((frame, copies))
        self._out_bytes += len(frame)
        self.flush()
        if self._out_bytes > OUT_MAX_BYTES:
            raise OSError("the launcher does not read")

    def flush(self) -> None:
        """Send as much as goes; the rest when the loop says so."""
        while self._out:
            frame, fds = self._out[0]
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
                sent = self._sock.sendmsg([frame], rights)
            except BlockingIOError:
                break
            for fd in fds:
                os.close(fd)
            self._out_bytes -= sent
            if sent == len(frame):
                self._out.popleft()
            else:
                self._out[0] = (frame[sent:], [])
        self._loop.want_write(self.fd, bool(self._out))

    def close(self) -> None:
        """Let go of it and of every descriptor under way."""
        self._sock.close()
        for fd in [*self._frames.spare, *(fd for _, fds in self._out for fd in fds)]:
            os.close(fd)
