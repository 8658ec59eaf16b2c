"""CPU and memory of processes, from /proc. Source: spec 80 §2 (each module: CPU and memory)."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_UTIME, _STIME, _START, _RSS = 11, 12, 19, 21  # fields after the command's name, see proc(5)


class Reading(NamedTuple):
    """One look at a process; `born` tells a reused number from the same process."""

    cpu_s: float
    rss_bytes: int
    born: int


def look(pid: int) -> Reading | None:
    """Read one process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        ticks = int(fields[_UTIME]) + int(fields[_STIME])
        return Reading(ticks / _TICKS_PER_S, int(fields[_RSS]) * _PAGE_BYTES, int(fields[_START]))
    except (OSError, ValueError, IndexError):
        return None


class Meter:
    """CPU shares between two looks."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, Reading]] = {}

    def measure(self, pids: set[int], *, now: float) -> dict[int, tuple[float | None, int]]:
        """Return pid → (per cent of one core since the last look or None, bytes of memory)."""
        found: dict[int, tuple[float | None, int]] = {}
        kept: dict[int, tuple[float, Reading]] = {}
        for pid in pids:
            reading = look(pid)
            if reading is None:
                continue
            share = None
            before = self._last.get(pid)
            if before is not None and before[1].born == reading.born and now > before[0]:
                share = round(100.0 * (reading.cpu_s - before[1].cpu_s) / (now - before[0]), 1)
            found[pid] = (share, reading.rss_bytes)
            kept[pid] = (now, reading)
        self._last = kept
        return found
