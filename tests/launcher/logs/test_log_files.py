"""Reading logs that are written and rotated meanwhile: each line once."""

import os
import random
from pathlib import Path

from kite_launcher.cli.log_files import Follower, log_names, open_files, read_lines
from kite_launcher.core.logline import cut, format_cut
from kite_launcher.core.logrotate import Policy
from kite_launcher.keeper.store import LogFile

TIME = "2026-11-30T09:12:13.123456Z"


class Writer:
    """Writes numbered lines as the keeper does."""

    def __init__(self, folder: Path, *, max_bytes: int = 500, files: int = 50) -> None:
        self.count = 0
        self._log = LogFile(folder, "x", Policy(max_bytes, files), lambda text: None, lambda: None)

    def write(self, lines: int) -> None:
        for _ in range(lines):
            raw = b"%d\n" % self.count
            data = format_cut(cut(raw), time=TIME, stream="out", run=1)
            assert self._log.ready(now=0.0)
            assert self._log.make_room(len(data), now=0.0)
            self._log.append(data, lines=1, raw_bytes=len(raw), now=0.0)
            self.count += 1

    def close(self) -> None:
        self._log.close()


def read_all(folder: Path) -> list[int]:
    """Read the whole log."""
    files = open_files(str(folder), "x")
    numbers = [int(line.text) for line in read_lines(files)]
    for file in files:
        file.close()
    return numbers


def test_a_log_is_its_files_from_the_oldest_to_the_live_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(200)
    writer.close()
    assert len(list(tmp_path.iterdir())) > 10
    assert read_all(tmp_path) == list(range(200))
    assert log_names(str(tmp_path)) == ["x"]


def test_the_end_of_a_log_costs_only_its_end(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(200)
    writer.close()
    files = open_files(str(tmp_path), "x")
    last = [int(line.text) for line in read_lines(files, last_bytes=300)]
    assert last == list(range(200 - len(last), 200))
    assert 4 <= len(last) <= 7
    assert [int(line.text) for line in read_lines(files, last_bytes=10**9)] == list(range(200))
    for file in files:
        file.close()


def test_opened_files_are_read_whole_though_they_are_rotated_away(tmp_path: Path) -> None:
    writer = Writer(tmp_path, files=4)
    writer.write(30)
    files = open_files(str(tmp_path), "x")
    before = [int(line.text) for line in read_lines(files)]
    writer.write(200)
    writer.close()
    assert [int(line.text) for line in read_lines(files)] == before
    for file in files:
        file.close()


def test_a_follower_gives_each_line_once_over_any_number_of_rotations(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(25)
    files = open_files(str(tmp_path), "x")
    seen = [int(line.text) for line in read_lines(files)]
    follower = Follower(str(tmp_path), "x")
    follower.start_at(files[-1])
    for file in files:
        file.close()
    chance = random.Random(7)
    for _ in range(60):
        writer.write(chance.choice([0, 1, 3, 20, 60]))
        seen += [int(line.text) for line in follower.new_lines()]
    writer.close()
    follower.close()
    assert seen == list(range(writer.count))
    assert follower.missed == 0


def test_a_follower_says_when_lines_went_unseen(tmp_path: Path) -> None:
    writer = Writer(tmp_path, files=2)
    follower = Follower(str(tmp_path), "x")
    assert list(follower.new_lines()) == []
    writer.write(3)
    assert [int(line.text) for line in follower.new_lines()] == [0, 1, 2]
    writer.write(100)
    seen = [int(line.text) for line in follower.new_lines()]
    assert follower.missed == 1
    gap = next(at for at, number in enumerate(seen) if number != at + 3)
    assert gap > 0, "the file that was open is read to its end"
    assert seen[gap:] == list(range(seen[gap], 103))
    follower.close()
    writer.close()


def test_a_follower_waits_for_the_end_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(f"{TIME} out 1 - one\n{TIME} out 1 - tw".encode())
    files = open_files(str(tmp_path), "x")
    assert [line.text for line in read_lines(files)] == ["one"]
    follower = Follower(str(tmp_path), "x")
    follower.start_at(files[-1])
    assert list(follower.new_lines()) == []
    with path.open("ab") as file:
        file.write(b"o\n")
    assert [line.text for line in follower.new_lines()] == ["two"]
    follower.close()
    files[0].close()


def test_a_follower_survives_a_folder_that_is_removed_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "x.log").write_text(f"{TIME} out 1 - one\n")
    follower = Follower(str(folder), "x")
    assert [line.text for line in follower.new_lines()] == ["one"]
    (folder / "x.log").unlink()
    folder.rmdir()
    assert list(follower.new_lines()) == []
    folder.mkdir()
    (folder / "x.log").write_text(f"{TIME} out 1 - two\n")
    assert [line.text for line in follower.new_lines()] == ["two"]
    follower.close()


def test_a_log_that_is_emptied_is_followed_on(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(f"{TIME} out 1 - one\n")
    follower = Follower(str(tmp_path), "x")
    assert [line.text for line in follower.new_lines()] == ["one"]
    os.truncate(path, 0)
    assert list(follower.new_lines()) == []
    with path.open("a") as file:
        file.write(f"{TIME} out 1 - two\n")
    assert [line.text for line in follower.new_lines()] == ["two"]
    follower.close()
