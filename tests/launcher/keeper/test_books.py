"""What the keeper writes down: whole at every look, bounded, readable by the next one."""

import json
import os
from pathlib import Path

import attrs
import pytest

from kite_launcher.core.keeper_orders import Exited, KeptRecord
from kite_launcher.keeper import books
from kite_launcher.keeper.books import ExitBook, RecordBook, write_whole

RECORD = KeptRecord(name="x", role="module", run=1, pid=2, start_ticks=3, argv=("a", "\udcff"), started_at="now", out=5)


def ends(book: ExitBook, count: int) -> None:
    """Write ends down."""
    for _ in range(count):
        seq = book.next_seq()
        book.add(Exited(name="x", run=seq, pid=seq, start_ticks=1, status=0, at="now", seq=seq))


def test_what_nobody_heard_of_is_there_for_the_next_keeper(tmp_path: Path) -> None:
    book = ExitBook(tmp_path / "exits.jsonl")
    ends(book, 5)
    book.heard(3)
    again = ExitBook(tmp_path / "exits.jsonl")
    assert [exited.seq for exited in again.unheard][-2:] == [4, 5]
    assert again.next_seq() == 6


def test_a_book_that_everybody_has_heard_is_empty(tmp_path: Path) -> None:
    book = ExitBook(tmp_path / "exits.jsonl")
    ends(book, 5)
    book.heard(5)
    assert (tmp_path / "exits.jsonl").read_bytes() == b""
    assert ExitBook(tmp_path / "exits.jsonl").unheard == []


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "exits.jsonl"
    ends(ExitBook(path), 2)
    path.write_bytes(
        b'[]\n{}\n7\n\xff\n{"name":"y","run":1,"pid":2,"start_ticks":3,"status":0,"at":"","seq":"x"}\n'
        + path.read_bytes()
        + b'{"name": "y", "ru'
    )
    assert [exited.seq for exited in ExitBook(path).unheard] == [1, 2]


def test_the_book_is_bounded_in_memory_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "EXITS_MAX", 20)
    monkeypatch.setattr(books, "COMPACT_BYTES", 4000)
    book = ExitBook(tmp_path / "exits.jsonl")
    ends(book, 500)
    assert len(book.unheard) == 20
    assert book.lost == 480
    assert (tmp_path / "exits.jsonl").stat().st_size <= 4000
    assert [exited.seq for exited in ExitBook(tmp_path / "exits.jsonl").unheard][-20:] == list(range(481, 501))


def test_a_disk_that_refuses_changes_nothing_for_this_keeper(tmp_path: Path) -> None:
    book = ExitBook(tmp_path / "nowhere" / "exits.jsonl")
    ends(book, 3)
    book.heard(2)
    assert [exited.seq for exited in book.unheard] == [3]
    records = RecordBook(tmp_path / "nowhere" / "keeper.json")
    records.save([RECORD])
    assert records.problem is not None
    assert records.load() == []


def test_records_are_read_back_on_the_same_boot_only(tmp_path: Path) -> None:
    path = tmp_path / "keeper.json"
    RecordBook(path).save([RECORD, attrs.evolve(RECORD, name="y")])
    assert [record.name for record in RecordBook(path).load()] == ["x", "y"]
    assert RecordBook(path).load()[0] == RECORD
    changes: tuple[dict[str, object], ...] = ({"boot_id": "another"}, {"schema": 99}, {"records": [{}]}, {"records": 7})
    for change in changes:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        assert RecordBook(path).load() == []
        RecordBook(path).save([RECORD])
    path.write_bytes(b"\x00garbage")
    assert RecordBook(path).load() == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="space"):
        write_whole(path, b"new")
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o600
