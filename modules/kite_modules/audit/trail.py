"""The trail's file and its head elsewhere: one writer appends, anybody may read and judge.

Laws: a row is on stable storage before anybody is told so, and before the head says so; a damaged trail is neither
mended nor moved away: what comes is appended behind it and the damage stays to be found. Source: spec 80 §3, X-35.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from kite_modules.audit.chain import DAMAGED, LINE_BYTES_MAX, Head, Verdict, judge, read_row, seal

FILE: Final = "audit.jsonl"
HEAD_FILE: Final = "audit.head"
SCHEMA: Final = 1


@attrs.frozen
class Places:
    """Where a trail stands: its rows in the module's folder, its head in another."""

    rows: Path
    head: Path

    @classmethod
    def of_instance(cls, state_dir: Path) -> Places:
        """Return the places of an instance's trail."""
        return cls(state_dir / "modules" / "audit" / FILE, state_dir / HEAD_FILE)


def read_head(path: Path) -> Head | None:
    """Read the head; None when it is not there or can't be read. Raises: OSError but for a missing file."""
    try:
        raw = json.loads(path.read_bytes()[:4096])
        return Head(int(raw["seq"]), str(raw["hash"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write_head(path: Path, head: Head, *, at: str) -> None:
    """Replace the head as a whole."""
    part = path.with_name(path.name + ".part")
    text = json.dumps({"schema": SCHEMA, "seq": head.seq, "hash": head.hash, "at": at})
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fdatasync(file.fileno())
    os.replace(part, path)


def read_lines(path: Path) -> Iterator[bytes]:
    """Give the lines of a trail, none that is longer than a row can be. Raises: OSError but for a missing file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(2 * LINE_BYTES_MAX):
            yield line


def verify(places: Places) -> Verdict:
    """Judge the trail as it stands, whether its module runs or not. Raises: OSError."""
    head = read_head(places.head)  # before the rows: a running module only adds to them
    return judge(read_lines(places.rows), head)


def query(
    path: Path, *, wants: Callable[[dict[str, Any]], bool], limit: int, before: int | None = None
) -> list[dict[str, Any]]:
    """Return the newest `limit` rows that are wanted, below row `before`, oldest first. Raises: OSError."""
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    for line in read_lines(path):
        row = read_row(line.rstrip(b"\n"))
        if row is None or (before is not None and row.seq >= before) or not wants(row.value):
            continue
        found.append({name: row.value.get(name) for name in ("seq", "at", "event", "source", "data")})
    return list(found)


class Trail:
    """The one writer. All methods block; call them from one thread at a time."""

    def __init__(self, places: Places, *, stamp: Callable[[], str]) -> None:
        """Open and judge. Raises: OSError; BlockingIOError when another process writes this trail."""
        places.rows.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._places = places
        self._stamp = stamp
        self._fd = self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.damage = verify(places)
            self._go_on()
        except BaseException:
            os.close(self._fd)
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._places.rows, flags, 0o600)

    def _go_on(self) -> None:
        """Find where to append: behind the last row, or behind the head where it is further."""
        found = self.damage
        size = os.fstat(self._fd).st_size
        if found.torn_bytes:
            size -= found.torn_bytes  # a row that was being written at the end: nobody was told of it
            os.ftruncate(self._fd, size)
        self._size = size
        self.head = found.head
        if found.whole:
            return
        kept = read_head(self._places.head)
        rows = (row for row in map(_row_of, read_lines(self._places.rows)) if row is not None)
        last = max(rows, key=lambda row: row.seq, default=Head())
        self.head = kept if kept is not None and kept.seq >= last.seq else last
        if not self._ends_in_newline():
            os.write(self._fd, b"\n")
            self._size += 1
        self.append([(DAMAGED, "audit", {"row": found.row, "why": found.why})])

    def _ends_in_newline(self) -> bool:
        return self._size == 0 or os.pread(self._fd, 1, self._size - 1) == b"\n"

    def append(self, rows: list[tuple[str, str, Any]]) -> Head:
        """Append rows as (event, source, data), on stable storage when this returns; then the head.

        Raises: OSError; then none of them stands there, and the same rows may be tried again.
        """
        self._still_ours()
        head, lines = self.head, []
        for event, source, data in rows:
            line, head = seal(head, at=self._stamp(), event=event, source=source, data=data)
            lines.append(line)
        whole = b"".join(lines)
        try:
            written = 0
            while written < len(whole):
                written += os.write(self._fd, whole[written:])
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(whole)
        self.head = head
        write_head(self._places.head, head, at=self._stamp())
        return head

    def _still_ours(self) -> None:
        """Notice a trail that was changed from outside while it was open, and say so in the trail itself."""
        mine = os.fstat(self._fd)
        try:
            there = self._places.rows.stat()
        except FileNotFoundError:
            there = None
        if there is not None and there.st_ino == mine.st_ino and mine.st_size == self._size:
            return
        if there is None or there.st_ino != mine.st_ino:  # another file, or none, stands in its place
            fresh = self._open()
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(self._fd)
            self._fd = fresh
        before = self.head
        self._size = os.fstat(self._fd).st_size
        if not self._ends_in_newline():
            os.write(self._fd, b"\n")
            self._size += 1
        self.damage = verify(self._places)
        self.head = before
        row = self.damage.row if self.damage.row is not None else before.seq
        why = self.damage.why or "the file was changed while the module had it open"
        self.append([(DAMAGED, "audit", {"row": row, "why": why})])

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _row_of(line: bytes) -> Head | None:
    row = read_row(line.rstrip(b"\n"))
    return None if row is None else Head(row.seq, row.hash)
