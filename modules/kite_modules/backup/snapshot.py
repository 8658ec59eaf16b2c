"""Taking, listing and keeping snapshots. One is a folder that appears under its name when it is whole.

Source: spec 80 §3.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

from kite_modules.backup.copying import copy_bytes, copy_sqlite, count_rows, digest, sync
from kite_modules.backup.plan import FACTS, Part, parts

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
FILES: Final = "files"
DEFAULT_FOLDER: Final = "backups"
_PART: Final = ".part"


class BackupError(Exception):
    """A snapshot can't be taken, read or put back: what the machine or its user can mend."""


@attrs.frozen
class Snapshot:
    """One snapshot as its manifest tells it."""

    name: str
    folder: Path
    made_at: str
    size_bytes: int
    files: tuple[dict[str, Any], ...]
    verified_at: str | None

    def told(self) -> dict[str, Any]:
        """Return what lists show of it."""
        rows = {"name": self.name, "made_at": self.made_at, "bytes": self.size_bytes, "files": len(self.files)}
        return {**rows, "verified_at": self.verified_at, "path": str(self.folder)}


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock of a folder of snapshots: one is made, verified or removed at a time. Raises: BackupError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BackupError(f"another backup is at work in {root}") from None
    try:
        yield
    finally:
        os.close(descriptor)


def take(state_dir: Path, root: Path, *, name: str, made_at: str, facts: Path | None) -> Snapshot:
    """Take a snapshot. `facts`: the kernel's copy of the facts (it is moved); None: no kernel runs, the file is read.

    Raises: BackupError; then nothing of it is left.
    """
    part = root / f"{name}{_PART}"
    try:
        for old in root.glob(f"*{_PART}"):  # of a backup that was killed: the lock says that nobody is at it
            shutil.rmtree(old)
        (part / FILES).mkdir(mode=0o700, parents=True)
        rows = [*_copy_facts(state_dir, part, facts), *_copy_parts(state_dir, root, part)]
        _write(part / MANIFEST, {"schema": SCHEMA, "name": name, "made_at": made_at, "files": rows})
        for folder, _, _ in os.walk(part):
            sync(Path(folder))
        part.rename(root / name)
        sync(root)
    except (OSError, apsw.Error, ValueError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise BackupError(_words(error)) from error
    return read(root / name)


def _copy_facts(state_dir: Path, part: Path, facts: Path | None) -> list[dict[str, Any]]:
    target = part / FILES / FACTS
    if facts is not None:
        copy_bytes(facts, target)
        facts.unlink()
    elif (state_dir / FACTS).exists():
        copy_sqlite(state_dir / FACTS, target)
    else:
        return []
    return [_row(part, Part(FACTS, "facts"))]


def _copy_parts(state_dir: Path, root: Path, part: Path) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for one in parts(state_dir):
        source = state_dir / one.path
        if source.is_relative_to(root):
            continue
        target = part / FILES / one.path
        try:
            if one.kind == "sqlite":
                copy_sqlite(source, target)
            else:
                copy_bytes(source, target, whole_lines=one.kind == "lines")
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            _forget_older(part, one, rows)
            continue
        rows[one.path] = _row(part, one)
    return list(rows.values())


def _forget_older(part: Path, one: Part, rows: dict[str, dict[str, Any]]) -> None:
    """A stream's segment went by retention while we read: the older ones have gone, too."""
    if one.kind != "segment":
        return
    folder = os.path.dirname(one.path)
    for path in [path for path in rows if os.path.dirname(path) == folder and rows[path]["kind"] == "segment"]:
        del rows[path]
        (part / FILES / path).unlink()


def _row(part: Path, one: Part) -> dict[str, Any]:
    path = part / FILES / one.path
    sha256, size = digest(path)
    row: dict[str, Any] = {"path": one.path, "kind": one.kind, "bytes": size, "sha256": sha256}
    if one.kind in ("facts", "sqlite"):
        row["rows"] = count_rows(path)
    return row


def read(folder: Path) -> Snapshot:
    """Read a snapshot's manifest. Raises: BackupError."""
    try:
        told = json.loads((folder / MANIFEST).read_bytes())
        if told["schema"] != SCHEMA:
            raise BackupError(f"{folder}: written by a newer Kite (schema {told['schema']})")
        files = tuple(dict(row) for row in told["files"])
        size = sum(int(row["bytes"]) for row in files)
        for row in files:
            _check_path(str(row["path"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{folder} is no whole snapshot: {_words(error)}") from None
    verified = folder / "verified"
    verified_at = verified.read_text("utf-8").strip() if verified.exists() else None
    return Snapshot(folder.name, folder, str(told["made_at"]), size, files, verified_at)


def _check_path(path: str) -> None:
    if os.path.isabs(path) or ".." in Path(path).parts or not path:
        raise ValueError(f"{path!r} leads out of the snapshot")


def listed(root: Path) -> list[Snapshot]:
    """Return the snapshots of a folder that can be read, the oldest first."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if (folder / MANIFEST).is_file() and not folder.name.endswith(_PART):
            try:
                found.append(read(folder))
            except BackupError:
                continue  # `verify NAME` says what is wrong with it
    return sorted(found, key=lambda snapshot: (snapshot.made_at, snapshot.name))


def prune(root: Path, keep: int) -> list[str]:
    """Remove the oldest beyond `keep`, never the newest verified one. Returns their names. Raises: OSError."""
    found = listed(root)
    proven = [snapshot.name for snapshot in found if snapshot.verified_at is not None]
    gone = []
    for snapshot in found[: max(0, len(found) - keep)]:
        if proven and snapshot.name != proven[-1]:
            doomed = root / f"{snapshot.name}{_PART}"
            snapshot.folder.rename(doomed)
            shutil.rmtree(doomed)
            gone.append(snapshot.name)
    return gone


def _write(path: Path, value: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _words(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {(error.strerror or 'unreadable').lower()}".lstrip(": ")
    return str(error)
