"""The kernel's files in the state directory: lock, `kernel.json`, the Unix socket's path.

Laws: everything is 0600 (directories 0700) from its first instant; nothing is followed through a symbolic link; a
file appears whole or not at all. Source: spec 05-surface §2, §5, 00 §26, cases W-59, X-12.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Final

from kite_kernel.errors import EXIT_ALREADY_RUNNING, EXIT_PERMISSION, StartError

_LOCK: Final = "kernel.lock"


def open_state_dir(path: Path) -> None:
    """Make the state directory, or prove that it is ours alone. Errors: StartError 77."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise StartError(EXIT_PERMISSION, f"{path}: {error.strerror}") from None
    if not stat.S_ISDIR(info.st_mode):
        raise StartError(EXIT_PERMISSION, f"{path}: is no directory (a symbolic link is not followed)")
    if info.st_uid != os.getuid():
        raise StartError(EXIT_PERMISSION, f"{path}: belongs to another user")
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise StartError(EXIT_PERMISSION, f"{path}: others may write into it; chmod 700 {path}")


class StateLock:
    """The lock on a state directory; held until the process ends. The file stays, its lock does not."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _LOCK
        self._fd = -1

    def take(self) -> None:
        """Take it or say who has it. Errors: StartError 75 with the holder's pid, 77 for a file that is not ours."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            why = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise StartError(EXIT_PERMISSION, f"{self._path}: {why}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StartError(
                EXIT_ALREADY_RUNNING, f"a kernel runs on {self._path.parent} already (pid {holder})"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` into `path`, whole or not at all, 0600. Errors: OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def refuse_strangers_file(path: Path) -> None:
    """Refuse to start where something that is not ours stands in a file's place. Errors: StartError 77."""
    with contextlib.suppress(FileNotFoundError):
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid():
            raise StartError(EXIT_PERMISSION, f"{path}: something else stands there; remove it")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Put a JSON object into `path` (see write_atomic)."""
    write_atomic(path, json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n")
