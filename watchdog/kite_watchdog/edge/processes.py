"""Who lives: identity by pid, start ticks and boot id, and who holds the instance's lock. Nobody is ever signalled.

Source: spec 00 §27; cases/supervisor.md §1.
"""

from __future__ import annotations

import os
from pathlib import Path

from kite_watchdog.core.record import Identity

PROC = Path("/proc")


def boot_id() -> str:
    """Give the identity of this boot, "" where the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Give field 22 of /proc/PID/stat; None for a process that is gone, a zombie included."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The command stands in parentheses and may hold any byte, blanks and parentheses too: count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X", b"x"):
        return None
    return int(fields[19])


def alive(who: Identity) -> bool:
    """Say whether exactly this process lives. The descriptor is opened first, so the pid can't change hands between."""
    if who.boot_id != boot_id():
        return False
    try:
        fd = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return False
    except OSError:
        return start_ticks(who.pid) == who.start_ticks  # a kernel without pidfd: the ticks alone
    try:
        return start_ticks(who.pid) == who.start_ticks
    finally:
        os.close(fd)


def lock_holder(path: Path) -> int | None:
    """Give the pid that holds the flock on a file, 0 = held by somebody not visible from here, None = free.

    Read from /proc/locks: to try the lock would, for a moment, take it away from a launcher that is just starting.
    """
    try:
        info = path.stat()
        lines = (PROC / "locks").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    device = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    for line in lines:
        # "5: FLOCK  ADVISORY  WRITE 2143 08:01:1311 0 EOF"; waiters have "->" in the second place
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK" or fields[3] != "WRITE":
            continue
        same_inode = fields[5].endswith(f":{info.st_ino}")
        # Layered file systems show another device here than stat gives: there the inode and the written pid decide.
        if fields[5] == device or (same_inode and _written_pid(path) == fields[4]):
            return max(0, int(fields[4])) if fields[4].lstrip("-").isdigit() else 0
    return None


def _written_pid(path: Path) -> str:
    try:
        head = path.read_bytes()[:4096]
    except OSError:
        return ""
    digits = head.partition(b'"pid"')[2].lstrip(b": ")
    return digits[: len(digits) - len(digits.lstrip(b"0123456789"))].decode()
