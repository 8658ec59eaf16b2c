"""What belongs to a snapshot, and in which order it is read, so that each part is consistent while it is written.

Laws: the head of the audit trail is read before its rows, a stream's `meta.json` before its segments, segments from the
oldest: what is read later only goes further. Secrets that are made anew at each start are left out. Source: spec 80 §3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import attrs

Kind = Literal["facts", "sqlite", "lines", "segment", "file"]

FACTS: Final = "facts.db"
SINGLE: Final = ("instance.id", "wanted.json", "restarts.json", "audit.head")
FOLDERS: Final = ("streams", "modules")
TOP: Final = (FACTS, *SINGLE, *FOLDERS)
"""Everything that a restore replaces, by its name in the state directory."""
OPTIONS_SUFFIX: Final = "options.json"
_SQLITE: Final = b"SQLite format 3\0"
_BESIDE: Final = ("-wal", "-shm", "-journal", ".part", ".new")


@attrs.frozen
class Part:
    """One file of a snapshot: its path in the state directory, and how it is read."""

    path: str
    kind: Kind


def parts(state_dir: Path) -> Iterator[Part]:
    """Give what stands there now, in the order in which it has to be read; the facts are the caller's."""
    for name in SINGLE:
        if _is_plain(state_dir / name):
            yield Part(name, "file")
    for folder in FOLDERS:
        for path in _walk(state_dir / folder):
            yield Part(str(path.relative_to(state_dir)), _kind_of(path, folder))


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        # whatever is no log first: a stream's meta.json and numbers.json may be older than its segments, never newer
        for name in sorted(names, key=lambda name: (name.endswith(".log"), name)):
            path = Path(here) / name
            if not name.endswith(_BESIDE) and not _is_index(path, folder) and _is_plain(path):
                yield path


def _is_index(path: Path, folder: Path) -> bool:
    """A segment's index is made again from the segment."""
    return folder.name == "streams" and path.suffix == ".idx"


def _is_plain(path: Path) -> bool:
    """Sockets, links and pipes are no state."""
    return path.is_file() and not path.is_symlink()


def _kind_of(path: Path, folder: str) -> Kind:
    if folder == "streams":
        return "segment" if path.suffix == ".log" else "file"
    if path.suffix == ".jsonl":
        return "lines"
    try:
        with path.open("rb") as file:
            return "sqlite" if file.read(len(_SQLITE)) == _SQLITE else "file"
    except OSError:
        return "file"
