"""What an instance without a living launcher left running, read from its files and /proc; nothing is touched.

A record counts only if the process has the recorded pid, start ticks and boot id and carries this instance's mark;
a reused pid is never taken for one of ours. Source: spec 50 §1.3, spec 00 §27; cases S-01 … S-03, S-47.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple


class Left(NamedTuple):
    """One process that still runs."""

    name: str
    role: str
    pid: int
    started_at: str


def find(state_dir: str) -> list[Left]:
    """Return the processes of this instance that are still alive, in the order of the record."""
    mark = instance_mark(state_dir)
    record = _read_json(os.path.join(state_dir, "processes.json"))
    if mark is None or record.get("boot_id") != boot_id():
        return []
    rows = record.get("processes")
    found = [_left(row, mark) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [left for left in found if left is not None]


def launcher_alive(state_dir: str) -> tuple[int, str] | None:
    """Return pid and since of the launcher that holds the lock, None when nobody holds it.

    Reads /proc/locks instead of trying the lock: a try would, for a moment, refuse a launcher that starts.
    """
    try:
        found = os.stat(os.path.join(state_dir, "instance.lock"))
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            locks = file.read().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    fields = [line.split() for line in locks]
    if not any(len(row) >= 6 and row[1] == "FLOCK" and row[-3] == wanted for row in fields):
        return None
    holder = _read_json(os.path.join(state_dir, "instance.lock"))
    pid = holder.get("pid")
    return (pid if type(pid) is int else 0, str(holder.get("since", "")))


def instance_mark(state_dir: str) -> str | None:
    """Return the mark that every process of the instance carries, None when none was ever made."""
    try:
        with open(os.path.join(state_dir, "instance.id"), encoding="ascii") as file:
            return file.read(256).strip() or None
    except (OSError, ValueError):
        return None


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _left(row: dict[str, Any], mark: str) -> Left | None:
    pid, ticks = row.get("pid"), row.get("start_ticks")
    if type(pid) is not int or pid <= 0 or start_ticks(pid) != ticks or not _is_marked(pid, mark):
        return None
    return Left(str(row.get("name", "")), str(row.get("role", "")), pid, str(row.get("started_at", "")))


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"KITE_INSTANCE={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(16 << 20))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
