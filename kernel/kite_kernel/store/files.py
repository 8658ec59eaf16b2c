"""The file layer under the logs: everything that they ask of a disk, in one place that a simulated disk can replace.

Calls block and belong into a worker thread. Files are 0600, directories 0700, links are never followed.

Source: spec 00-decisions §23 and §26, 05-surface §5.
"""

import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from typing import Protocol


class AppendFile(Protocol):
    """One file open at its end."""

    def write(self, data: bytes) -> None:
        """Append all of `data`. Errors: OSError, after which any part of it may stand there."""

    def sync(self) -> None:
        """Return once everything written is safe. Errors: OSError, after which nothing is known of what was unsafe."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file; later writes go on there."""

    def close(self) -> None:
        """Close it. Writes nothing, proves nothing."""


class Files(Protocol):
    """What a log needs of a file system."""

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents where they are missing."""

    def names(self, path: str) -> Sequence[str]:
        """List the names in a directory; none when it is missing."""

    def open_append(self, path: str) -> AppendFile:
        """Open a file at its end, made when missing."""

    def size_bytes(self, path: str) -> int:
        """Return its size. Errors: FileNotFoundError."""

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` from `offset`; fewer only at the end. Errors: FileNotFoundError."""

    def view(self, path: str) -> memoryview:
        """Return the whole content without holding it in memory, where the system can. Errors: FileNotFoundError."""

    def write_whole(self, path: str, data: bytes, *, safe: bool = True) -> None:
        """Put `data` under `path` at once or not at all; `safe`: over a power cut, else over a kill only."""

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; safe after `sync_dir`."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it, as far as it goes."""

    def sync_dir(self, path: str) -> None:
        """Return once the names in `path` are safe."""


class _OsAppendFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OsFiles:
    """The real disk."""

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents where they are missing."""
        os.makedirs(path, mode=0o700, exist_ok=True)

    def names(self, path: str) -> Sequence[str]:
        """List the names in a directory; none when it is missing."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def open_append(self, path: str) -> AppendFile:
        """Open a file at its end, made when missing."""
        return _OsAppendFile(path)

    def size_bytes(self, path: str) -> int:
        """Return its size."""
        return os.stat(path, follow_symlinks=False).st_size

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` from `offset`; fewer only at the end."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            parts: list[bytes] = []
            while size_bytes > 0:
                part = os.pread(fd, size_bytes, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                size_bytes -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(fd)

    def view(self, path: str) -> memoryview:
        """Map a file; its pages come and go as the system needs them."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        finally:
            os.close(fd)

    def write_whole(self, path: str, data: bytes, *, safe: bool = True) -> None:
        """Write a temporary file, fsync, rename, fsync of the directory. Source: 00 §26."""
        temporary = f"{path}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if safe:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
        if safe:
            self.sync_dir(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; safe after `sync_dir`."""
        os.rename(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it, as far as it goes."""
        shutil.rmtree(path, ignore_errors=True)

    def sync_dir(self, path: str) -> None:
        """Return once the names in `path` are safe."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def reason_of(error: OSError) -> str:
    """Name the reason of −32008 for what the disk said. Source: 05-surface §9."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "full"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "read_only"
    return "unavailable"
