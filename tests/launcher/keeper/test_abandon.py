"""When an instance is abandoned, and what the keeper does then."""

import os
import sys
from pathlib import Path

import trio
from tests.support.keeper_box import PATIENCE_S, KeeperBox, keeper_box, order, python

from kite_launcher.core.abandon import Abandonment, ends_at, note
from kite_launcher.core.keeper_orders import KeeperSettings, Spawned
from kite_launcher.edge.keeper_link import KeeperLink
from kite_launcher.keeper.processes import marked, start_ticks


def test_nothing_is_abandoned_while_somebody_cares() -> None:
    state = note(Abandonment(), connected=True, caretakers=0, now=5.0)
    assert ends_at(state, abandoned_s=45) is None
    state = note(state, connected=False, caretakers=1, now=10.0)
    assert ends_at(state, abandoned_s=45) is None


def test_what_is_left_ends_when_grace_and_shutdown_have_passed() -> None:
    state = note(Abandonment(), connected=False, caretakers=0, now=10.0)
    assert ends_at(state, abandoned_s=45) == 55.0
    assert ends_at(note(state, connected=False, caretakers=0, now=99.0), abandoned_s=45) == 55.0


def test_a_kernel_that_outlives_the_grace_is_waited_for() -> None:
    state = note(Abandonment(), connected=False, caretakers=2, now=10.0)
    state = note(state, connected=False, caretakers=1, now=70.0)
    assert ends_at(state, abandoned_s=45) is None
    assert ends_at(note(state, connected=False, caretakers=0, now=80.0), abandoned_s=45) == 80.0


def test_a_launcher_that_comes_back_begins_the_count_again() -> None:
    state = note(Abandonment(), connected=False, caretakers=0, now=10.0)
    state = note(state, connected=True, caretakers=0, now=50.0)
    state = note(state, connected=False, caretakers=0, now=60.0)
    assert ends_at(state, abandoned_s=45) == 105.0


STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
)
FAMILY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1); os.close(2)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
"""


async def begun(box: KeeperBox, code: str, name: str, **more: object) -> int:
    """Start a marked program that says `up`, and wait for it."""
    env = {"PATH": os.environ["PATH"], "KITE_INSTANCE": box.settings.mark}
    spawned = await box.link.spawn(python(name, code, env=env, **more))
    assert isinstance(spawned, Spawned)
    with trio.fail_after(PATIENCE_S):
        await box.link.wait_log(name, spawned.run, "^up$")
    return spawned.pid


def stray_of(keeper: int) -> int:
    """Find the orphan without a mark that fell to the keeper."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                argv = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == keeper and argv == b"sleep\x00600\x00":
                return int(entry.name)
    raise AssertionError("no stray")


async def test_an_instance_that_everybody_left_leaves_nothing_running(tmp_path: Path) -> None:
    async with keeper_box(tmp_path, mark=f"abandoned-{os.getpid()}", abandoned_s=0.5) as box:
        await begun(box, STUBBORN, "stubborn", stop_timeout_s=0.5)
        await begun(box, FAMILY, "family")
        keeper = box.link.pid
        await box.until("the orphan has dropped the mark", lambda: len(marked(box.settings.mark)) == 3)
        stray = stray_of(keeper)
        await box.link.close(quit_keeper=False)
        await box.until("nothing runs", lambda: not [pid for pid in marked(box.settings.mark) if start_ticks(pid)])
        assert start_ticks(stray) is None
        await box.until("the keeper is gone", lambda: start_ticks(keeper) is None)
    log = (tmp_path / "logs" / "logkeeper.log").read_text()
    assert "ending family, stubborn" in log


async def test_a_kernel_that_lives_is_a_reason_to_wait(tmp_path: Path) -> None:
    async with keeper_box(tmp_path, mark=f"kernel-{os.getpid()}", abandoned_s=0.2) as box:
        kernel = await begun(box, "import time\nprint('up', flush=True)\ntime.sleep(600)\n", "kernel", role="kernel")
        module = await begun(box, "import time\nprint('up', flush=True)\ntime.sleep(600)\n", "x")
        await box.link.close(quit_keeper=False)
        await trio.sleep(1.0)
        assert start_ticks(module) is not None
        os.kill(kernel, 9)
        await box.until("the module is ended", lambda: start_ticks(module) is None)


async def test_a_launcher_that_is_just_starting_is_a_reason_to_wait(tmp_path: Path) -> None:
    hold = (
        "import fcntl, sys, time\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(600)\n"
    )
    async with keeper_box(tmp_path, mark=f"starting-{os.getpid()}", abandoned_s=0.2) as box:
        module = await begun(box, "import time\nprint('up', flush=True)\ntime.sleep(600)\n", "x")
        starting = await trio.lowlevel.open_process(
            [sys.executable, "-c", hold, str(tmp_path / "instance.lock")], stdout=-1
        )
        assert starting.stdout is not None
        assert (await starting.stdout.receive_some()).startswith(b"held")
        await box.link.close(quit_keeper=False)
        await trio.sleep(1.0)
        assert start_ticks(module) is not None
        starting.kill()
        await starting.wait()
        await starting.stdout.aclose()
        await box.until("the module is ended", lambda: start_ticks(module) is None)


def ends_written(state_dir: Path) -> int:
    """Count the ends that are written down."""
    path = state_dir / "exits.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


async def test_ends_while_no_launcher_lived_are_told_to_the_next_one(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await box.link.spawn(order("keep", "sleep", "600"))
        for number in (3, 4):
            await box.link.spawn(order(f"x{number}", "sh", "-c", f"sleep 0.2; exit {number}"))
        await box.link.close(quit_keeper=False)
        await box.until("both ends are written down", lambda: ends_written(tmp_path) == 2)
        link = await KeeperLink.connect(box._nursery, tmp_path, KeeperSettings())
        assert link is not None
        missed = await link.missed_exits()
        assert sorted((exited.name, os.waitstatus_to_exitcode(exited.status or 0)) for exited in missed) == [
            ("x3", 3),
            ("x4", 4),
        ]
        assert await link.missed_exits() == []
        assert [record.name for record in await link.kept_records()] == ["keep"]
        box.link = link
        await box.until("they are forgotten", lambda: ends_written(tmp_path) == 0)


async def test_ends_that_nobody_fetched_outlive_the_keeper(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await box.link.spawn(order("x", "sh", "-c", "sleep 0.2; exit 3"))
        keeper = box.link.pid
        await box.link.close(quit_keeper=False)
        await box.until("the keeper ends after the last writer", lambda: start_ticks(keeper) is None)
        await box.start()
        assert [(exited.name, exited.status) for exited in await box.link.missed_exits()] == [("x", 3 << 8)]


async def test_nobody_answers_where_no_keeper_is(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        assert await KeeperLink.connect(nursery, tmp_path, KeeperSettings()) is None
        assert await KeeperLink.connect(nursery, tmp_path / "nowhere", KeeperSettings()) is None


async def test_a_state_directory_of_any_length_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    async with keeper_box(deep) as box:
        await box.until("its socket", (deep / "keeper.sock").exists)
        assert (deep / "keeper.sock").stat().st_mode & 0o777 == 0o600
        link = await KeeperLink.connect(box._nursery, deep, KeeperSettings())
        assert link is not None
        assert link.pid == box.link.pid
        await box.link.gone.wait()
        box.link = link
        (deep / "keeper.sock").unlink()
        await box.until("its socket is made again", (deep / "keeper.sock").exists)


async def test_two_keepers_never_read_the_same_pipes(tmp_path: Path) -> None:
    async with keeper_box(tmp_path):
        second = await trio.run_process(
            [sys.executable, "-P", "-m", "kite_launcher.keeper", "--state-dir", str(tmp_path)], check=False
        )
        assert second.returncode == 75


async def test_a_keeper_of_another_instance_is_not_taken(tmp_path: Path) -> None:
    async with keeper_box(tmp_path, mark="mine") as box:
        await box.until("its socket", (tmp_path / "keeper.sock").exists)
        assert await KeeperLink.connect(box._nursery, tmp_path, KeeperSettings(mark="another")) is None
