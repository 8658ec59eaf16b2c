"""Reading the files of one log while somebody else writes and rotates them.

Laws: a line is given once, whatever the rotation does meanwhile (files are told apart by their inode); a line that
is not finished on the disk is not given yet; memory is bounded by a block, not by a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

import attrs

from kite_launcher.core.logline import StoredLine, parse_line

BLOCK_BYTES: Final = 256 * 1024
FIRST_TAIL_BYTES: Final = 256 * 1024  # `-n 10` of a 50 MiB log looks at this much first
_FILE: Final = re.compile(r"(.+)\.log(?:\.(\d{1,6}))?")


def log_names(folder: str) -> list[str]:
    """Name the logs that have a file. Raises: OSError but for a folder that is not there."""
    try:
        found = (_FILE.fullmatch(name) for name in os.listdir(folder))
    except FileNotFoundError:
        return []
    return sorted({match.group(1) for match in found if match is not None})


@attrs.frozen
class OpenFile:
    """One file of a log, held open so that its name may change. Read-only; closed by `close`."""

    fd: int
    inode: int
    size_bytes: int
    changed_s: float

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


def open_files(folder: str, name: str) -> list[OpenFile]:
    """Open all files of a log, oldest first. A rotation meanwhile neither loses nor doubles one."""
    numbers = sorted(
        int(match.group(2) or 0)
        for match in (_FILE.fullmatch(entry) for entry in _entries(folder))
        if match is not None and match.group(1) == name
    )
    found: dict[int, OpenFile] = {}
    for number in [*numbers, max(numbers, default=0) + 1]:  # one more: it may have been shifted while we looked
        path = os.path.join(folder, f"{name}.log.{number}" if number else f"{name}.log")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        stat = os.fstat(fd)
        if stat.st_ino in found:
            os.close(fd)
            continue
        found[stat.st_ino] = OpenFile(fd, stat.st_ino, stat.st_size, stat.st_mtime)
    return list(reversed(found.values()))


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def read_lines(files: list[OpenFile], *, last_bytes: int | None = None) -> Iterator[StoredLine]:
    """Give the records of opened files up to the size that each had then; with `last_bytes` only the end of them.

    Records that begin before the end that was asked for are left out.
    """
    skip = 0 if last_bytes is None else max(0, sum(file.size_bytes for file in files) - last_bytes)
    for file in files:
        if skip >= file.size_bytes:
            skip -= file.size_bytes
            continue
        yield from _lines_of(file, skip)
        skip = 0


def _lines_of(file: OpenFile, start: int) -> Iterator[StoredLine]:
    rest = b""
    at, torn = start, start > 0
    while at < file.size_bytes:
        block = os.pread(file.fd, min(BLOCK_BYTES, file.size_bytes - at), at)
        if not block:
            return
        at += len(block)
        *lines, rest = (rest + block).split(b"\n")
        if torn and lines:
            lines, torn = lines[1:], False
        for raw in lines:
            line = parse_line(raw)
            if line is not None:
                yield line


class Follower:
    """Gives what is new in one log, over every rotation. `missed` tells how often files went before they were read."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.missed = 0
        self._folder = folder
        self._path = os.path.join(folder, f"{name}.log")
        self._fd = -1
        self._inode = 0
        self._at = 0
        self._rest = b""

    def start_at(self, file: OpenFile | None) -> None:
        """Go on behind what was read of this file (its size when it was opened); None: from the beginning."""
        if file is None:
            return
        self._fd, self._inode = os.dup(file.fd), file.inode
        self._at = file.size_bytes
        if self._at:  # an unfinished record at the end was not given
            tail = os.pread(self._fd, min(self._at, BLOCK_BYTES), max(0, self._at - BLOCK_BYTES))
            self._at -= len(tail) - (tail.rfind(b"\n") + 1)

    def new_lines(self) -> Iterator[StoredLine]:
        """Give every record since the last look."""
        yield from self._rest_of_open()
        try:
            inode = os.stat(self._path).st_ino
        except OSError:
            return
        if inode == self._inode:
            return
        yield from self._rest_of_open()  # what came between the two looks; nobody writes to it any more
        yield from self._later_files()

    def _later_files(self) -> Iterator[StoredLine]:
        files = open_files(self._folder, self.name)
        known = [at for at, file in enumerate(files) if file.inode == self._inode]
        if self._fd >= 0 and not known:
            self.missed += 1
        for file in files[known[0] + 1 :] if known else files:
            self._turn_to(file)
            yield from self._rest_of_open()
        for file in files:
            file.close()

    def _turn_to(self, file: OpenFile) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._inode, self._at, self._rest = os.dup(file.fd), file.inode, 0, b""

    def _rest_of_open(self) -> Iterator[StoredLine]:
        if self._fd < 0:
            return
        size = os.fstat(self._fd).st_size
        if size < self._at:  # somebody cut the file: what stands there now was seen, or the file is empty
            self._at, self._rest = size, b""
        while block := os.pread(self._fd, BLOCK_BYTES, self._at):
            self._at += len(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            for raw in lines:
                line = parse_line(raw)
                if line is not None:
                    yield line

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
