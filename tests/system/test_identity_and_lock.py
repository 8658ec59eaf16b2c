"""Nobody is taken for one of ours who is not, and there is never a second launcher.

Source: cases S-01 … S-09; spec 50 §1; 00 §27, §31.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lab import COMMAND, Lab, alive, boot_id, kill, module, start_ticks

STUBBORN = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(60)
"""

# The leader ends on TERM; a child in its group does not.
LEADER_AND_CHILD = """\
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)
print("up", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def _forge(lab: Lab, pid: int, ticks: int, boot: str) -> None:
    """Leave a dead launcher's records behind: x is said to be this process."""
    row = {"name": "x", "role": "module", "pid": pid, "start_ticks": ticks, "pgid": pid, "argv": [], "started_at": ""}
    document = {"schema": 1, "boot_id": boot, "instance": lab.mark(), "processes": [row]}
    (lab.state / "processes.json").write_text(json.dumps(document), "utf-8")


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Lab]:
    """An instance that ran once and is down."""
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.state.mkdir(mode=0o700)
        (lab.state / "instance.id").write_text(secrets.token_hex(16), "ascii")
        yield lab


@pytest.mark.parametrize("forged", ["ticks", "boot", "mark"])
def test_foreign_process_under_a_recorded_pid_gets_no_signal(
    stopped: Lab, stranger: subprocess.Popen[bytes], forged: str
) -> None:
    ticks = start_ticks(stranger.pid)
    _forge(
        stopped,
        stranger.pid,
        ticks + 1 if forged == "ticks" else ticks,
        "another-boot" if forged == "boot" else boot_id(),
    )
    assert stopped.run("status").returncode == 3
    if forged != "mark":
        assert stopped.run("down").returncode == 3
    stopped.up()
    assert stranger.poll() is None
    names = {row["name"]: row["pid"] for row in stopped.records()}
    assert names["x"] != stranger.pid
    if forged != "boot":
        assert stopped.log().count("not ours") == 1
        assert str(ticks) in stopped.log()


def test_leftovers_end_in_the_order_watchdog_modules_kernel(tmp_path: Path) -> None:
    toml = module("x") + module("y", "y.py")
    with Lab(tmp_path / "lab", toml, files={"y.py": STUBBORN}, scale=0.1) as lab:
        lab.up()
        order = {name: lab.pid(name) for name in ("watchdog", "x", "y", "kernel")}
        kill(lab.launcher_pid())
        seen: dict[str, float] = {}
        done = subprocess.Popen([*COMMAND, "up", "-d"], env=lab.env(), cwd=lab.folder)
        deadline = time.monotonic() + 30
        while len(seen) < len(order) and time.monotonic() < deadline:
            for name, pid in order.items():
                if name not in seen and not alive(pid):
                    seen[name] = time.monotonic()
            time.sleep(0.01)
        assert done.wait(30) == 0
        assert seen["watchdog"] <= min(seen["x"], seen["y"])
        assert max(seen["x"], seen["y"]) <= seen["kernel"]
        lab.until_well()


def test_of_two_launchers_released_at_once_one_wins(tmp_path: Path) -> None:
    for number in range(2):
        with Lab(tmp_path / f"lab{number}", module("x")) as lab:
            both = [
                subprocess.Popen([*COMMAND, "up", "-d"], env=lab.env(), cwd=lab.folder, stderr=subprocess.PIPE)
                for _ in range(2)
            ]
            said = [process.communicate(timeout=30)[1].decode() for process in both]
            codes = [process.returncode for process in both]
            assert sorted(codes) == [0, 75], (codes, said)
            loser = said[codes.index(75)]
            assert f"pid {lab.launcher_pid()}" in loser
            assert "since" in loser
            assert sum(name == "x" for name in lab.marked().values()) == 1


def test_second_up_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.up()
        holder = lab.launcher_pid()
        before = {path.name: path.stat().st_mtime_ns for path in lab.state.iterdir() if path.is_file()}
        for args in (("up",), ("up", "-d")):
            done = lab.run(*args)
            assert done.returncode == 75
            assert str(holder) in done.stderr
            assert done.stdout == ""
        after = {path.name: path.stat().st_mtime_ns for path in lab.state.iterdir() if path.is_file()}
        assert after == before
        # Removed files bring no second set, and come back.
        (lab.state / "instance.lock").unlink()
        (lab.state / "kernel.json").unlink()
        assert lab.run("up").returncode == 75
        lab.until(lambda: (lab.state / "instance.lock").exists() and (lab.state / "kernel.json").exists(), "both files")
        assert lab.log().count("instance.lock had been removed") == 1
        lab.until_well()
        assert lab.launcher_pid() == holder


def test_nobody_inherits_the_instance_lock(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.up()
        kill(lab.launcher_pid())
        # A killed process lets go of its descriptors when its last thread is gone: a moment, not a choice.
        lab.until(lambda: _lockable(lab.state / "instance.lock"), "the lock is free", 2.0)
        # The directory's own lock is free as well, and what is left is found and ended.
        assert lab.run("status").returncode == 3
        assert "x" in lab.run("status").stdout
        lab.ok("down")
        lab.assert_nothing_left()


def _lockable(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def test_child_of_a_dead_leader_ends_before_the_next_start(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x"), files={"x.py": LEADER_AND_CHILD}) as lab:
        lab.up()
        leader = lab.pid("x")
        members = [pid for pid, name in lab.marked().items() if name == "x"]
        assert len(members) == 2
        child = next(pid for pid in members if pid != leader)
        kill(lab.launcher_pid())
        kill(leader)
        assert alive(child)
        lab.up()
        assert not alive(child)
        first = min(start_ticks(pid) for pid, name in lab.marked().items() if name == "x")
        assert first > 0
