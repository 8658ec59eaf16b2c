"""A normal exit never starts an instance, in random phases, with whatever may go wrong on its way.

The whole watchdog on the virtual clock, a kernel played by hand, a record that would start something at once.
Source: spec 60-watchdog §2, §3 (C); seeds timeline C.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import structlog
import trio
from tests.support.lab import boot_id
from tests.support.scripted_kernel import ScriptedKernel
from trio.testing import MockClock

from kite_watchdog.core.options import Options
from kite_watchdog.main import Settings, Watchdog

ROUNDS = 60  # each in another random phase; the seeds go on from where they end, 500 held when this was written


def _record(folder: Path) -> None:
    """A record of a launcher that is dead, and a command that would leave a trace."""
    trace = f"open({str(folder / 'started')!r}, 'w')"
    document = {
        "schema": 1,
        "argv": [sys.executable, "-c", trace],
        "cwd": str(folder),
        "env_names": [],
        "launcher": {"pid": 2**22, "start_ticks": 1, "boot_id": boot_id()},
    }
    file = folder / "launch.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(document), "utf-8")


async def _until_open(watchdog: Watchdog) -> None:
    with trio.fail_after(30):
        while not watchdog.link.is_open:
            await trio.sleep(0.05)


async def _exit_normally(kernel: ScriptedKernel, watchdog: Watchdog, chance: random.Random) -> None:
    """One way of many in which a launcher that said goodbye leaves."""
    await _until_open(watchdog)
    await trio.sleep(chance.random() * 20)
    if chance.random() < 0.3:  # it had been away before, and came back
        await kernel.tell("module.offline", {"module_id": "launcher", "reason": "lost"})
        await trio.sleep(chance.random())
        await kernel.tell("module.ready", {"module_id": "launcher"})
    await kernel.tell("module.exiting", {"module_id": "launcher", "reason": "asked"}, source="launcher")
    if chance.random() < 0.3:  # the watchdog's own wire is cut at the worst moment
        await trio.sleep(chance.random())
        kernel.resume = chance.random() < 0.5
        kernel.cut()
        await trio.sleep(0.1)
        await _until_open(watchdog)
    way = chance.choice(("launcher_lost", "instance_stop", "gone"))
    await trio.sleep(chance.random() * 6)
    if chance.random() < 0.5:
        await kernel.tell("module.offline", {"module_id": "launcher", "reason": "left"})
    await trio.sleep(chance.random() * 35)
    if way == "gone":  # kernel and launcher are simply no more
        kernel.refuse_connects = True
        kernel.cut()
    else:
        await kernel.tell("module.shutdown", {"reason": way, "deadline_s": 10})


async def test_a_normal_exit_never_starts_an_instance(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    _record(tmp_path)
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        async with trio.open_nursery() as each:
            kernel = ScriptedKernel(each)
            settings = Settings(tmp_path, "ws://127.0.0.1:1/ws", "t0ken", "mark", Options())
            watchdog = Watchdog(settings, log, open_stream=kernel.open_stream, rng=chance.random)
            each.start_soon(_exit_normally, kernel, watchdog, chance)
            with trio.fail_after(300):
                assert await watchdog.run() == 0, seed
            each.cancel_scope.cancel()
    left = [path.name for path in sorted(tmp_path.iterdir())]  # noqa: ASYNC240 - a folder of the test's own
    assert left == ["launch.json"], "nothing was started, nothing is on record"
