"""The state directory: whose it is, the locks, and files that are whole at every look.

Everything is reached through one directory descriptor, so that the length of the path never matters and nobody can
swap the directory under us. Nothing here follows a link or changes a mode that it did not set itself.
Source: spec 05 §5; spec 00 §26; cases S-05 … S-08, S-77 … S-81, X-12.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from datetime import UTC, datetime
from typing import Final

from kite_launcher.core.launch import EXIT_PERMISSION, EXIT_UNAVAILABLE, RefusedError
from kite_launcher.core.records import Holder, parse_lock, render_lock

FILE_MODE: Final = 0o600
DIR_MODE: Final = 0o700
READ_MAX_BYTES: Final = 64 << 20


class StateDir:
    """An open state directory. Close it with `close`."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd
        self._lock_fd = -1
        self._holder: Holder | None = None
        self._tries = 0

    @classmethod
    def open(cls, path: str) -> StateDir:
        """Make it (0700) where it is missing, and open it. Raises RefusedError 77 (whose, which mode), 69 (disk)."""
        try:
            os.makedirs(os.path.dirname(path), mode=DIR_MODE, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, DIR_MODE)
            _judge(path, os.lstat(path), link=True)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(path, error) from error
        try:
            _judge(path, os.fstat(fd), link=False)
        except RefusedError:
            os.close(fd)
            raise
        return cls(path, fd)

    def near(self, name: str) -> str:
        """Return a short path to a file in it, for calls that know no directory descriptor (socket addresses)."""
        return f"/proc/self/fd/{self.fd}/{name}"

    # -- the locks -------------------------------------------------------------------------------------------

    def lock_directory(self) -> bool:
        """Lock the directory itself: holds even when somebody removes `instance.lock`. False: another has it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock_instance(self, holder: Holder) -> bool:
        """Take `instance.lock` and write who holds it. False: another has it. Raises OSError."""
        fd = os.open("instance.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE, dir_fd=self.fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        line = render_lock(holder)
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))
        old, self._lock_fd, self._holder = self._lock_fd, fd, holder
        if old >= 0:
            os.close(old)
        return True

    def adopt_locks(self, lock_fd: int, holder: Holder) -> None:
        """Go on with a lock that an earlier image of this process took."""
        self._lock_fd, self._holder = lock_fd, holder

    @property
    def lock_fd(self) -> int:
        """The descriptor that holds `instance.lock`, -1 for none."""
        return self._lock_fd

    def lock_is_there(self) -> bool:
        """Say whether `instance.lock` still is the file that we hold."""
        try:
            named = os.stat("instance.lock", dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        held = os.fstat(self._lock_fd)
        return (named.st_ino, named.st_dev) == (held.st_ino, held.st_dev)

    def read_holder(self) -> Holder | None:
        """Read who holds the lock; None while it is being written."""
        data = self.read("instance.lock")
        return parse_lock(data) if data is not None else None

    def release(self) -> None:
        """Let go of both locks; the file stays."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release and close."""
        if self.fd >= 0:
            self.release()
            os.close(self.fd)
            self.fd = -1

    # -- files -----------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """Read one file, None when it is missing. Raises OSError for what can't be read; never follows a link."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > READ_MAX_BYTES:
                raise OSError(errno.EINVAL, "is not a plain file of a sensible size", name)
            return file.read()

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a file whole or not at all: temporary, fsync, rename, fsync of the directory. Raises OSError."""
        folder, _, base = name.rpartition("/")
        self._tries += 1
        temporary = f"{folder}/.{base}.{os.getpid()}.{self._tries}.tmp".lstrip("/")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, FILE_MODE, dir_fd=self.fd)
        try:
            with open(fd, "wb") as file:
                os.fchmod(fd, FILE_MODE)
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(fd)
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            self.remove(temporary)
            raise
        if sync:
            os.fsync(self.fd)

    def remove(self, name: str) -> None:
        """Remove a file if it is there and can be removed."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)

    def set_aside(self, name: str) -> str:
        """Give a damaged file a dated name and return it. Raises OSError."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        aside = f"{name}.damaged-{stamp}-{secrets.token_hex(2)}"
        os.rename(name, aside, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        return aside

    def make_dir(self, name: str) -> None:
        """Make a directory (0700) below it, parents too. Raises OSError."""
        made = ""
        for part in name.split("/"):
            made = f"{made}/{part}" if made else part
            try:
                os.mkdir(made, DIR_MODE, dir_fd=self.fd)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(made, dir_fd=self.fd, follow_symlinks=False).st_mode):
                    raise

    def sweep(self) -> None:
        """Remove temporary files that a crash left: our own names only."""
        for folder in (".", "tokens"):
            try:
                names = os.listdir(f"/proc/self/fd/{self.fd}/{folder}")
            except OSError:
                continue
            for name in names:
                if name.startswith(".") and name.endswith(".tmp"):
                    self.remove(name if folder == "." else f"{folder}/{name}")

    def instance_mark(self) -> str:
        """Return the instance's mark, made once for this directory. Raises OSError."""
        data = self.read("instance.id")
        text = data.decode("ascii", "replace").strip() if data is not None else ""
        if len(text) >= 32 and text.isalnum():
            return text
        text = secrets.token_hex(16)
        self.write("instance.id", f"{text}\n".encode("ascii"))
        return text


def _judge(path: str, found: os.stat_result, *, link: bool) -> None:
    """Refuse a directory that is not ours alone. Raises RefusedError 77."""
    mode, me = stat.S_IMODE(found.st_mode), os.geteuid()
    if found.st_uid != me:
        what = "link made by" if link and stat.S_ISLNK(found.st_mode) else "directory of"
        raise RefusedError(
            EXIT_PERMISSION,
            f"{path}: is a {what} user {found.st_uid} (mode {mode:04o}), not yours ({me})",
            "choose another with --state-dir",
        )
    if not stat.S_ISLNK(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise RefusedError(EXIT_PERMISSION, f"{path}: is not a directory", "choose another with --state-dir")
    if stat.S_ISDIR(found.st_mode) and mode & 0o022:
        raise RefusedError(
            EXIT_PERMISSION,
            f"{path}: others may write there (owner {found.st_uid}, mode {mode:04o})",
            f"chmod 700 {path}",
        )


def _refused(path: str, error: OSError) -> RefusedError:
    if error.errno in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EDQUOT):
        return RefusedError(
            EXIT_UNAVAILABLE, f"{path}: {error.strerror} (errno {error.errno})", "make room and try again"
        )
    return RefusedError(
        EXIT_PERMISSION,
        f"{error.filename or path}: {error.strerror} (errno {error.errno})",
        "choose another state directory with --state-dir or make this one writable",
    )
