"""Log files when the disk is not well: nothing raises, everything is counted, kept + missing = written."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kite_launcher.core.logline import cut, format_cut, parse_line
from kite_launcher.core.logrotate import Policy
from kite_launcher.keeper import store
from kite_launcher.keeper.lost import LostBook
from kite_launcher.keeper.statedir import StateDir
from kite_launcher.keeper.store import LogFile, LogStore

TIME = "2026-11-30T09:12:13.123456Z"
POLICY = Policy(max_bytes=1 << 20, files=3)


class Disk:
    """A disk with so many bytes left. Stands in for `os.write` and `os.fstatvfs`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        self._write: Callable[[int, bytes], int] = os.write
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fstatvfs", self.fstatvfs)

    def write(self, fd: int, data: bytes) -> int:
        if self.left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        data = data[: self.left]
        self.left -= len(data)
        return self._write(fd, data)

    def fstatvfs(self, fd: int) -> os.statvfs_result:
        return os.statvfs_result((1, 1, self.left, self.left, self.left, 0, 0, 0, 0, 255))


class Writer:
    """Writes numbered lines to a log, as the reader of a stream does."""

    def __init__(self, folder: Path, lost: LostBook | None = None) -> None:
        self.said: list[str] = []
        self.log = LogFile(folder / "logs", "x", POLICY, self.said.append, lambda: None, lost=lost)
        self.written = 0
        self.now = 0.0

    def lines(self, count: int) -> None:
        raw = b"".join(b"%d\n" % number for number in range(self.written, self.written + count))
        self.written += count
        self.now += 1.0
        if not self.log.ready(now=self.now):
            self.log.count_lost(count, len(raw))
            return
        self.log.append(
            format_cut(cut(raw), time=TIME, stream="out", run=1), lines=count, raw_bytes=len(raw), now=self.now
        )

    def seen(self) -> tuple[list[int], int]:
        """Give the numbers that are kept and the sum of what is said to be missing."""
        lines = [parse_line(raw) for raw in (self.log._path).read_bytes().split(b"\n")[:-1]]
        assert None not in lines, "a torn line"
        kept = [int(line.text) for line in lines if line is not None and not line.own]
        lost = [int(re.findall(r"(\d+) line", line.text)[0]) for line in lines if line is not None and line.own]
        return kept, sum(lost)


@pytest.mark.parametrize("left", [0, 1, 45, 46, 400, 4096])
def test_a_full_disk_keeps_whole_lines_and_counts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    disk, writer = Disk(monkeypatch, left), Writer(tmp_path)
    for _ in range(10):
        writer.lines(50)
    assert writer.log.failing
    trouble = writer.log.trouble()
    assert trouble is not None
    assert (trouble.errno, trouble.why) == (errno.ENOSPC, "No space left on device")
    kept, _ = writer.seen()
    assert trouble.dropped_lines == 500 - len(kept)
    disk.left = 1 << 20
    for _ in range(3):
        writer.lines(50)
    kept, lost = writer.seen()
    assert not writer.log.failing
    assert len(kept) + lost == writer.written
    assert kept == sorted(set(kept))
    assert kept[-50:] == list(range(writer.written - 50, writer.written))
    assert [text.split(";")[0].split(",")[0] for text in writer.said] == [
        "log x: can't be written",
        "log x: written again",
    ]


def test_a_disk_that_flickers_never_tells_a_wrong_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FREE_BYTES", 1)
    disk, writer = Disk(monkeypatch, 300), Writer(tmp_path)
    for turn in range(200):
        disk.left = max(disk.left, 0) + (turn * 37) % 400
        writer.lines(7)
    disk.left = 1 << 20
    writer.lines(1)
    kept, lost = writer.seen()
    assert len(kept) + lost == writer.written
    assert kept == sorted(set(kept))


def test_too_little_room_is_not_tried_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, writer = Disk(monkeypatch, 100), Writer(tmp_path)
    for _ in range(5):
        writer.lines(50)
        disk.left = 4096
    assert writer.log.failing
    assert len(writer.said) == 1


def test_a_log_that_failed_says_that_it_is_well_without_a_new_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, 0)
    said: list[str] = []
    logs = LogStore(tmp_path / "logs", POLICY, said.append)
    log = logs.get("x")
    assert log.ready(now=1.0)
    log.append(b"", lines=0, raw_bytes=0, now=1.0)
    log.append(format_cut(cut(b"a\n"), time=TIME, stream="out", run=1), lines=1, raw_bytes=2, now=1.0)
    assert log.failing
    disk.left = 1 << 20
    logs.retry(now=1.01)
    assert log.failing, "tried again too early"
    logs.retry(now=2.0)
    assert not log.failing
    [trouble] = logs.troubles()
    assert (trouble.failing, trouble.dropped_lines, trouble.dropped_bytes) == (False, 1, 2)


def test_a_killed_keeper_does_not_forget_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lost"
    disk, writer = Disk(monkeypatch, 400), Writer(tmp_path, lost=LostBook(path))
    for _ in range(4):
        writer.lines(50)
    disk.left = 1 << 20
    again = Writer(tmp_path, lost=LostBook(path))
    again.written = writer.written
    again.lines(10)
    kept, lost = again.seen()
    assert len(kept) + lost == again.written
    assert LostBook(path).get("x") == (0, 0, "")


def test_the_book_of_what_is_missing_has_a_place_for_many_and_frees_it(tmp_path: Path) -> None:
    book = LostBook(tmp_path / "lost")
    for number in range(300):
        book.put(f"m{number}", number + 1, 2, "2026-11-30T09:12:13.123456Z")
    assert LostBook(tmp_path / "lost").get("m200") == (201, 2, "2026-11-30T09:12:13.123456Z")
    assert book.get("m299") == (0, 0, "")
    book.put("m200", 0, 0, "")
    book.put("m299", 7, 8, "")
    assert LostBook(tmp_path / "lost").get("m299") == (7, 8, "")
    (tmp_path / "lost").write_bytes(b"\xff" * 100_000)
    LostBook(tmp_path / "lost").put("x", 1, 1, "")
    assert LostBook(tmp_path / "nowhere" / "lost").get("x") == (0, 0, "")


def test_a_state_directory_that_is_gone_is_a_state_and_no_crash(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    writer = Writer(gone)
    writer.lines(1)
    (gone / "logs" / "x.log").unlink()
    (gone / "logs").rmdir()
    gone.rmdir()
    writer.lines(3)
    assert writer.log.failing
    gone.mkdir()
    writer.lines(2)
    assert not writer.log.failing
    assert writer.seen() == ([4, 5], 3)


def test_a_log_that_somebody_emptied_goes_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.lines(3)
    os.truncate(tmp_path / "logs" / "x.log", 0)
    writer.lines(2)
    assert writer.seen() == ([3, 4], 0)
    assert writer.log.size_bytes == (tmp_path / "logs" / "x.log").stat().st_size


def test_a_torn_last_line_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "x.log").write_bytes(b"2026-11-30T09:12:13.123456Z out 1 - torn")
    writer = Writer(tmp_path)
    writer.lines(2)
    assert b"torn\n2026" in (tmp_path / "logs" / "x.log").read_bytes()


def test_a_link_in_place_of_a_log_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "logs" / "x.log").symlink_to(tmp_path / "victim")
    writer = Writer(tmp_path)
    writer.lines(2)
    assert writer.log.failing
    assert (tmp_path / "victim").read_text() == "mine"


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Writer(tmp_path).lines(1)
    finally:
        os.umask(before)
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs" / "x.log").stat().st_mode & 0o777 == 0o600


def test_the_total_of_all_logs_is_held(tmp_path: Path) -> None:
    logs = LogStore(tmp_path / "logs", Policy(max_bytes=1000, files=50, total_bytes=10_000), lambda text: None)
    record = format_cut(cut(b"a" * 400 + b"\n"), time=TIME, stream="out", run=1)
    for turn in range(100):
        log = logs.get(f"m{turn % 3}")
        assert log.ready(now=0.0)
        assert log.make_room(len(record), now=0.0)
        log.append(record, lines=1, raw_bytes=401, now=0.0)
        assert (
            sum(path.stat().st_size for path in (tmp_path / "logs").iterdir()) <= 10_000 + 3 * 1000
        )  # the live ones grow until one rotates
    logs.close()


def test_age_makes_room_even_over_a_new_start(tmp_path: Path) -> None:
    policy = Policy(max_bytes=1 << 20, files=3, max_age_s=60)
    (tmp_path / "logs").mkdir()
    old = b"2026-01-01T00:00:00.000000Z out 1 - old\n"
    (tmp_path / "logs" / "x.log").write_bytes(old)
    log = LogFile(tmp_path / "logs", "x", policy, lambda text: None, lambda: None)
    assert log.ready(now=5.0)
    assert log.make_room(10, now=5.0)
    assert log.size_bytes == 0
    assert (tmp_path / "logs" / "x.log.1").read_bytes() == old
    log.close()


def test_a_state_directory_of_another_instance_in_its_place_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    (path / "instance.id").write_text("mine\n")
    state_dir = StateDir(path)
    state_dir.mark = "mine"
    path.rename(tmp_path / "moved")
    (state_dir.way / "a").touch()
    assert (tmp_path / "moved" / "a").exists(), "a directory that is moved is followed"
    for name in ("a", "instance.id"):
        (tmp_path / "moved" / name).unlink()
    (tmp_path / "moved").rmdir()
    path.mkdir()
    (path / "instance.id").write_text("another\n")
    state_dir.follow()
    with pytest.raises(OSError, match="No such file"):
        (state_dir.way / "b").touch()
    (path / "instance.id").write_text("mine\n")
    state_dir.follow()
    (state_dir.way / "b").touch()
    assert (path / "b").exists()
