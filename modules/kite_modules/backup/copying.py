"""Copies of single files while others write them: databases by SQLite's backup call, logs up to a whole line.

Source: spec 80 §3.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import apsw

BLOCK_BYTES: Final = 1 << 20
BUSY_MS: Final = 10_000  # how long another's write may hold a database up
PAGES_A_STEP: Final = 4096


def copy_bytes(source: Path, target: Path, *, whole_lines: bool = False) -> None:
    """Copy what a file holds now; with `whole_lines` up to its last newline. Raises: OSError."""
    _make(target)
    with source.open("rb") as reading, target.open("r+b") as writing:
        left = os.fstat(reading.fileno()).st_size
        while left > 0 and (block := reading.read(min(left, BLOCK_BYTES))):
            writing.write(block)
            left -= len(block)
        if whole_lines:
            writing.flush()
            writing.truncate(_end_of_lines(target))
        writing.flush()
        os.fsync(writing.fileno())


def _end_of_lines(path: Path) -> int:
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0:
            start = max(0, at - BLOCK_BYTES)
            file.seek(start)
            found = file.read(at - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
    return 0


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy one moment of a database that others may be writing. Raises: OSError, apsw.Error."""
    _make(target)
    reading = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        reading.set_busy_timeout(BUSY_MS)
        writing = apsw.Connection(str(target))
        try:
            with writing.backup("main", reading, "main") as backup:
                while not backup.done:
                    backup.step(PAGES_A_STEP)
            writing.pragma("journal_mode", "delete")
        finally:
            writing.close()
    finally:
        reading.close()
    sync(target)


def count_rows(path: Path) -> dict[str, int]:
    """Check a database from end to end and count its rows, by table. Raises: ValueError, apsw.Error."""
    database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        verdict = database.pragma("integrity_check")
        if verdict != "ok":
            raise ValueError(f"integrity_check says {str(verdict)[:200]}")
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        names = [str(name) for (name,) in tables]
        counts = {}
        for name in names:
            quoted = name.replace('"', '""')
            counts[name] = sum(1 for _ in database.execute(f'SELECT 1 FROM "{quoted}"'))
        return counts
    finally:
        database.close()


def digest(path: Path) -> tuple[str, int]:
    """Return a file's SHA-256 and its size. Raises: OSError."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found.update(block)
            size += len(block)
    return found.hexdigest(), size


def sync(path: Path) -> None:
    """Bring a file or a folder's names onto stable storage. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(target: Path) -> None:
    if not target.parent.is_dir():
        for folder in [*reversed(target.parent.parents), target.parent]:  # `parents=True` would not give them the mode
            folder.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
