"""What /proc says of a process: who it is, whether it lives, whether it carries the mark of this instance."""

import contextlib
import ctypes
import os
import select
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_STARTTIME: Final = 22 - 3  # field 22 of /proc/PID/stat, counted after the name in brackets (field 2)


def become_subreaper() -> None:
    """Let orphans of our children fall to us. Linux ≥ 3.4; where it is refused they fall to init."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def boot_id() -> str:
    """Name this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Tell when a process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = raw.rpartition(b")")[2].split()
    if len(fields) <= _STARTTIME or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[_STARTTIME])


def open_identified(pid: int, ticks: int) -> int | None:
    """Take hold of exactly this process: pidfd first, identity after (spec 00 §27). None when it is not there."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if start_ticks(pid) == ticks:
        return fd
    os.close(fd)
    return None


def is_dead(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def marked(mark: str) -> list[int]:
    """Find the processes that carry `KITE_INSTANCE=<mark>`, but not ourselves. An empty mark finds none."""
    if not mark:
        return []
    wanted = f"KITE_INSTANCE={mark}".encode()
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def descendants() -> list[int]:
    """Find the living processes below this one, whatever they made of group, session and environment."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    below.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    look = [os.getpid()]
    while look:
        children = below.get(look.pop(), [])
        found += children
        look += children
    return found


def is_flocked(path: Path) -> bool:
    """Whether somebody holds flock on this file; found out by looking, never by trying (that could win it)."""
    try:
        stat = path.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    wanted = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return any("FLOCK" in line and wanted in line.split() for line in locks.splitlines())
