"""Where a consumer writes down what it has: a file of numbers, one a line, and a file with one cursor.

A number counts once it is written out; what stands there is read and proven before the first one is added, a last line
that a kill cut in the middle is taken away. One process writes at a time.

Source: spec 40-streams §3, cases W-66.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Final

import attrs

_READ_BYTES: Final = 1_048_576


class SeqFile:
    """The numbers 1…`last`, one a line, each exactly once. Use it as a context manager.

    Raises: ValueError for a file that holds anything else, BlockingIOError when another process writes it, OSError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.last = 0
        try:
            self._lock()
            self._end = self._read()
            os.ftruncate(self._fd, self._end)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> SeqFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"{self._path}: another process writes this file") from None

    def _read(self) -> int:
        """Read all whole lines; return where the last one ends. What follows it was never finished."""
        end = 0
        rest = b""
        while piece := os.pread(self._fd, _READ_BYTES, end + len(rest)):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line != b"%d" % (self.last + 1):
                    shown = line[:40].decode("utf-8", "backslashreplace")
                    raise ValueError(f"{self._path}: line {self.last + 1} holds {shown!r}, not {self.last + 1}")
                self.last += 1
                end += len(line) + 1
            if len(rest) > _READ_BYTES:
                break
        if rest.strip(b"0123456789\0"):
            raise ValueError(f"{self._path}: the last line is no number")
        return end

    def record(self, seq: int) -> None:
        """Write the next number out; when this returns a kill of this process loses nothing.

        Raises: OSError; what a failed write left behind is taken away again where the disk lets it.
        """
        line = b"%d\n" % seq
        try:
            written = os.pwrite(self._fd, line, self._end)
            while written < len(line):
                written += os.pwrite(self._fd, line[written:], self._end + written)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(line)
        self.last = seq


@attrs.frozen
class Cursor:
    """Where a subscriber stands: after `seq` of `epoch`. `epoch` None: it was never told."""

    seq: int
    epoch: str | None = None


class CursorFile:
    """One cursor in a file, replaced at once or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file; it is read by `load` and made by `store`."""
        self._path = os.fspath(path)

    def load(self) -> Cursor | None:
        """Return what stands there; None when there is no file. Raises: ValueError for anything else, OSError."""
        try:
            with open(self._path, "rb") as file:
                raw = file.read(4096)
        except FileNotFoundError:
            return None
        try:
            value = json.loads(raw)
            seq, epoch = value["seq"], value.get("epoch")
            if type(seq) is not int or seq < 0 or not isinstance(epoch, str | None):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{self._path}: holds no cursor") from None
        return Cursor(seq, epoch)

    def store(self, cursor: Cursor) -> None:
        """Write the cursor beside the old one and put it in its place. Raises: OSError."""
        temporary = f"{self._path}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps({"schema": 1, "seq": cursor.seq, "epoch": cursor.epoch}).encode())
        finally:
            os.close(fd)
        os.replace(temporary, self._path)
