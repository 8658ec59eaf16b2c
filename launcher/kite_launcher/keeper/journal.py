"""The one promise in hand, where the keeper's death can't lose it: "these bytes go from that pipe to that file".

Taking bytes out of a pipe and writing them to a file are two steps, and SIGKILL may come between. So first the
bytes are looked at (`tee`), then the promise is written here (shared memory in a file, which outlives the
process), then they are appended to the log, then they are taken from the pipe *into the landing place*. That
place was filled with the same bytes inverted: each of its bytes says by itself whether the taking took place.
A successor therefore knows exactly what happened, and cuts the log back when the bytes are still in the pipe.

One promise at a time is enough: the keeper is one thread, and a promise lives for some 50 µs.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from kite_launcher.keeper.pipes import PEEK_BYTES

_HEADER: Final = struct.Struct("<8sIIQQQ")  # magic, valid, bytes, inode of the log, its size before, name's length
_MAGIC: Final = b"KITEJRN1"
_NAME_AT: Final = 64
_NAME_BYTES: Final = 256
_COPY_AT: Final = 4096
_LAND_AT: Final = _COPY_AT + PEEK_BYTES
_SIZE: Final = _LAND_AT + PEEK_BYTES
_VALID_AT: Final = 8
_INVERT: Final = bytes(255 - byte for byte in range(256))


@attrs.frozen
class Unfinished:
    """What a dead keeper left half done. `taken` says whether the bytes had left the pipe."""

    log_name: str
    log_inode: int
    size_before: int
    taken: bool


class Journal:
    """Holds at most one promise. Without a file (read-only or full disk) it lives in memory and promises less."""

    def __init__(self, path: Path) -> None:
        self.problem: OSError | None = None
        self._map = self._open(path)
        self._view = memoryview(self._map)

    def _open(self, path: Path) -> mmap.mmap:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, _SIZE)  # a hole in the file would be a SIGBUS on a full disk
                return mmap.mmap(fd, _SIZE)
            finally:
                os.close(fd)
        except OSError as problem:
            self.problem = problem
            return mmap.mmap(-1, _SIZE)

    def unfinished(self) -> Unfinished | None:
        """Read what a former keeper left; None where all was finished (or the file is no journal)."""
        magic, valid, size, inode, before, length = _HEADER.unpack_from(self._map)
        if magic != _MAGIC or valid != 1 or not 0 < size <= PEEK_BYTES or length > _NAME_BYTES:
            return None
        name = self._map[_NAME_AT : _NAME_AT + length].decode("utf-8", "surrogateescape")
        copy = self._map[_COPY_AT : _COPY_AT + size]
        return Unfinished(name, inode, before, taken=self._map[_LAND_AT : _LAND_AT + size] == copy)

    def promise(self, data: bytes, *, log_name: str, log_inode: int, size_before: int) -> None:
        """Say what is about to happen. The last store makes it valid: program order is enough against SIGKILL."""
        name = log_name.encode("utf-8", "surrogateescape")[:_NAME_BYTES]
        self._map[_COPY_AT : _COPY_AT + len(data)] = data
        self._map[_LAND_AT : _LAND_AT + len(data)] = data.translate(_INVERT)
        self._map[_NAME_AT : _NAME_AT + len(name)] = name
        _HEADER.pack_into(self._map, 0, _MAGIC, 0, len(data), log_inode, size_before, len(name))
        self._map[_VALID_AT] = 1

    def landing(self, n_bytes: int) -> Sequence[memoryview]:
        """Give the place into which the pipe is read (`os.readv`)."""
        return [self._view[_LAND_AT : _LAND_AT + n_bytes]]

    def fulfil(self) -> None:
        """Say that all of it happened."""
        self._map[_VALID_AT] = 0

    def close(self) -> None:
        """Let go of the memory."""
        self._view.release()
        self._map.close()
