"""Pipes that outlive their readers, and looking at what is in one without taking it.

The child's end is opened READ-WRITE by way of /proc: the child itself is then a reader, so that the death of
every other reader neither ends it with SIGPIPE nor loses what stands in the pipe (measured, spec 00 §28).
"""

import ctypes
import fcntl
import os
import re
from typing import Final

import attrs

PEEK_BYTES: Final = 64 * 1024  # one turn of one stream: small enough that others wait less than a millisecond
LARGE_PIPE_BYTES: Final = 256 * 1024  # what a child may print while no keeper lives, before it waits
LARGE_PIPES_MAX: Final = 32  # 8 MiB: half of what a user without rights may hold in pipes (16 MiB, soft limit)
SCRATCH_BYTES: Final = 256 * 1024
_SPLICE_F_NONBLOCK: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)
_tee = _libc.tee
_tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
_tee.restype = ctypes.c_ssize_t


@attrs.frozen
class Output:
    """One pipe for a child's output: `read` is the keeper's end, `child` the end to give away and close."""

    read: int
    child: int
    inode: int


def open_output(*, large: bool, owner: tuple[int, int] | None = None) -> Output:
    """Make a pipe whose child's end is READ-WRITE. `owner` (uid, gid) may open it again as /dev/stdout.

    Raises: OSError (no descriptors left). Both ends are close-on-exec; the keeper's does not block.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        if large:
            resize(write, LARGE_PIPE_BYTES)
        if owner is not None:
            os.fchown(write, *owner)
        child = os.open(f"/proc/self/fd/{write}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    os.set_blocking(read, False)
    return Output(read, child, os.fstat(read).st_ino)


def resize(fd: int, size_bytes: int) -> None:
    """Enlarge a pipe where the system lets us; a refusal (a user's pipe pages are used up) costs only room."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size_bytes)
    except OSError:
        return


def capacity(fd: int) -> int:
    """Ask how many bytes a pipe holds at most."""
    return fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)


class Peeker:
    """Looks into pipes. One per process: it owns the scratch pipe that `tee` fills."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        resize(self._in, SCRATCH_BYTES)

    def peek(self, fd: int, n_bytes: int = PEEK_BYTES) -> bytes | None:
        """Give up to `n_bytes` that stand in the pipe and leave them there.

        b"" means: empty, and no writer is left. None: empty for now. Raises: OSError for what is no pipe.
        """
        got = _tee(fd, self._in, n_bytes, _SPLICE_F_NONBLOCK)
        if got < 0:
            number = ctypes.get_errno()
            if number in (11, 4):  # EAGAIN, EINTR
                return None
            raise OSError(number, os.strerror(number))
        data = bytearray()
        while len(data) < got:  # the scratch pipe must be empty again, whatever happens
            data += os.read(self._out, got - len(data))
        return bytes(data)

    def close(self) -> None:
        """Give the scratch pipe back."""
        os.close(self._out)
        os.close(self._in)


def reopen(pid: int, inodes: dict[int, None]) -> dict[int, int]:
    """Open pipes again that a live process holds: inode → new descriptor for those of `inodes` that were found.

    Looks at the descriptors of `pid` alone; what can't be read (gone, another user's) is not found.
    """
    found: dict[int, int] = {}
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        path = f"{folder}/{name}"
        try:
            match = re.fullmatch(r"pipe:\[(\d+)\]", os.readlink(path))
            inode = int(match.group(1)) if match else 0
            if inode not in inodes or inode in found:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        if os.fstat(fd).st_ino == inode:
            found[inode] = fd
        else:  # the process put another file there between the two looks
            os.close(fd)
    return found
