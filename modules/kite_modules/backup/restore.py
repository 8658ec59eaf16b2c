"""Putting a snapshot back: only while nothing runs, and what stood there is kept beside it.

Source: spec 80 §3, 00 §23 (epochs are never given twice).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from kite_modules.backup.check import faults, put_into
from kite_modules.backup.copying import sync
from kite_modules.backup.plan import FACTS, TOP
from kite_modules.backup.snapshot import BackupError, Snapshot

LOCKS: Final = ("instance.lock", "kernel.lock")
PLACE: Final = "facts.id"
_BESIDE: Final = (f"{FACTS}-wal", f"{FACTS}-shm", f"{FACTS}-journal", "facts.anew", PLACE)
KEPT: Final = "instance.id"  # the mark of this very folder, even when the snapshot is another's


class Running(BackupError):
    """The instance runs: nothing was touched."""


@contextmanager
def stopped(state_dir: Path) -> Iterator[None]:
    """Hold the instance's own locks, so that nothing starts meanwhile. Raises: Running."""
    with ExitStack() as stack:
        for name in LOCKS:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(state_dir / name, flags, 0o600)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Running(f"the instance in {state_dir} runs") from None
        yield


def restore(snapshot: Snapshot, state_dir: Path, *, stamp: str) -> Path:
    """Put a snapshot in place; what stood there is moved into the folder that is returned.

    All of it is written and synced beside the state first; then names change. Raises: BackupError, Running.
    """
    found = faults(snapshot)
    if found:
        raise BackupError(f"{snapshot.name} is not whole: {found[0]}")
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh, aside = state_dir / "restore.part", state_dir / f"before-restore-{stamp}"
    with stopped(state_dir):
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            put_into(snapshot, fresh)
            _keep_epochs(fresh / FACTS, state_dir)
            for folder, _, _ in os.walk(fresh):
                sync(Path(folder))
            aside.mkdir(mode=0o700)
            _swap(fresh, state_dir, aside)
            shutil.rmtree(fresh)
        except (OSError, apsw.Error) as error:
            filename = error.filename if isinstance(error, OSError) else FACTS
            raise BackupError(f"{filename}: {getattr(error, 'strerror', None) or error}") from error
    return aside


def _swap(fresh: Path, state_dir: Path, aside: Path) -> None:
    for name in (*_BESIDE, *TOP):
        there = state_dir / name
        if (name != KEPT or (fresh / name).exists()) and os.path.lexists(there) and not _keeps(name, state_dir):
            there.rename(aside / name)
    for name in TOP:
        if (fresh / name).exists() and not _keeps(name, state_dir):
            (fresh / name).rename(state_dir / name)
    sync(aside)
    sync(state_dir)


def _keeps(name: str, state_dir: Path) -> bool:
    return name == KEPT and (state_dir / name).exists()


def _keep_epochs(facts: Path, state_dir: Path) -> None:
    """Keys that are made from now on begin above every epoch that was ever given here, whatever the snapshot knows."""
    high = 0
    for place in [state_dir / PLACE, *state_dir.glob(f"before-restore-*/{PLACE}")]:
        high = max(high, _epoch_high(place))
    if not facts.exists():
        return
    database = apsw.Connection(str(facts), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        row = database.execute("SELECT value FROM meta WHERE name = 'epoch_floor'").fetchone()
        floor = max(high, row[0] if row is not None and isinstance(row[0], int) else 0)
        database.execute(
            "INSERT INTO meta VALUES ('epoch_floor', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (floor,),
        )
    finally:
        database.close()
    sync(facts)


def _epoch_high(place: Path) -> int:
    try:
        told: Any = json.loads(place.read_bytes())
        return int(told["epoch_high"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
