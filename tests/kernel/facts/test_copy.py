"""Copies of the fact store: one moment, whole, under its name at once or not at all. Source: spec 80 §3."""

import os
import sqlite3
from pathlib import Path

import pytest
import trio

from kite_kernel.store.port import Committed, Unavailable
from kite_kernel.store.sqlite import SqliteStore
from kite_kernel.store.sqlite_copy import Copied
from kite_kernel.store.sqlite_file import SqliteFile, Step


def opened(path: Path) -> SqliteFile:
    file = SqliteFile(path, new_id="s1", stamp="20260101T000000Z", say=lambda level, text: None)
    file.open()
    return file


def put(file: SqliteFile, key: str) -> object:
    return file.execute([Step("create", "owned", key, b"{}")], now=0.0)[0]


def rows_of(path: Path) -> list[tuple[str]]:
    with sqlite3.connect(path) as copy:
        return copy.execute("SELECT key FROM facts ORDER BY key").fetchall()


def test_a_copy_holds_all_that_was_acknowledged_and_stands_alone(tmp_path: Path) -> None:
    file = opened(tmp_path / "facts.db")
    for number in range(50):
        assert put(file, f"k{number:02}") == Committed(number + 1)
    target = tmp_path / "backups" / "incoming" / "one.db"
    copied = file.copy(target)
    assert copied == Copied(target, 50, 50, target.stat().st_size)
    assert put(file, "later") == Committed(51)
    assert rows_of(target) == [(f"k{number:02}",) for number in range(50)]
    assert sorted(os.listdir(target.parent)) == ["one.db"]
    assert target.stat().st_mode & 0o777 == 0o600
    file.close()


def test_a_copy_of_a_damaged_store_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    file = opened(tmp_path / "facts.db")
    put(file, "k")
    file.fault = Unavailable("damaged", "it is")
    assert file.copy(tmp_path / "out" / "x.db") == Unavailable("damaged", "it is")
    assert not (tmp_path / "out").exists()
    file.fault = None
    file.close()


def test_a_copy_that_can_not_be_written_harms_nothing(tmp_path: Path) -> None:
    file = opened(tmp_path / "facts.db")
    (tmp_path / "out").write_bytes(b"")  # no folder
    found = file.copy(tmp_path / "out" / "x.db")
    assert isinstance(found, Unavailable)
    assert put(file, "k") == Committed(1)
    file.close()


async def test_copies_amid_writes_are_each_one_moment(tmp_path: Path) -> None:
    store = SqliteStore(
        SqliteFile(tmp_path / "facts.db", new_id="s", stamp="x", say=lambda level, text: None), clock=trio.current_time
    )
    ended: list[int] = []

    async def write() -> None:
        for number in range(200):
            assert isinstance(await store.create("owned", f"k{number:03}", b"{}"), Committed)
        ended.append(1)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            nursery.start_soon(write)
            for number in range(5):
                copied = await store.copy(tmp_path / f"{number}.db")
                assert isinstance(copied, Copied)
                assert [key for (key,) in rows_of(copied.path)] == [f"k{at:03}" for at in range(copied.facts)]
                assert copied.revision == copied.facts
            while not ended:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 65, "a.b", 7, None])
def test_names_that_are_paths_are_no_names(name: object) -> None:
    from kite_kernel.edge.fact_plane import _COPY_NAME

    assert not (isinstance(name, str) and _COPY_NAME.fullmatch(name))
