"""A copy of the fact store while it is in use, by SQLite's own backup call.

Laws: the copy is one moment of the store, proven whole before anybody is told of it; it appears under its name at once
or not at all. Source: spec 80 §3 (consistent snapshots by the databases' own backup calls).
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

import apsw
import attrs

from .port import Unavailable

PAGES_A_STEP: Final = 4096


@attrs.frozen
class Copied:
    """Where the copy stands, what it holds."""

    path: Path
    revision: int
    facts: int
    size_bytes: int


def copy_database(source: apsw.Connection, target: Path) -> Copied | Unavailable:
    """Copy all of an open database into a new file, 0600, synced. Blocks; one thread at a time with the source's use.

    Errors: Unavailable (full, read_only, unavailable): nothing is left behind, the source is as it was.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        revision, facts = _copy(source, part)
        _sync(part)
        part.rename(target)
        _sync(target.parent)
        return Copied(target, revision, facts, target.stat().st_size)
    except apsw.FullError as error:
        fault = Unavailable("full", f"{target}: {error}")
    except apsw.Error as error:
        fault = Unavailable("unavailable", f"{target}: {error}")
    except OSError as error:
        fault = Unavailable("full" if error.errno == errno.ENOSPC else "read_only", f"{target}: {error.strerror}")
    with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)
    return fault


def _copy(source: apsw.Connection, part: Path) -> tuple[int, int]:
    copy = apsw.Connection(str(part))
    try:
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(PAGES_A_STEP)
        copy.pragma("journal_mode", "delete")  # one file, without a -wal beside it
        verdict = copy.pragma("quick_check")
        if verdict != "ok":
            raise apsw.CorruptError(f"the copy is not whole: {str(verdict)[:200]}")
        row = copy.execute("SELECT value FROM meta WHERE name = 'revision'").fetchone()
        count = copy.execute("SELECT count(*) FROM facts").fetchone()
        return (row[0] if row is not None else 0), (count[0] if count is not None else 0)
    finally:
        copy.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
