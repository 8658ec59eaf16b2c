"""A fresh instance is started by the record, within the budget, and by nobody else: real files, real processes.

The recorded command is a small program that writes down what it saw. Source: spec 60-watchdog §2, 00 §26-27;
cases S-66, S-73, S-74, S-76, and a forged record, a command that is gone, a state directory that can't be written.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from tests.support.lab import boot_id, start_ticks
from tests.support.watchdog_box import RECORDER

from kite_watchdog.core.options import Options
from kite_watchdog.core.record import Identity
from kite_watchdog.edge import processes
from kite_watchdog.edge.instance import Instance, Outcome

Tell = Callable[[str, dict[str, Any]], None]


class Room:
    """A state directory with a record, and the instance's keeper that is tried."""

    def __init__(self, folder: Path, *, restarts: int = 3) -> None:
        self.dir = folder
        self.told: list[tuple[str, dict[str, Any]]] = []
        (folder / "recorder.py").write_text(RECORDER, "utf-8")
        self.verdict("0")
        self.write()
        self.instance = Instance(
            folder,
            options=Options(restarts=restarts, scale=0.01),
            log=structlog.wrap_logger(structlog.testing.CapturingLogger()),
            tell=lambda name, data: self.told.append((name, data)),
            environ={"PATH": os.environ["PATH"], "KITE_INSTANCE": "mark", "KITE_TOKEN_FD": "7", "SECRET": "s"},
        )

    def verdict(self, what: str) -> None:
        (self.dir / "verdict").write_text(what, "utf-8")

    def write(self, **changes: Any) -> None:
        document = {
            "schema": 1,
            "argv": [sys.executable, "-P", str(self.dir / "recorder.py"), str(self.dir), "up", "é 'b\n"],
            "cwd": str(self.dir),
            "env_names": ["PATH", "HOME", "KITE_INSTANCE"],
            "launcher": {"pid": 2**22, "start_ticks": 1, "boot_id": boot_id()},
            **changes,
        }
        file = self.dir / "launch.json"
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(json.dumps(document), "utf-8")

    def started(self) -> list[dict[str, Any]]:
        file = self.dir / "started.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def recorded(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((self.dir / "restarts.json").read_bytes())["starts"]
        return rows

    async def start(self) -> Outcome:
        with trio.fail_after(60):
            return await self.instance.start_fresh("launcher lost")

    def gave_up(self) -> list[str]:
        return [data["why"] for name, data in self.told if name == "watchdog.gave_up"]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


async def test_the_recorded_command_runs_once_detached_and_after_its_entry(room: Room) -> None:
    assert await room.start() is Outcome.STARTED
    (row,) = room.started()
    assert row["argv"][2:] == ["up", "é 'b\n"]
    assert row["cwd"] == str(room.dir)
    assert row["starts"] == 1, "the entry stood in restarts.json before the deed"
    assert row["sid"] == row["pid"], "a session of its own"
    assert room.recorded()[0]["cause"] == "launcher lost"
    assert (room.dir / "restarts.json").stat().st_mode & 0o777 == 0o600


async def test_the_fresh_launcher_sees_nothing_of_the_old_instance(room: Room) -> None:
    await room.start()
    (row,) = room.started()
    assert "PATH" in row["env"]
    assert not [name for name in row["env"] if name.startswith("KITE_") or name == "SECRET"]


async def test_a_start_that_fails_is_tried_again_until_the_budget_is_used_up(room: Room) -> None:
    room.verdict("1")
    assert await room.start() is Outcome.GAVE_UP
    assert len(room.started()) == len(room.recorded()) == 3
    assert len(room.gave_up()) == 1
    assert "3 starts of 3" in room.gave_up()[0]


async def test_the_budget_survives_the_watchdog(room: Room, tmp_path: Path) -> None:
    room.verdict("1")
    await room.start()
    again = Room(tmp_path)
    assert await again.start() is Outcome.GAVE_UP
    assert len(again.started()) == 3


async def test_who_was_faster_is_left_alone(room: Room) -> None:
    room.verdict("75")
    assert await room.start() is Outcome.OTHERS
    assert len(room.started()) == 1
    assert room.gave_up() == []


async def test_a_lock_that_somebody_holds_is_never_contested(room: Room) -> None:
    with open(room.dir / "instance.lock", "w") as lock:  # noqa: ASYNC230 - a file of the test's own
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await room.start() is Outcome.OTHERS
    assert room.started() == []
    assert not (room.dir / "restarts.json").exists()


async def test_a_launcher_that_lives_and_holds_the_lock_is_left_to_itself(room: Room) -> None:
    with open(room.dir / "instance.lock", "w") as lock:  # noqa: ASYNC230
        fcntl.flock(lock, fcntl.LOCK_EX)
        pid = os.getpid()
        room.write(launcher={"pid": pid, "start_ticks": start_ticks(pid), "boot_id": boot_id()})
        assert await room.start() is Outcome.LIVES
    assert room.started() == []


async def test_looking_at_the_lock_never_takes_it(room: Room) -> None:
    file = room.dir / "instance.lock"
    file.touch()
    for _ in range(200):
        room.instance.lock_holder()
        with open(file, "r+") as lock:  # noqa: ASYNC230
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError if anybody holds it
            assert room.instance.lock_holder() == os.getpid()
    assert room.instance.lock_holder() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ["/nowhere/kite-launch", "up"]},
        {"cwd": "/nowhere"},
        {"argv": ["/etc/hostname"]},
    ],
)
async def test_a_command_that_no_longer_runs_is_tried_a_bounded_number_of_times(
    room: Room, changes: dict[str, Any]
) -> None:
    room.write(**changes)
    assert await room.start() is Outcome.GAVE_UP
    assert len(room.recorded()) == 3
    assert len(room.gave_up()) == 1


@pytest.mark.parametrize("forged", ["garbage", "", "[]", '{"schema":1,"argv":"sh"}', "[" * 10_000])
async def test_a_forged_record_starts_nothing_and_somebody_is_told(room: Room, forged: str) -> None:
    (room.dir / "launch.json").write_text(forged, "utf-8")
    assert await room.start() is Outcome.GAVE_UP
    assert len(room.gave_up()) == 1
    assert "launch.json" in room.gave_up()[0]
    assert room.started() == []


async def test_a_record_that_others_may_write_is_not_believed(room: Room) -> None:
    (room.dir / "launch.json").chmod(0o666)
    assert await room.start() is Outcome.GAVE_UP
    assert room.started() == []


async def test_a_record_that_is_a_link_or_a_fifo_is_not_followed_and_never_blocks(room: Room) -> None:
    record = room.dir / "launch.json"
    record.rename(room.dir / "elsewhere.json")
    record.symlink_to(room.dir / "elsewhere.json")
    assert await room.start() is Outcome.GAVE_UP
    record.unlink()
    os.mkfifo(record, 0o600)
    assert await room.start() is Outcome.GAVE_UP
    assert room.started() == []


async def test_without_a_record_nothing_is_started_and_it_is_said(room: Room) -> None:
    (room.dir / "launch.json").unlink()
    assert await room.start() is Outcome.GAVE_UP
    assert "does not exist" in room.gave_up()[0]


async def test_what_can_not_be_recorded_is_not_done(room: Room) -> None:
    (room.dir / f".restarts.json.{os.getpid()}.tmp").mkdir()  # no file can be made under that name
    assert await room.start() is Outcome.GAVE_UP
    assert room.started() == []
    assert "can't be recorded" in room.gave_up()[0]


async def test_a_disk_that_is_writable_again_in_time_is_used(room: Room) -> None:
    blocker = room.dir / f".restarts.json.{os.getpid()}.tmp"
    blocker.mkdir()

    async def unblock() -> None:
        await trio.sleep(0.05)
        blocker.rmdir()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(unblock)
        assert await room.start() is Outcome.STARTED
    assert len(room.recorded()) == 1


@pytest.mark.parametrize("damage", ["garbage", '{"schema":99}', '{"schema":1,"starts":[7]}'])
async def test_a_damaged_budget_is_set_aside_and_said(room: Room, damage: str) -> None:
    (room.dir / "restarts.json").write_text(damage, "utf-8")
    assert await room.start() is Outcome.STARTED
    (aside,) = room.dir.glob("restarts.json.damaged-*")
    assert aside.read_text("utf-8") == damage
    assert [name for name, _ in room.told] == ["watchdog.record_damaged", "watchdog.restart"]
    assert len(room.recorded()) == 1


async def test_no_half_file_is_ever_left(room: Room) -> None:
    room.verdict("1")
    await room.start()
    assert not [p.name for p in room.dir.iterdir() if p.name.endswith(".tmp")]


async def test_strangers_on_a_recorded_pid_are_neither_believed_nor_signalled(room: Room) -> None:
    stranger = await trio.lowlevel.open_process(["sleep", "300"], stdin=subprocess.DEVNULL)
    try:
        identity = {"pid": stranger.pid, "start_ticks": start_ticks(stranger.pid) + 1, "boot_id": boot_id()}
        room.write(launcher=identity)
        assert not room.instance.launcher_alive()
        await room.start()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_zombie_counts_as_dead() -> None:
    process = subprocess.Popen(["true"], stdin=subprocess.DEVNULL)  # noqa: ASYNC220 - it must not be waited for
    try:
        ticks = start_ticks(process.pid)
        with trio.fail_after(10):
            while processes.alive(Identity(process.pid, ticks, boot_id())):
                await trio.sleep(0.01)
        os.kill(process.pid, 0)  # still there, as a zombie
    finally:
        process.wait()


def test_identity_is_pid_and_ticks_and_boot() -> None:
    pid = os.getpid()
    assert processes.alive(Identity(pid, start_ticks(pid), boot_id()))
    assert not processes.alive(Identity(pid, start_ticks(pid) + 1, boot_id()))
    assert not processes.alive(Identity(pid, start_ticks(pid), "another boot"))
    assert not processes.alive(Identity(2**22, 1, boot_id()))


LOCKS = """\
1: POSIX  ADVISORY  WRITE 11 {device} 0 EOF
2: FLOCK  ADVISORY  READ 12 {device} 0 EOF
2: -> FLOCK  ADVISORY  WRITE 13 {device} 0 EOF
3: FLOCK  ADVISORY  WRITE {pid} {device} 0 EOF
"""


@pytest.mark.parametrize(
    ("device", "pid", "written", "holder"),
    [
        ("own", "77", "", 77),  # the device that stat gives
        ("00:99", "77", '{"pid": 77, "since": "x"}', 77),  # a layered file system: inode and written pid decide
        ("00:99", "77", '{"pid": 78}', None),  # the same inode on another device, somebody else's
        ("own", "-1", "", 0),  # a holder in another pid namespace
    ],
)
def test_the_lock_is_read_from_what_the_machine_says(
    room: Room, monkeypatch: pytest.MonkeyPatch, device: str, pid: str, written: str, holder: int | None
) -> None:
    lock = room.dir / "instance.lock"
    lock.write_text(written, "utf-8")
    info = lock.stat()
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}" if device == "own" else device
    (room.dir / "proc").mkdir()
    (room.dir / "proc" / "locks").write_text(LOCKS.format(device=f"{place}:{info.st_ino}", pid=pid), "ascii")
    monkeypatch.setattr(processes, "PROC", room.dir / "proc")
    assert processes.lock_holder(lock) == holder


def test_without_a_lock_file_or_a_list_of_locks_nobody_holds_it(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.lock_holder(room.dir / "nosuch") is None
    (room.dir / "instance.lock").touch()
    monkeypatch.setattr(processes, "PROC", room.dir / "noproc")
    assert processes.lock_holder(room.dir / "instance.lock") is None
    assert processes.boot_id() == ""
