"""The second place: a small file beside the fact store that says which store belongs here and how far it had come.

A store that was emptied, deleted or put back from a copy can't know that by itself; this file does. It also keeps the
highest epoch ever given, so that a store begun anew on purpose never gives one twice.
Source: spec 00 §23 §26, F-24.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import attrs

SCHEMA: Final = 1


@attrs.frozen
class Place:
    """What is known of the store: its id, how often it was opened, a revision it had surely reached, epochs given."""

    store_id: str
    generation: int
    revision: int
    epoch_high: int


def read_place(path: Path) -> Place | None:
    """Return what stands there; None = no such file. Raises ValueError for a file that is no such thing."""
    try:
        row = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(row, dict) or row.get("schema") != SCHEMA:
        raise ValueError(f"{path} is of schema {row.get('schema') if isinstance(row, dict) else '?'}, not {SCHEMA}")
    try:
        return Place(str(row["store_id"]), int(row["generation"]), int(row["revision"]), int(row["epoch_high"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def write_place(path: Path, place: Place) -> None:
    """Replace the file as a whole: temporary file, fsync, rename, fsync of the directory."""
    row = {"schema": SCHEMA, **attrs.asdict(place)}
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, json.dumps(row).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
