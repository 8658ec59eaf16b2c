"""The two files of the state directory that the watchdog touches: read with suspicion, written whole or not at all.

Expected failures are values: `Unread` and an error text, never an exception that ends the watchdog.
Source: spec 00 §26, 05 §5, 60 §2.
"""

from __future__ import annotations

import contextlib
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

FILE_MODE: Final = 0o600


@attrs.frozen
class Unread:
    """A file that may not be used, why, and whether it simply isn't there."""

    why: str
    missing: bool = False


def read_own(path: Path, *, bytes_max: int) -> bytes | Unread:
    """Read a file that must be this user's own, private and plain: no link, no FIFO, nobody else may write it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Unread(f"{path.name} does not exist", missing=True)
    except OSError as error:
        return Unread(f"{path.name}: {error.strerror}")
    try:
        with open(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return Unread(f"{path.name} is no plain file")
            if info.st_uid != os.geteuid():
                return Unread(f"{path.name} belongs to user {info.st_uid}")
            if info.st_mode & 0o022:
                return Unread(f"{path.name} may be written by others (mode {stat.S_IMODE(info.st_mode):04o})")
            return file.read(bytes_max + 1)
    except OSError as error:
        return Unread(f"{path.name}: {error.strerror}")


def write_atomic(path: Path, data: bytes) -> str | None:
    """Replace a file: temporary file, fsync, rename, fsync of the folder. Returns None, or what went wrong."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        with open(fd, "wb") as file:
            os.fchmod(fd, FILE_MODE)  # whatever umask says
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return f"{path}: {error.strerror} (errno {error.errno})"
    return None


def set_aside(path: Path) -> str | None:
    """Keep a damaged file under a dated name. Returns the new name, or None where even that can't be done."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    try:
        os.rename(path, kept)
    except OSError:
        return None
    return kept.name
