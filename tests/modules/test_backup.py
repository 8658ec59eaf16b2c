"""Snapshots: taken while everything runs, proven, put back. Source: spec 80 §3, case X-36."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.kernel_process import KernelProcess

from kite_launcher._contract import CONFIG
from kite_modules.backup.check import faults, prove
from kite_modules.backup.options import Options
from kite_modules.backup.restore import Running, restore, stopped
from kite_modules.backup.snapshot import FILES, BackupError, Snapshot, alone, listed, prune, read, take

STAMP = "20261130T091213-000000Z"
AT = "2026-11-30T09:12:13.000+00:00"


def instance(folder: Path) -> Path:
    """A state directory as a stopped instance leaves it, without facts and streams."""
    state = folder / "state"
    (state / "modules" / "shop").mkdir(parents=True, mode=0o700)
    (state / "tokens").mkdir()
    (state / "tokens" / "operator").write_text("canary-token")
    (state / "instance.id").write_text("mark")
    (state / "audit.head").write_text("{}")
    (state / "modules" / "shop" / "notes.jsonl").write_bytes(b'{"n":1}\n{"n":2}\n{"torn":')
    (state / "modules" / "shop" / "photo.bin").write_bytes(bytes(range(256)) * 10)
    with sqlite3.connect(state / "modules" / "shop" / "shop.db") as database:
        database.execute("PRAGMA journal_mode=wal")
        database.execute("CREATE TABLE orders (id INTEGER)")
        database.executemany("INSERT INTO orders VALUES (?)", [(number,) for number in range(100)])
    database.close()
    return state


def taken(state: Path, name: str = "one", made_at: str = AT) -> Snapshot:
    return take(state, state / "backups", name=name, made_at=made_at, facts=None)


def test_a_snapshot_holds_all_state_and_no_token(tmp_path: Path) -> None:
    state = instance(tmp_path)
    made = taken(state)
    assert {row["path"] for row in made.files} == {
        "instance.id",
        "audit.head",
        "modules/shop/notes.jsonl",
        "modules/shop/photo.bin",
        "modules/shop/shop.db",
    }
    assert (made.folder / FILES / "modules/shop/notes.jsonl").read_bytes() == b'{"n":1}\n{"n":2}\n'
    assert prove(made, now=AT) == []
    for path in made.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.is_dir() or b"canary-token" not in path.read_bytes()


def test_a_database_is_copied_at_one_moment_amid_a_writers_transaction(tmp_path: Path) -> None:
    state = instance(tmp_path)
    writer = sqlite3.connect(state / "modules/shop/shop.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO orders VALUES (100)")
    made = taken(state)
    writer.execute("COMMIT")
    writer.close()
    (row,) = [row for row in made.files if row["kind"] == "sqlite"]
    assert row["rows"] == {"orders": 100}


@pytest.mark.parametrize(
    ("hurt", "word"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\0"), "changed"),
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), "changed"),
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.with_name("extra").write_bytes(b""), "does not belong"),
    ],
    ids=["byte", "cut", "removed", "added"],
)
def test_a_hurt_snapshot_is_named_and_never_put_back(tmp_path: Path, hurt: Callable[[Path], object], word: str) -> None:
    state = instance(tmp_path)
    made = taken(state)
    assert prove(made, now=AT) == []
    hurt(made.folder / FILES / "modules/shop/photo.bin")
    assert word in faults(made)[0]
    assert prove(made, now=AT)
    assert read(made.folder).verified_at is None
    before = sorted(path.name for path in state.iterdir())
    with pytest.raises(BackupError):
        restore(made, state, stamp=STAMP)
    assert sorted(path.name for path in state.iterdir() if "lock" not in path.name) == before


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", ""])
def test_a_manifest_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    made = taken(instance(tmp_path))
    manifest = made.folder / "manifest.json"
    told = json.loads(manifest.read_text())
    told["files"][0]["path"] = path
    manifest.write_text(json.dumps(told))
    with pytest.raises(BackupError):
        read(made.folder)


def test_a_restore_brings_all_back_and_keeps_what_stood_there(tmp_path: Path) -> None:
    state = instance(tmp_path)
    made = taken(state)
    (state / "modules/shop/photo.bin").write_bytes(b"other")
    (state / "modules/shop/new.txt").write_text("later")
    (state / "instance.id").write_text("another mark")
    aside = restore(made, state, stamp=STAMP)
    assert (state / "modules/shop/photo.bin").read_bytes() == bytes(range(256)) * 10
    assert not (state / "modules/shop/new.txt").exists()
    assert (aside / "modules/shop/new.txt").read_text() == "later"
    assert (state / "instance.id").read_text() == "another mark"
    assert not (state / "restore.part").exists()


def test_a_restore_is_refused_while_the_instance_holds_its_lock(tmp_path: Path) -> None:
    state = instance(tmp_path)
    made = taken(state)
    with stopped(state), pytest.raises(Running):
        restore(made, state, stamp=STAMP)
    assert not list(state.glob("before-restore-*"))


def test_a_backup_that_fails_leaves_nothing_and_the_next_clears_what_a_kill_left(tmp_path: Path) -> None:
    state = instance(tmp_path)
    left = state / "backups" / "killed.part"
    left.mkdir(parents=True)
    with pytest.raises(BackupError):
        take(state, state / "backups", name="one", made_at=AT, facts=tmp_path / "not there")
    assert list((state / "backups").iterdir()) == []


def test_old_snapshots_go_but_never_the_newest_verified_one(tmp_path: Path) -> None:
    state = instance(tmp_path)
    root = state / "backups"
    made = [taken(state, f"s{number}", f"2026-11-30T09:1{number}:00+00:00") for number in range(5)]
    assert prune(root, 2) == []  # nothing is proven yet
    prove(made[0], now=AT)
    assert prune(root, 2) == ["s1", "s2"]
    prove(made[4], now=AT)
    assert prune(root, 2) == ["s0"]
    assert [snapshot.name for snapshot in listed(root)] == ["s3", "s4"]


def test_two_backups_at_once_are_one_and_a_refusal(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(BackupError), alone(tmp_path):
        raise AssertionError("both had the lock")


def test_the_options_are_those_of_the_contract() -> None:
    rows = CONFIG["backup"]
    assert (rows["keep"]["default"], rows["dir"]["default"], rows["every"]["default"]) == (7, "", "24h")
    assert (Options().keep, Options().dir, Options().every) == (7, "", 86400.0)


# ---------------------------------------------------------------------- with a kernel


def kite(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "kite_modules.cli.main", *words, "--state-dir", str(state)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def answer(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_the_command_takes_proves_and_restores_facts_and_streams(tmp_path: Path) -> None:
    config = "[streams.ticks]\ndurable = true\n"
    state = tmp_path / "state"
    with KernelProcess(tmp_path, {"operator": "operator"}, config=config) as kernel:
        (state / "tokens").mkdir(exist_ok=True)
        (state / "tokens" / "operator").touch(0o600)
        (state / "tokens" / "operator").write_text(kernel.tokens["operator"])
        answer(kite(state, "call", "ownership.create", '{"key":"kept"}', "--json"))
        for number in range(3):
            assert kite(state, "stream", "pub", "ticks", f"m{number}").returncode == 0
        made = answer(kite(state, "backup", "new", "--json"))
        answer(kite(state, "call", "ownership.create", '{"key":"later"}', "--json"))
        refused = kite(state, "backup", "restore", made["name"])
        assert (refused.returncode, "kite down" in refused.stderr) == (75, True)
        kernel.stop()
        assert answer(kite(state, "backup", "ls", "--json"))["snapshots"][0]["verified_at"] is not None
        answer(kite(state, "backup", "restore", made["name"], "--json"))
        kernel.start()
        records = answer(kite(state, "ownership", "--json"))["records"]
        assert [row["key"] for row in records] == ["kept"]
        told = kite(state, "stream", "sub", "ticks", "--last", "0", "--count", "3", "--timeout", "30")
        assert told.returncode == 0, told.stderr
        assert [word in told.stdout for word in ("m0", "m1", "m2")] == [True, True, True]
    offline = answer(kite(state, "backup", "new", "--json"))
    assert offline["files"] >= made["files"]
    assert kite(state, "backup", "verify").returncode == 0
    facts = Path(offline["path"]) / FILES / "facts.db"
    facts.write_bytes(facts.read_bytes()[:-100])
    hurt = kite(state, "backup", "verify", offline["name"], "--json")
    assert (hurt.returncode, json.loads(hurt.stdout)["ok"]) == (1, False)


def test_a_module_of_another_name_gets_no_copy_of_the_facts(tmp_path: Path) -> None:
    with KernelProcess(tmp_path, {"shop": "module"}) as kernel:
        token = tmp_path / "shop.token"
        token.touch(0o600)
        token.write_text(kernel.tokens["shop"])
        env = {"KITE_URL": kernel.url, "KITE_TOKEN_FILE": str(token), "KITE_MODULE_ID": "shop", "PATH": "/usr/bin"}
        command = [sys.executable, "-P", "-m", "kite_modules.cli.main", "call", "fact.backup", '{"name":"x"}']
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=tmp_path)
        assert (ran.returncode, "-32004" in ran.stderr or "permission" in ran.stderr) == (1, True), ran.stderr
    assert not (tmp_path / "state" / "backups").exists()
