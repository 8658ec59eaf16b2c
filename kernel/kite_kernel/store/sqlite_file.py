"""One SQLite file of facts, used by one thread at a time: opening with judgement, batches of steps, honest answers.

Laws: nothing is acknowledged before COMMIT with synchronous=FULL returned; a failed sync closes the file until it
was opened and verified again; a damaged file is kept under a dated name, never replaced in silence. The clock is a
parameter. Source: spec 00 §23-24, 20 §9, cases F-23 … F-30.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import apsw
import attrs

from .port import Answer, Committed, Conflict, Fact, Unavailable, Unknown
from .second_place import Place, read_place, write_place
from .sqlite_copy import Copied, copy_database

SCHEMA: Final = 1
PLACE_EVERY_S: Final = 1.0  # how far the second place may lag behind; each of its writes is an fsync

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (
  bucket TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (bucket, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS facts_by_revision ON facts (bucket, revision);
"""


@attrs.frozen
class Step:
    """One call on the store: create, get, update, delete, list or since (records above a revision)."""

    kind: str
    bucket: str
    key: str = ""
    value: bytes = b""
    revision: int = 0

    @property
    def writes(self) -> bool:
        return self.kind in ("create", "update", "delete")


Result = Answer | Fact | tuple[Fact, ...] | None
Say = Callable[[str, str], None]  # (level, text)


def stamp_name(path: Path, stamp: str) -> Path:
    """Return the dated name under which a damaged file is kept; never one that is taken."""
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    return kept


class SqliteFile:
    """The file and its connection. All methods block; call them from one thread at a time."""

    def __init__(self, path: Path, *, new_id: str, stamp: str, say: Say, vfs: str | None = None) -> None:
        """`new_id` names a fresh store, `stamp` dates a damaged one, `say` gets the loud lines."""
        self.path = path
        self.place_path = path.with_suffix(".id")
        self.fault: Unavailable | None = None
        self.revision = 0
        self.epoch_high = 0
        self.epoch_floor = 0
        self._new_id = new_id
        self._stamp = stamp
        self._say = say
        self._vfs = vfs
        self._connection: apsw.Connection | None = None
        self._place: Place | None = None
        self._place_at = float("-inf")
        self._inode = 0
        self._wal_seen = False

    # ------------------------------------------------------------- opening

    def open(self) -> None:
        """Open and judge; afterwards `fault` is None, or says why facts are refused."""
        self.close()
        try:
            self.fault = self._open()
        except apsw.Error as error:
            self.fault = self._refusal_of(error)
        except OSError as error:
            self.fault = Unavailable("unavailable", f"{self.path}: {error.strerror}")
        except ValueError as error:
            self.fault = Unavailable("damaged", str(error))
        if self.fault is not None:
            self.close()
            self._say("error", f"facts are refused ({self.fault.reason}): {self.fault.why}")

    def _open(self) -> Unavailable | None:
        place = read_place(self.place_path)
        anew = self.path.with_suffix(".anew")
        size = self.path.stat().st_size if self.path.exists() else None
        if place is not None and not size:
            if not anew.exists():
                gone = "deleted" if size is None else "emptied"
                return Unavailable(
                    "damaged",
                    f"{self.path} was {gone} while no kernel ran; put a backup back, or begin anew: touch {anew}",
                )
            self.epoch_high = self.epoch_floor = place.epoch_high
            place = None
            self._say("warning", f"{self.path}: begun anew as asked; epochs go on above {self.epoch_high}")
        fault = self._connect(fresh=not size)
        if fault is not None:
            return fault
        fault = self._compare(place)
        if fault is None:
            anew.unlink(missing_ok=True)
        return fault

    def _connect(self, *, fresh: bool) -> Unavailable | None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.close(descriptor)
        connection = apsw.Connection(str(self.path), vfs=self._vfs)
        self._connection = connection
        connection.set_busy_timeout(1000)
        connection.pragma("locking_mode", "exclusive")
        try:
            found = connection.pragma("user_version")
            if found > SCHEMA:
                why = f"{self.path} was written by a newer Kite: its schema is {found}, this one knows {SCHEMA}"
                return Unavailable("unavailable", why)
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            if not fresh:
                verdict = connection.pragma("quick_check")
                if verdict != "ok":
                    return self._set_aside(f"quick_check says {str(verdict)[:200]}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLES)
            connection.pragma("user_version", SCHEMA)
            connection.execute("COMMIT")
        except (apsw.CorruptError, apsw.NotADBError) as error:
            return self._set_aside(str(error))
        self._inode = self.path.stat().st_ino
        return None

    def _set_aside(self, why: str) -> Unavailable:
        self.close()
        kept = stamp_name(self.path, self._stamp)
        for suffix in ("", "-wal"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(kept.with_name(kept.name + suffix))
        return Unavailable(
            "damaged",
            f"{self.path} is damaged ({why}); kept as {kept.name}: put a backup back, or begin anew: "
            f"touch {self.path.with_suffix('.anew')}",
        )

    def _compare(self, place: Place | None) -> Unavailable | None:
        """Hold the file against the second place, then count this opening in both."""
        store_id = str(self._meta("store_id") or "")
        generation = self._meta_number("generation")
        self.revision = self._meta_number("revision")
        if place is not None:
            if store_id != place.store_id:
                return Unavailable("damaged", f"{self.path} is another store than the one that belongs here")
            if generation < place.generation or self.revision < place.revision:
                return Unavailable(
                    "damaged",
                    f"{self.path} is an older copy (opened {generation} times, revision {self.revision}; known: opened "
                    f"{place.generation} times, revision {place.revision}); put the newest backup back, "
                    f"or begin anew: move it away and touch {self.path.with_suffix('.anew')}",
                )
            self.epoch_high = max(self.epoch_high, place.epoch_high)
        elif store_id:
            self._say("warning", f"{self.place_path} was missing and is made again from the store")
        self.epoch_floor = max(self.epoch_floor, self._meta_number("epoch_floor"))
        self._place = Place(store_id or self._new_id, generation + 1, self.revision, self.epoch_high)
        connection = self._db()
        connection.execute("BEGIN IMMEDIATE")
        self._set_meta("store_id", self._place.store_id)
        self._set_meta("generation", self._place.generation)
        self._set_meta("revision", self.revision)
        self._set_meta("epoch_floor", self.epoch_floor)
        connection.execute("COMMIT")
        write_place(self.place_path, self._place)
        return None

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close(True)
            except apsw.Error as error:
                self._say("error", f"{self.path}: closing failed: {error}")
        if self._place is not None and self.fault is None:
            self._write_place()

    # ------------------------------------------------------------- batches

    def execute(self, batch: Sequence[Step], *, now: float) -> list[Result]:
        """Carry out a batch as one transaction and one sync; the answers hold once this returns."""
        if self.fault is not None and not self._heal():
            return [self.fault] * len(batch)
        writes = any(step.writes for step in batch)
        if writes and not self._whole():
            fault = self.fault or Unavailable("unavailable", "the store was opened again")
            return [fault] * len(batch)
        connection = self._db()
        before = self.revision
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            results = [self._apply(step) for step in batch]
            if writes:
                self._set_meta("revision", self.revision)
            committing = writes
            connection.execute("COMMIT")
        except apsw.Error as error:
            self.revision = before
            return self._failed(batch, error, committing=committing)
        if writes and now - self._place_at >= PLACE_EVERY_S:
            self._place_at = now
            self._write_place()
        return results

    def copy(self, target: Path) -> Copied | Unavailable:
        """Copy what stands into another file (see `copy_database`)."""
        if self.fault is not None and not self._heal():
            return self.fault
        return copy_database(self._db(), target)

    def _apply(self, step: Step) -> Result:
        connection = self._db()
        where = (step.bucket, step.key)
        if step.kind == "list":
            rows = connection.execute(
                "SELECT key, value, revision FROM facts WHERE bucket = ?1 AND key >= ?2 "
                "AND substr(key, 1, length(?2)) = ?2 ORDER BY key",
                where,
            )
            return tuple(Fact(step.bucket, key, value, revision) for key, value, revision in rows)
        if step.kind == "since":
            rows = connection.execute(
                "SELECT key, value, revision FROM facts WHERE bucket = ? AND revision > ? ORDER BY revision LIMIT 1000",
                (step.bucket, step.revision),
            )
            return tuple(Fact(step.bucket, key, value, revision) for key, value, revision in rows)
        row = connection.execute("SELECT value, revision FROM facts WHERE bucket = ? AND key = ?", where).fetchone()
        if step.kind == "get":
            return None if row is None else Fact(step.bucket, step.key, row[0], row[1])
        stands = None if row is None else int(row[1])
        if stands != (None if step.kind == "create" else step.revision):
            return Conflict(stands)
        self.revision += 1
        if step.kind == "delete":
            connection.execute("DELETE FROM facts WHERE bucket = ? AND key = ?", where)
        else:
            connection.execute(
                "INSERT INTO facts (bucket, key, revision, value) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (bucket, key) DO UPDATE SET revision = excluded.revision, value = excluded.value",
                (*where, self.revision, step.value),
            )
        return Committed(self.revision)

    def _failed(self, batch: Sequence[Step], error: apsw.Error, *, committing: bool) -> list[Result]:
        """Say what became of a batch that ended in an error, and close what can't be trusted any more."""
        refusal = self._refusal_of(error)
        fate_unknown = committing and not isinstance(error, apsw.FullError | apsw.ReadOnlyError | apsw.BusyError)
        try:
            if not self._db().get_autocommit():
                self._db().execute("ROLLBACK")
        except apsw.Error:
            fate_unknown = fate_unknown or committing
        if refusal.reason in ("full", "read_only"):
            self._say("error", f"facts: {refusal.why}")
        else:
            # A sync that failed once is never simply repeated: the pages it lost are clean in the cache now.
            self._say("error", f"facts: {refusal.why}; the store is closed, opened and verified again")
            self.open()
        if not fate_unknown:
            return [refusal] * len(batch)
        return [Unknown(refusal.why) if step.writes else refusal for step in batch]

    def _refusal_of(self, error: apsw.Error) -> Unavailable:
        why = f"{self.path}: {error}"
        if isinstance(error, apsw.FullError):
            return Unavailable("full", f"{why} (the disk is full)")
        if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
            return Unavailable("read_only", why)
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return Unavailable("damaged", why)
        return Unavailable("unavailable", why)

    def _heal(self) -> bool:
        """Try again what may have healed by itself; what is damaged stays refused until somebody mends it."""
        if self.fault is not None and self.fault.reason == "damaged":
            return False
        if self.fault is not None and "newer Kite" in self.fault.why:
            return False
        self.open()
        return self.fault is None

    def _whole(self) -> bool:
        """Notice files that were taken away from under the connection, while its descriptors still hold them."""
        try:
            same = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            self.fault = Unavailable("damaged", f"{self.path} was deleted or replaced while the kernel used it")
            self._say("error", f"facts are refused: {self.fault.why}")
            return False
        wal = self.path.with_name(self.path.name + "-wal").exists()
        lost = self._wal_seen and not wal
        self._wal_seen = wal
        if lost:
            # The open descriptor still has every frame: bring them into the file before it is closed.
            self._say("error", f"{self.path}-wal was deleted; its content is saved into the store")
            self._db().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self.open()
            return self.fault is None
        return True

    def _write_place(self) -> None:
        if self._place is None:
            return
        self._place = attrs.evolve(self._place, revision=self.revision, epoch_high=self.epoch_high)
        try:
            write_place(self.place_path, self._place)
        except OSError as error:
            self._say("warning", f"{self.place_path}: {error.strerror}")

    # ---------------------------------------------------------------- small

    def _db(self) -> apsw.Connection:
        if self._connection is None:
            raise RuntimeError("the store is not open")
        return self._connection

    def _meta(self, name: str) -> object:
        row = self._db().execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _meta_number(self, name: str) -> int:
        value = self._meta(name)
        return value if isinstance(value, int) else 0

    def _set_meta(self, name: str, value: object) -> None:
        self._db().execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
        )
