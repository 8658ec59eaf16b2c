"""The embedded store: what is acknowledged stands, what is damaged is said, what heals goes on."""

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import apsw
import pytest
import trio
from tests.support.forgetful_vfs import ForgetfulVFS, PowerCut

from kite_kernel.store.port import Committed, Conflict, Fact, Unavailable, Unknown
from kite_kernel.store.second_place import read_place
from kite_kernel.store.sqlite import SqliteStore
from kite_kernel.store.sqlite_file import SCHEMA, SqliteFile, Step


class Said(list[str]):
    def __call__(self, level: str, text: str) -> None:
        self.append(text)


@pytest.fixture
def said() -> Said:
    return Said()


def opened(path: Path, said: Said, *, new_id: str = "s1", vfs: str | None = None) -> SqliteFile:
    file = SqliteFile(path, new_id=new_id, stamp="20260101T000000Z", say=said, vfs=vfs)
    file.open()
    return file


def write(file: SqliteFile, key: str, value: bytes, revision: int | None = None) -> object:
    kind = "create" if revision is None else "update"
    return file.execute([Step(kind, "owned", key, value, revision or 0)], now=0.0)[0]


def read(file: SqliteFile, key: str) -> object:
    return file.execute([Step("get", "owned", key)], now=0.0)[0]


def test_revisions_rise_and_only_the_expected_one_is_replaced(tmp_path: Path, said: Said) -> None:
    file = opened(tmp_path / "facts.db", said)
    assert write(file, "k", b"1") == Committed(1)
    assert write(file, "k", b"2") == Conflict(1)
    assert write(file, "k", b"2", 1) == Committed(2)
    assert write(file, "k", b"3", 1) == Conflict(2)
    assert write(file, "none", b"3", 1) == Conflict(None)
    file.close()
    again = opened(tmp_path / "facts.db", said)
    assert read(again, "k") == Fact("owned", "k", b"2", 2)
    assert write(again, "k", b"4", 2) == Committed(3)
    again.close()
    assert said == []
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("how", ["emptied", "deleted", "older"])
def test_a_store_that_went_back_is_refused_and_never_begun_anew_in_silence(
    tmp_path: Path, said: Said, how: str
) -> None:
    path = tmp_path / "facts.db"
    file = opened(path, said)
    write(file, "k", b"1")
    file.epoch_high = 7
    file.close()
    copy = path.read_bytes()
    file = opened(path, said)
    write(file, "k", b"2", 1)
    file.close()
    if how == "emptied":
        path.write_bytes(b"")
    elif how == "deleted":
        path.unlink()
    else:
        path.write_bytes(copy)
    refused = opened(path, said)
    assert isinstance(refused.fault, Unavailable)
    assert refused.fault.reason == "damaged"
    assert str(path) in said[-1]
    assert isinstance(write(refused, "k2", b"1"), Unavailable)
    if how == "older":
        path.unlink()
    (tmp_path / "facts.anew").touch()
    anew = opened(path, said, new_id="s2")
    assert anew.fault is None
    assert (anew.epoch_floor, read(anew, "k")) == (7, None)
    anew.close()
    assert not (tmp_path / "facts.anew").exists()
    place = read_place(tmp_path / "facts.id")
    assert place is not None
    assert place.epoch_high == 7


@pytest.mark.parametrize("how", ["header", "half", "page"])
def test_a_damaged_file_is_kept_under_a_dated_name_and_said(tmp_path: Path, said: Said, how: str) -> None:
    path = tmp_path / "facts.db"
    file = opened(path, said)
    for number in range(200):
        write(file, f"k{number}", b"x" * 1000)
    file.close()
    content = bytearray(path.read_bytes())
    if how == "header":
        content[:100] = b"\0" * 100
    elif how == "half":
        del content[len(content) // 2 :]
    else:
        middle = len(content) // 2 // 4096 * 4096
        content[middle : middle + 4096] = bytes(255 - byte for byte in content[middle : middle + 4096])
    path.write_bytes(content)
    refused = opened(path, said)
    assert isinstance(refused.fault, Unavailable)
    assert refused.fault.reason == "damaged"
    kept = path.with_name("facts.db.damaged-20260101T000000Z")
    assert kept.read_bytes() == content
    assert "facts.db.damaged" in said[-1]
    assert opened(path, said).fault is not None


def test_a_newer_store_is_refused_by_both_versions_and_untouched(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "facts.db"
    opened(path, said).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    content = path.read_bytes()
    refused = opened(path, said)
    assert isinstance(refused.fault, Unavailable)
    assert str(SCHEMA + 1) in refused.fault.why
    assert str(SCHEMA) in refused.fault.why
    assert path.read_bytes() == content


def test_another_process_can_not_write_beside_the_kernel(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "facts.db"
    file = opened(path, said)
    write(file, "k", b"1")
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('DELETE FROM facts')"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "locked" in done.stderr
    assert write(file, "k", b"2", 1) == Committed(2)
    file.close()


def test_a_deleted_wal_is_noticed_and_loses_nothing(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "facts.db"
    file = opened(path, said)
    write(file, "k", b"1")
    write(file, "k", b"2", 1)
    path.with_name("facts.db-wal").unlink()
    assert write(file, "k", b"3", 2) == Committed(3)
    assert any("-wal was deleted" in line for line in said)
    file.close()
    assert read(opened(path, said), "k") == Fact("owned", "k", b"3", 3)


def test_a_file_replaced_under_the_kernel_is_refused(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "facts.db"
    file = opened(path, said)
    write(file, "k", b"1")
    path.rename(tmp_path / "aside")
    answer = write(file, "k", b"2", 1)
    assert isinstance(answer, Unavailable)
    assert answer.reason == "damaged"
    file.close()


@pytest.fixture
def forgetful() -> Iterator[list[ForgetfulVFS]]:
    made: list[ForgetfulVFS] = []
    yield made
    for vfs in made:
        vfs.unregister()


def test_one_failed_sync_closes_the_store_until_it_is_verified_again(
    tmp_path: Path, said: Said, forgetful: list[ForgetfulVFS]
) -> None:
    failing: list[bool] = []

    def fault() -> None:
        if failing:
            failing.clear()
            path.write_bytes(forgetful[0].disk.cached[str(path)])  # so that its size is seen from outside, too
            raise apsw.IOError("fsync: EIO")

    path = tmp_path / "facts.db"
    forgetful.append(ForgetfulVFS("eio", after=10**9, fault=fault))
    file = opened(path, said, vfs="eio")
    file._whole = lambda: True  # type: ignore[method-assign]  # its files are in memory
    assert write(file, "k", b"1") == Committed(1)
    failing.append(True)
    answer = write(file, "k", b"2", 1)
    assert isinstance(answer, Unknown | Unavailable)
    assert any("verified again" in line for line in said)
    found = read(file, "k")
    assert isinstance(found, Fact)
    assert isinstance(write(file, "k", b"3", found.revision), Committed)
    file.close()


@pytest.mark.parametrize("block", range(4))
def test_no_power_cut_loses_what_was_acknowledged(
    tmp_path: Path, said: Said, forgetful: list[ForgetfulVFS], block: int
) -> None:
    for seed in range(block * 250, block * 250 + 250):
        chance = random.Random(seed)
        vfs = ForgetfulVFS(f"cut{seed}", after=chance.randrange(30, 400))
        forgetful.append(vfs)
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = folder / "facts.db"
        acknowledged: dict[str, tuple[int, bytes]] = {}
        tried: dict[str, set[bytes]] = {}
        try:
            file = SqliteFile(path, new_id="s", stamp="t", say=said, vfs=f"cut{seed}")
            file.open()
            file._whole = lambda: True  # type: ignore[method-assign]
            for number in range(200):
                if file.fault is not None or vfs.calls > vfs.after:
                    break
                key, value = f"k{number % 7}", f"{seed}-{number}".encode() * chance.randrange(1, 60)
                tried.setdefault(key, set()).add(value)
                known = acknowledged.get(key)
                answer = write(file, key, value, None if known is None else known[0])
                if not isinstance(answer, Committed):
                    break
                acknowledged[key] = (answer.revision, value)
        except PowerCut:
            pass
        found = vfs.disk.cut(chance, keep=0.5)
        for name, content in found.items():
            if not name.endswith("-journal"):
                Path(name).write_bytes(content)
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), seed
        rows = {}
        if acknowledged:
            rows = {
                key: (rev, bytes(value))
                for key, rev, value in connection.execute("SELECT key, revision, value FROM facts")
            }
        connection.close()
        for key, (revision, value) in acknowledged.items():
            assert key in rows, (seed, key)
            assert rows[key][0] >= revision, (seed, key)
            assert rows[key][1] == value or rows[key][1] in tried[key], (seed, key)
        for part in folder.iterdir():
            part.unlink()


async def test_waiting_writes_share_one_sync_and_a_full_disk_heals_by_itself(tmp_path: Path, said: Said) -> None:
    file = SqliteFile(tmp_path / "facts.db", new_id="s", stamp="t", say=said)
    store = SqliteStore(file, clock=trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        async with trio.open_nursery() as writers:
            for number in range(100):
                writers.start_soon(store.create, "owned", f"k{number}", b"1")
        assert store.batches <= 10
        with trio.fail_after(30):
            async with aclosing(store.watch("owned")) as facts:
                seen = {(await anext(facts)).key for _ in range(100)}
        assert len(seen) == 100
        file._db().execute("PRAGMA max_page_count = 20")
        answer = await store.create("owned", "large", b"x" * 1_000_000)
        assert isinstance(answer, Unavailable)
        assert answer.reason == "full"
        found = await store.get("owned", "k1")
        assert isinstance(found, Fact)
        file._db().execute("PRAGMA max_page_count = 100000")
        assert isinstance(await store.create("owned", "large", b"x" * 1_000_000), Committed)
        nursery.cancel_scope.cancel()
