"""What a program prints is kept: every byte once, over the death of every reader, whatever the disk does."""

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest
import trio
from tests.support.keeper_box import PATIENCE_S, KeeperBox, collect, keeper_box, order, python, stored, texts

from kite_launcher.core.keeper_orders import Spawned
from kite_launcher.core.logquery import join_all
from kite_launcher.edge import keeper_link
from kite_launcher.edge.keeper_pipes import held_pipes
from kite_launcher.keeper.journal import Journal
from kite_launcher.keeper.processes import marked

COUNT = "import time\ni = 0\nwhile True:\n    print(i, flush=True)\n    i += 1\n    time.sleep({pause})\n"


async def running(box: KeeperBox, asked: object) -> Spawned:
    """Start a program that must start."""
    spawned = await box.link.spawn(asked)  # type: ignore[arg-type]
    assert isinstance(spawned, Spawned)
    return spawned


async def test_the_last_line_without_newline_is_there_before_the_end_is_told(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await running(box, order("x", "sh", "-c", "echo first; echo other >&2; printf 'no newline'; exit 1"))
        exited = await box.ended("x")
        lines = stored(tmp_path, "x")
        assert os.waitstatus_to_exitcode(exited.status or 0) == 1
    assert [(line.stream, line.text, line.nonl) for line in lines if line.stream == "out"] == [
        ("out", "first", False),
        ("out", "no newline", True),
    ]
    assert [line.text for line in lines if line.stream == "err"] == ["other"]


@pytest.mark.parametrize("pause", ["0.0005", "0"])
async def test_a_killed_keeper_loses_no_line_and_doubles_none(tmp_path: Path, pause: str) -> None:
    async with keeper_box(tmp_path, files=40, max_bytes=1 << 20) as box:
        x = await running(box, python("x", COUNT.format(pause=pause)))
        for _ in range(8):
            await trio.sleep(random.uniform(0.0, 0.1))
            await box.kill()
            await box.start()
        os.kill(x.pid, signal.SIGTERM)
        with trio.fail_after(PATIENCE_S):
            _, status = await trio.to_thread.run_sync(os.waitpid, x.pid, 0)
        box.link.note_status(x.pid, status)
        assert (await box.ended("x")).status == signal.SIGTERM
    numbers = [int(text) for text in texts(tmp_path, "x")]
    assert len(numbers) > 20
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_output_between_two_keepers_survives_the_end_of_its_program(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        x = await running(box, python("x", "import time; print('one', flush=True); time.sleep(0.5); print('last')"))
        await box.until("the first line", lambda: texts(tmp_path, "x") == ["one"])
        await box.kill()
        with trio.fail_after(PATIENCE_S):
            await trio.to_thread.run_sync(os.waitpid, x.pid, 0)
        await box.start()
        await box.until("the last line", lambda: texts(tmp_path, "x") == ["one", "last"])


async def test_a_next_keeper_finds_the_pipes_in_the_process_itself(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        x = await running(box, python("x", COUNT.format(pause="0.002")))
        await box.until(
            "a record", lambda: (tmp_path / "keeper.json").exists() and "x" in (tmp_path / "keeper.json").read_text()
        )
        held_pipes(tmp_path).release_all()  # as if the launcher had died with it
        await box.kill()
        await trio.sleep(0.05)
        await box.start()
        seen = len(texts(tmp_path, "x"))
        await box.until("it goes on", lambda: len(texts(tmp_path, "x")) > seen + 20)
        os.kill(x.pid, signal.SIGKILL)
        collect(x.pid)
        assert (await box.ended("x")).status is None
    numbers = [int(text) for text in texts(tmp_path, "x")]
    assert numbers == list(range(len(numbers)))


async def test_odd_bytes_can_be_told_back_and_a_paused_character_is_whole(tmp_path: Path) -> None:
    code = """
import os, time
os.write(1, bytes([0, 0x88, 0xFF]) + b"\\x1b[31m\\n")
raw = "😀".encode()
os.write(1, b"a" + raw[:2]); time.sleep(1.3); os.write(1, raw[2:] + b"b\\n")
"""
    async with keeper_box(tmp_path) as box:
        await running(box, python("x", code))
        await box.ended("x")
    assert b"\x1b" not in (tmp_path / "logs" / "x.log").read_bytes()
    first, second = join_all(stored(tmp_path, "x"))
    assert (first.text, first.esc) == ("\\x00\\x88\\xff\\x1b[31m", True)
    assert (second.text, second.esc) == ("a😀b", False)


async def test_a_line_of_twenty_megabytes_is_kept_in_parts_and_memory_stays(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(320): os.write(1, b'a' * 65536)\nos.write(1, b'end\\n')\n"
    async with keeper_box(tmp_path, files=9) as box:
        before = resident_bytes(box.link.pid)
        await running(box, python("x", code))
        await box.ended("x")
        grown = resident_bytes(box.link.pid) - before
    lines = stored(tmp_path, "x")
    assert [line.cont for line in lines] == [True] * (len(lines) - 1) + [False]
    assert b"".join(line.data for line in lines) == b"a" * 320 * 65536 + b"end"
    assert grown < 20 << 20


def resident_bytes(pid: int) -> int:
    """Ask how much memory a process really has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_at_every_look_the_files_stay_in_their_bound(tmp_path: Path) -> None:
    code = """
import os
for n in range(0, 600000, 1000):
    os.write(1, b"".join(b"%07d\\n" % i for i in range(n, n + 1000)))
"""
    most = 0
    async with keeper_box(tmp_path, files=3, max_bytes=1 << 20) as box, trio.open_nursery() as nursery:

        async def look() -> None:
            nonlocal most
            while True:
                sizes = []
                for name in os.listdir(tmp_path / "logs"):
                    with contextlib.suppress(FileNotFoundError):  # it was rotated away between two looks
                        sizes += [os.stat(tmp_path / "logs" / name).st_size] if name.startswith("x.") else []
                most = max(most, sum(sizes))
                await trio.sleep(0.005)

        await running(box, python("x", code))
        await box.until("the log", (tmp_path / "logs" / "x.log").exists)
        nursery.start_soon(look)
        await box.ended("x")
        nursery.cancel_scope.cancel()
    numbers = [int(text) for text in texts(tmp_path, "x")]
    assert most <= (3 << 20) + 65536
    assert numbers == list(range(numbers[0], 600_000))
    assert len(numbers) * 48 > 2 << 20


async def test_a_removed_folder_is_made_again_and_said_once(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        x = await running(box, python("x", COUNT.format(pause="0.01")))
        await box.until("the log", (tmp_path / "logs" / "x.log").exists)
        for path in (tmp_path / "logs").iterdir():
            path.unlink()
        (tmp_path / "logs").rmdir()
        await box.until("it comes back", lambda: len(texts(tmp_path, "x")) > 20)
        assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
        assert len([text for text in box.said if text.startswith("log x")]) == 1
        os.kill(x.pid, signal.SIGKILL)
        await box.ended("x")
    numbers = [int(text) for text in texts(tmp_path, "x")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_moved_folder_is_noticed(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await running(box, python("x", COUNT.format(pause="0.01")))
        await box.until("the log", (tmp_path / "logs" / "x.log").exists)
        (tmp_path / "logs").rename(tmp_path / "old")
        await box.until("a new log", lambda: len(texts(tmp_path, "x")) > 5)


async def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        print("still here", flush=True); time.sleep(0.01)
print("parent", flush=True)
"""
    async with keeper_box(tmp_path) as box:
        await running(box, python("x", code, env={"PATH": os.environ["PATH"], "KITE_INSTANCE": "grandchild"}))
        assert (await box.ended("x")).status == 0
        seen = len(texts(tmp_path, "x"))
        await box.until("it prints on", lambda: len(texts(tmp_path, "x")) > seen)
        for pid in marked("grandchild"):
            os.kill(pid, signal.SIGKILL)


async def test_one_that_prints_without_a_pause_lets_the_others_be_heard(tmp_path: Path) -> None:
    async with keeper_box(tmp_path, max_bytes=1 << 20, files=2) as box:
        await running(box, order("noisy", "sh", "-c", "exec yes"))
        await box.until("noise", (tmp_path / "logs" / "noisy.log.1").exists)
        with trio.fail_after(PATIENCE_S):
            for number in range(20):
                started = trio.current_time()
                await running(box, order("quiet", "echo", str(number)))
                await box.ended("quiet")
                assert trio.current_time() - started < 5
        assert texts(tmp_path, "quiet") == [str(number) for number in range(20)]


async def test_a_log_of_the_launchers_own_lives_over_keepers(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        fd = await box.link.open_log("launcher")
        os.write(fd, b"one\n")
        await box.until("one", lambda: texts(tmp_path, "launcher") == ["one"])
        await box.kill()
        os.write(fd, b"two\n")
        await box.start()
        await box.until("two", lambda: texts(tmp_path, "launcher") == ["one", "two"])
        os.close(fd)


def test_a_half_done_promise_is_told_apart_from_a_kept_one(tmp_path: Path) -> None:
    data = bytes(range(256)) * 3
    for taken in (False, True):
        journal = Journal(tmp_path / "journal")
        journal.promise(data, log_name="x", log_inode=7, size_before=99)
        if taken:
            read, write = os.pipe()
            os.write(write, data)
            os.readv(read, journal.landing(len(data)))
            os.close(read)
            os.close(write)
        journal.close()
        left = Journal(tmp_path / "journal").unfinished()
        assert left is not None
        assert (left.taken, left.log_name, left.log_inode, left.size_before) == (taken, "x", 7, 99)


async def test_what_a_dead_keeper_wrote_but_did_not_take_is_not_doubled(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        await running(box, order("x", "echo", "kept"))
        await box.ended("x")
    log = tmp_path / "logs" / "x.log"
    whole = log.read_bytes()
    journal = Journal(tmp_path / "keeper.journal")
    journal.promise(b"twin\n", log_name="x", log_inode=log.stat().st_ino, size_before=len(whole))
    journal.close()
    with log.open("ab") as file:
        file.write(b"2026-11-30T09:12:13.123456Z out 1 - tw")
    async with keeper_box(tmp_path):
        assert log.read_bytes() == whole


async def test_a_line_is_waited_for_from_any_moment_and_over_keepers(tmp_path: Path) -> None:
    code = "import time\nprint('liste', end='', flush=True)\ntime.sleep(0.3)\nprint('ning on 7', flush=True)\n" + (
        "for n in range(60): print('more', n, flush=True)\ntime.sleep(60)\nprint('late', flush=True)\n"
    )
    async with keeper_box(tmp_path) as box:
        x = await running(box, python("x", code, ready_log="listening on"))
        with trio.fail_after(PATIENCE_S):
            assert await box.link.wait_log("x", x.run, "listening on") == "listening on 7"
            await box.link.wait_log("x", x.run, "more 59")
            assert await box.link.wait_log("x", x.run, "^lis.*7$") == "listening on 7"
            await box.kill()
            await box.start()
            assert await box.link.wait_log("x", x.run, "listening") == "listening on 7"
            assert await box.link.tail("x", 2) == ["more 58", "more 59"]
            with pytest.raises(ValueError, match="unterminated"):
                await box.link.wait_log("x", x.run, "(")
            with pytest.raises(KeyError):
                await box.link.wait_log("x", x.run + 1, "late")
        with trio.move_on_after(0.05) as waiting:
            await box.link.wait_log("x", x.run, "late")
        assert waiting.cancelled_caught


async def test_a_keeper_that_hangs_is_replaced_and_nobody_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_link, "PING_S", 0.2)
    async with keeper_box(tmp_path) as box:
        x = await running(box, python("x", COUNT.format(pause="0.002")))
        await box.until("it prints", lambda: len(texts(tmp_path, "x")) > 3)
        hanging = box.link
        os.kill(hanging.pid, signal.SIGSTOP)
        with trio.fail_after(PATIENCE_S):
            await hanging.gone.wait()
        collect(hanging.pid)
        await box.start()
        seen = len(texts(tmp_path, "x"))
        await box.until("it goes on", lambda: len(texts(tmp_path, "x")) > seen + 20)
        os.kill(x.pid, signal.SIGKILL)
        collect(x.pid)
        await box.ended("x")
    numbers = [int(text) for text in texts(tmp_path, "x")]
    assert numbers == list(range(len(numbers)))
    assert any("does not answer" in text for text in box.said)


async def test_an_end_between_two_keepers_is_told_with_its_status_behind_its_last_line(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        x = await running(box, python("x", "import sys, time; time.sleep(0.3); print('last'); sys.exit(7)"))
        await box.kill()
        with trio.fail_after(PATIENCE_S):
            _, status = await trio.to_thread.run_sync(os.waitpid, x.pid, 0)
        box.link.note_status(x.pid, status)
        await box.start()
        assert (await box.ended("x")).status == 7 << 8
        assert texts(tmp_path, "x") == ["last"]
        await box.kill()
        await box.start()
        with trio.move_on_after(0.3) as waiting:
            await box.link.exits.receive()
        assert waiting.cancelled_caught, "one end was told twice"


async def test_an_instance_stops_in_time_though_its_keeper_hangs(tmp_path: Path) -> None:
    async with keeper_box(tmp_path) as box:
        os.kill(box.link.pid, signal.SIGSTOP)
        started = trio.current_time()
        await box.link.close()
        assert trio.current_time() - started < 4
        assert not (Path("/proc") / str(box.link.pid)).exists()
