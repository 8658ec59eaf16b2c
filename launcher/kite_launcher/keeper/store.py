"""The log files of one instance: appended to, rotated, made again when someone removed them, never waited for.

Laws: what can't be written is counted and said, and the next line is tried again; a log that comes back begins
with one line that says how many lines are missing there, so that kept + missing = written. Nothing here raises
OSError for the state of the disk: it is a state, shown by `trouble`.

Source: spec 50 §2; cases S-26, S-27, S-28.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kite_launcher.core.keeper_orders import LogTrouble
from kite_launcher.core.logline import StoredLine, format_record, parse_line
from kite_launcher.core.logrotate import OldFile, Policy, must_rotate, over_total, plan_rotation
from kite_launcher.keeper.lost import NOTHING, LostBook

RETRY_S: Final = 0.1  # a failing log is tried this often; in between its lines are counted, not formatted
LOOK_S: Final = 0.5  # how often the path is compared with the open file (a moved folder)
FREE_BYTES: Final = 64 * 1024  # so much room must be there before a full disk is tried again: no flicker
TAIL_BYTES: Final = 64 * 1024  # how much of a file's end is read to find the last run
_NOBODY_LEFT: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def utc_stamp(at: float | None = None) -> str:
    """Give an instant (seconds of the wall clock, default now) as the stamp of a stored line."""
    when = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _lines(count: int) -> str:
    return "1 line is" if count == 1 else f"{count} lines are"


class LogFile:
    """One log with its rotated files. `say` is told once when something is wrong and once when it is well again."""

    def __init__(
        self,
        folder: Path,
        name: str,
        policy: Policy,
        say: Callable[[str], None],
        rotated: Callable[[], None],
        shown: Path | None = None,
        lost: LostBook | None = None,
    ) -> None:
        self.name = name
        self._shown = (shown or folder) / f"{name}.log"
        self._rotated = rotated
        self.policy = policy
        self.size_bytes = 0
        self.inode = 0
        self._say = say
        self._folder = folder
        self._path = folder / f"{name}.log"
        self._fd = -1
        self._born = 0.0  # monotonic; when the live file's first line was written
        self._looked = -1.0
        self._torn = False
        self._problem: OSError | None = None
        self._retry_at = 0.0
        self._lost = lost
        self._lost_lines, self._lost_bytes, self._lost_since = lost.get(name) if lost is not None else NOTHING
        self.dropped_lines = self._lost_lines
        self.dropped_bytes = self._lost_bytes

    @property
    def room_bytes(self) -> int:
        """How much still fits into the live file."""
        return max(0, self.policy.max_bytes - self.size_bytes)

    @property
    def failing(self) -> bool:
        """Whether the last try to write did not succeed."""
        return self._problem is not None

    def ready(self, *, now: float) -> bool:
        """Make sure that the file can be appended to; False while it fails and is not due for another try."""
        if self._problem is not None and now < self._retry_at:
            return False
        try:
            self._check(now)
            if self._problem is not None and self._problem.errno in _NOBODY_LEFT:
                free = os.fstatvfs(self._fd)
                if free.f_bavail * free.f_frsize < FREE_BYTES:
                    self._retry_at = now + RETRY_S
                    return False
        except OSError as problem:
            self._fail(problem, now)
            return False
        return True

    def _check(self, now: float) -> None:
        if self._fd >= 0:
            stat = os.fstat(self._fd)
            self.size_bytes = stat.st_size  # someone may have cut the file
            moved = stat.st_nlink == 0
            if not moved and now - self._looked >= LOOK_S:
                self._looked = now
                moved = self._inode_of_path() != self.inode
            if not moved:
                return
            self.close()
            self._open(now)
            self._say(f"log {self.name}: the file or its folder was taken away; begun again")
            return
        self._open(now)

    def _inode_of_path(self) -> int:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return 0

    def _open(self, now: float) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._fd = os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            os.mkdir(self._folder, 0o700)
            self._fd = os.open(self._path, flags, 0o600)
        stat = os.fstat(self._fd)
        self.size_bytes, self.inode = stat.st_size, stat.st_ino
        self._looked = now
        self._born = now - self._age_on_disk()
        if self.size_bytes and os.pread(self._fd, 1, self.size_bytes - 1) != b"\n":
            self._torn = True

    def _age_on_disk(self) -> float:
        first = parse_line(os.pread(self._fd, 4096, 0).split(b"\n", 1)[0]) if self.size_bytes else None
        if first is None:
            return 0.0
        try:
            return max(0.0, time.time() - datetime.fromisoformat(first.time).timestamp())
        except ValueError:
            return 0.0

    def make_room(self, add_bytes: int, *, now: float) -> bool:
        """Rotate where the policy wants it before `add_bytes` are written. Call after `ready`; False as there."""
        if not must_rotate(self.policy, size_bytes=self.size_bytes, add_bytes=add_bytes, age_s=now - self._born):
            return True
        try:
            self.close()
            remove, shift = plan_rotation(self.name, self.policy, os.listdir(self._folder))
            for name in remove:
                os.unlink(self._folder / name)
            for old, new in shift:
                os.rename(self._folder / old, self._folder / new)
            self._open(now)
        except OSError as problem:
            self._fail(problem, now)
            return False
        self._rotated()
        return True

    def append(self, data: bytes, *, lines: int, raw_bytes: int, now: float) -> None:
        """Write whole stored lines that hold `lines` line ends and `raw_bytes` of output; count what finds no place."""
        notice = self._notice()
        before = b"\n" if self._torn else b""
        full = before + notice + data
        written, problem = self._write(full)
        if problem is None:
            self.size_bytes += written
            self._torn = False
            self._well(bool(notice))
            return
        # Whole records only; none at all behind a notice, which would tell a wrong number.
        keep = 0 if notice else full.rfind(b"\n", 0, written) + 1
        try:
            os.ftruncate(self._fd, self.size_bytes + keep)
            self.size_bytes += keep
        except OSError:
            self._torn = True
        kept = [line for raw in full[len(before) : keep].split(b"\n") if (line := parse_line(raw)) is not None]
        ends = sum(1 for line in kept if not (line.cont or line.pause or line.nonl))
        self._fail(problem, now)
        self.count_lost(lines - ends, raw_bytes - ends - sum(len(line.data) for line in kept))

    def _write(self, full: bytes) -> tuple[int, OSError | None]:
        """Write all of it, or as much as goes and why no more: a disk that fills up takes a part first."""
        written = 0
        try:
            while written < len(full):
                written += os.write(self._fd, full[written:] if written else full)
        except OSError as problem:
            return written, problem
        return written, None

    def _notice(self) -> bytes:
        if not self._lost_lines and not self._lost_bytes:
            return b""
        why = self._problem.strerror if self._problem is not None else "it could not be written"
        text = (
            f"kite: {_lines(self._lost_lines)} missing here ({self._lost_bytes} bytes, since {self._lost_since}): {why}"
        )
        return format_record(text.encode(), "k", time=utc_stamp(), stream="err", run=0)

    def count_lost(self, lines: int, raw_bytes: int) -> None:
        """Count output that no file holds."""
        self._lost_since = self._lost_since or utc_stamp()
        self._set_lost(self._lost_lines + lines, self._lost_bytes + raw_bytes)
        self.dropped_lines += lines
        self.dropped_bytes += raw_bytes

    def _set_lost(self, lines: int, size_bytes: int) -> None:
        """Set what is lost since the last line that said so, here and where it outlives us."""
        self._lost_lines, self._lost_bytes = lines, size_bytes
        if self._lost is not None:
            self._lost.put(self.name, lines, size_bytes, self._lost_since)

    def _fail(self, problem: OSError, now: float) -> None:
        first = self._problem is None
        self._problem = problem
        self._retry_at = now + RETRY_S
        if first:
            self._say(
                f"log {self.name}: can't be written, lines are counted and dropped: {problem.strerror} ({self._shown})"
            )

    def _well(self, said: bool) -> None:
        self._problem = None
        if said:
            lost = f"{_lines(self._lost_lines)} missing ({self._lost_bytes} bytes)"
            self._lost_since = ""
            self._set_lost(0, 0)
            self._say(f"log {self.name}: written again; {lost}")

    def trouble(self) -> LogTrouble | None:
        """Tell what is or was wrong; None for a log that never lost a byte."""
        if self._problem is None and not self.dropped_bytes:
            return None
        return LogTrouble(
            name=self.name,
            failing=self.failing,
            errno=(self._problem.errno or 0) if self._problem is not None else 0,
            why=(self._problem.strerror or "") if self._problem is not None else "",
            path=str(self._shown),
            dropped_lines=self.dropped_lines,
            dropped_bytes=self.dropped_bytes,
        )

    def last_lines(self) -> Iterator[StoredLine]:
        """Give the records at the end of the log, newest first, as far as the last 64 KiB reach."""
        for path in (self._path, self._path.with_name(f"{self._path.name}.1")):
            try:
                with open(path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                    raw = file.read(TAIL_BYTES)
            except OSError:
                continue
            yield from (line for one in reversed(raw.split(b"\n")) if (line := parse_line(one)) is not None)

    def cut_to(self, size_bytes: int, inode: int) -> bool:
        """Take back what a dead keeper wrote without taking it from the pipe. False when it is another file."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            stat = os.fstat(fd)
            if stat.st_ino != inode or stat.st_size < size_bytes:
                return False
            os.ftruncate(fd, size_bytes)
            return True
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the file; the next `ready` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class LogStore:
    """All logs of the instance, by name. A file is open only while someone writes to it.

    `shown` is the folder's name for people where `folder` is a way by descriptor.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        say: Callable[[str], None],
        shown: Path | None = None,
        lost: LostBook | None = None,
    ) -> None:
        self.folder = folder
        self._lost = lost
        self._shown = shown
        self._policy = policy
        self._say = say
        self._logs: dict[str, LogFile] = {}
        self.lines = 0
        self.bytes = 0

    def get(self, name: str) -> LogFile:
        """Give the log of this name."""
        if name not in self._logs:
            self._logs[name] = LogFile(
                self.folder, name, self._policy, self._say, self.hold_total, self._shown, self._lost
            )
        return self._logs[name]

    def set_policy(self, policy: Policy) -> None:
        """Take new limits; they hold from the next line on."""
        self._policy = policy
        for log in self._logs.values():
            log.policy = policy

    def troubles(self) -> tuple[LogTrouble, ...]:
        """Tell of every log that fails or lost lines."""
        return tuple(trouble for log in self._logs.values() if (trouble := log.trouble()) is not None)

    def retry(self, *, now: float) -> None:
        """Try failing logs again although nothing new is to be written: what is well again shall say so."""
        for log in self._logs.values():
            if log.failing and log.ready(now=now):
                log.append(b"", lines=0, raw_bytes=0, now=now)

    def hold_total(self) -> None:
        """Remove the oldest rotated files while all logs together are over the total. Costs one look at the folder."""
        if self._policy.total_bytes is None:
            return
        old: list[OldFile] = []
        live = 0
        try:
            for entry in os.scandir(self.folder):
                stat = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".log"):
                    live += stat.st_size
                else:
                    old.append(OldFile(entry.name, stat.st_size, stat.st_mtime))
            for name in over_total(old, live_bytes=live, total_bytes=self._policy.total_bytes):
                os.unlink(self.folder / name)
        except OSError:
            return  # the folder is gone or read-only: the logs themselves say so

    def close(self) -> None:
        """Close every file."""
        for log in self._logs.values():
            log.close()
