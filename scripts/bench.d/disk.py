"""What a record costs that is safe before the next one: SQLite and a plain file, one writer each, as yardsticks."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KEYS = 64


def plain_sqlite(folder: Path, seconds: float) -> float:
    """One writer, one row and one transaction at a time, synchronous=FULL."""
    with contextlib.closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE rows (key INTEGER PRIMARY KEY, value TEXT)")
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (done % KEYS, "x" * 300))
            done += 1
        return done / (time.perf_counter() - began)


def plain_file(folder: Path, seconds: float) -> float:
    """One writer, one fsync a record."""
    descriptor = os.open(folder / "plain.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.write(descriptor, b"x" * 300)
            os.fsync(descriptor)
            done += 1
        return done / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
