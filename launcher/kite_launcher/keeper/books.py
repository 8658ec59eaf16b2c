"""What the keeper writes down about processes: ends that no launcher has heard of, and what runs.

Both files are conveniences of a second life: a disk that refuses them changes nothing but what a *next* keeper
can know; what this one knows stays in memory and is told.

Source: spec 00 §26, §28a; 05 §5; issue of ends while no launcher lived: 50 §3.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kite_launcher.core.keeper_orders import Exited, KeptRecord
from kite_launcher.keeper.processes import boot_id

EXITS_MAX: Final = 10_000  # ends that nobody fetches: the oldest go, counted
COMPACT_BYTES: Final = 1024 * 1024


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file so that every look finds it whole, old or new. Raises: OSError; no temporary file stays."""
    temporary = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600)
    try:
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class ExitBook:
    """`exits.jsonl`: one line for each end that no launcher has acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unheard: dict[int, Exited] = {}
        self._size_bytes = 0
        self.lost = 0
        for exited in self._load():
            self._unheard[exited.seq] = exited
        self._seq = max(self._unheard, default=0)

    def _load(self) -> Iterable[Exited]:
        try:
            raw = self._path.read_bytes()
        except OSError:
            return
        self._size_bytes = len(raw)
        for line in raw.splitlines():
            with contextlib.suppress(ValueError, TypeError):
                yield Exited.from_wire(json.loads(line))

    @property
    def unheard(self) -> list[Exited]:
        """Give the ends that nobody has heard of, oldest first."""
        return list(self._unheard.values())

    def add(self, exited: Exited) -> None:
        """Write an end down, before its process is collected and before anybody is told."""
        if len(self._unheard) >= EXITS_MAX:
            del self._unheard[next(iter(self._unheard))]
            self.lost += 1
        self._unheard[exited.seq] = exited
        line = json.dumps(exited.to_wire()).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self._size_bytes + len(line) > COMPACT_BYTES:
                self._compact()
                return
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._size_bytes += os.write(fd, line)
            finally:
                os.close(fd)

    def next_seq(self) -> int:
        """Give the number of the next end."""
        self._seq += 1
        return self._seq

    def heard(self, seq: int) -> None:
        """Forget the ends up to this one."""
        for number in [number for number in self._unheard if number <= seq]:
            del self._unheard[number]
        if not self._unheard and self._size_bytes:
            with contextlib.suppress(OSError):
                os.truncate(self._path, 0)
                self._size_bytes = 0

    def _compact(self) -> None:
        data = b"".join(json.dumps(exited.to_wire()).encode() + b"\n" for exited in self._unheard.values())
        write_whole(self._path, data)
        self._size_bytes = len(data)


class RecordBook:
    """`keeper.json`: what runs, so that a next keeper finds the pipes again when launcher and keeper died together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot_id = boot_id()
        self.problem: OSError | None = None

    def load(self) -> list[KeptRecord]:
        """Read what a former keeper of this boot wrote; nothing where the file is missing, foreign or torn."""
        try:
            data: Any = json.loads(self._path.read_bytes())
            if data["schema"] != 1 or data["boot_id"] != self._boot_id:
                return []
            return [KeptRecord.from_wire(record) for record in data["records"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def save(self, records: Iterable[KeptRecord]) -> None:
        """Write down what runs. A refusal is remembered in `problem`."""
        data = {"schema": 1, "boot_id": self._boot_id, "records": [record.to_wire() for record in records]}
        try:
            write_whole(self._path, json.dumps(data).encode())
            self.problem = None
        except OSError as problem:
            self.problem = problem
