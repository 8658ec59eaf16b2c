"""A launcher is lost: by SIGKILL, by its own will, together with the watchdog, again and again. Real processes.

Times are the users' own at a tenth (`[timing] scale = 0.1`), measured beside what is promised; bounds have slack for
a busy machine, the order of things has none. Source: spec 60-watchdog §2-3, seeds timeline B and C; cases S-66, S-67,
S-71 to S-74.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.ears import Ears
from tests.support.lab import BOUND_S, Lab, alive, kill, module
from tests.support.side_by_side import Rows, scenario, side_by_side

SCALE = 0.1
SLACK_S = 1.5  # seconds that a busy machine may be late; the rules themselves are met to the millisecond in core tests
QUICK = '[timing]\nscale = 0.1\nlauncher_grace = "12s"\n'  # for rows that show what follows, not when

KITE = module("k", ready=None, command=f'["{sys.executable}", "-P", "k.py"]')
KITE_MODULE = """\
from kite_modules.sdk import Module
module = Module("k")
module.run()
"""


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    yield from side_by_side(request, tmp_path_factory, workers=3)


def _restarts(lab: Lab) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads((lab.state / "restarts.json").read_bytes())["starts"]
    except FileNotFoundError:
        return []
    return rows


class Deaths:
    """Watches processes and notes when each is gone."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.at: dict[str, float] = {}
        self._pids = pids
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        deadline = time.monotonic() + 30
        while len(self.at) < len(self._pids) and time.monotonic() < deadline:
            for name, pid in self._pids.items():
                if name not in self.at and not alive(pid):
                    self.at[name] = time.monotonic()
            time.sleep(0.002)

    def wait(self) -> dict[str, float]:
        self._thread.join(30)
        assert set(self.at) == set(self._pids), (self.at, self._pids)
        return self.at


def _report(title: str, rows: list[tuple[str, float, float]]) -> None:
    print(f"\n{title}")  # noqa: T201 - the measured times beside the promised ones
    for what, promised, measured in rows:
        print(f"  {what:<44} promised {promised:6.2f} s   measured {measured:6.2f} s")  # noqa: T201


def _lab(folder: Path, *, timing: str = "", extra: str = "") -> Lab:
    toml = timing + module("x") + module("y", after='["x"]') + extra
    return Lab(folder, toml, scale=SCALE, files={"k.py": KITE_MODULE})


def test_timeline_b_a_killed_launcher_is_followed_by_a_fresh_instance(tmp_path: Path) -> None:
    """S-66."""
    with _lab(tmp_path, extra=KITE) as lab:
        lab.up()
        old = lab.until_well()
        pids = {name: lab.pid(name) for name in ("watchdog", "x", "y", "k", "kernel")}
        with Ears(lab.state) as ears:
            deaths = Deaths(pids)
            begin = time.monotonic()
            kill(old["launcher"]["pid"])
            offline, _ = ears.wait("module.offline", module_id="launcher")
            shutdown, said = ears.wait("module.shutdown")
            assert said["reason"] == "launcher_lost"
            restart, said = ears.wait("watchdog.restart")
            assert (said["what"], said["number"]) == ("instance", 1)
        ends = deaths.wait()
        lab.until(lambda: lab.launcher_pid() not in (0, old["launcher"]["pid"]), "a new launcher")
        new = lab.until_well()
        ready = time.monotonic()
        rows = [
            ("module.offline {launcher}", 5 * SCALE, offline - begin),
            ("module.shutdown {launcher_lost}", 35 * SCALE, shutdown - begin),
            ("the watchdog starts a fresh instance", 35 * SCALE, restart - begin),
            ("clean-up: the watchdog is gone", 37 * SCALE, ends["watchdog"] - begin),
            ("clean-up: the plain modules are gone", 37 * SCALE, ends["y"] - begin),
            ("all ready again", 40 * SCALE, ready - begin),
        ]
        _report("timeline B, at a tenth", rows)
        assert 5 * SCALE <= offline - begin < 5 * SCALE + SLACK_S
        assert 35 * SCALE - 0.05 <= shutdown - begin < 35 * SCALE + SLACK_S
        assert shutdown <= restart < shutdown + SLACK_S
        assert ready - begin < 8 + 3 * SLACK_S
        assert ends["watchdog"] < min(ends["x"], ends["y"]), "the watchdog goes first"
        assert not {lab.pid(name) for name in pids} & set(pids.values())
        (entry,) = _restarts(lab)
        assert entry["cause"]
        assert entry["at"] <= new["launcher"]["since"], "recorded before the start"
        lab.ok("down")
        lab.assert_nothing_left()


def _leave(lab: Lab, way: str) -> None:
    """Let one instance in front end in one normal way, and see that `module.exiting` came before the wire closed."""
    front = lab.front()
    lab.until_well()
    with Ears(lab.state) as ears:
        if way == "down":
            lab.ok("down")
        else:
            front.send_signal(signal.SIGTERM if way == "TERM" else signal.SIGINT)
        exiting, _ = ears.wait("module.exiting", module_id="launcher")
        assert front.wait(BOUND_S) == 0
        ended = ears.ended
    assert ended is None or ended[0] >= exiting
    lab.until_nothing_left(5)


@scenario
def test_timeline_c_a_normal_exit_starts_nothing(tmp_path: Path) -> None:
    """S-67, three ways side by side: nothing left, nothing on record, and nothing comes back."""
    ways = ("TERM", "down", "INT")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(ways)) as threads:
        labs = [stack.enter_context(_lab(tmp_path / way, timing=QUICK)) for way in ways]
        for done in [threads.submit(_leave, lab, way) for lab, way in zip(labs, ways, strict=True)]:
            done.result()
        time.sleep(2.0)  # longer than the grace: whoever would start an instance has done it by now
        for lab in labs:
            lab.assert_nothing_left()
            assert _restarts(lab) == []
            assert lab.launcher_pid() == 0


@scenario
def test_launcher_and_watchdog_killed_together_leave_nothing_that_starts_anything(tmp_path: Path) -> None:
    """S-71."""
    with _lab(tmp_path, timing=QUICK, extra=KITE) as lab:
        lab.up()
        old = lab.until_well()
        k, kernel, watchdog = lab.pid("k"), lab.pid("kernel"), lab.pid("watchdog")
        begin = time.monotonic()
        os.kill(old["launcher"]["pid"], signal.SIGKILL)
        os.kill(watchdog, signal.SIGKILL)
        lab.until(lambda: not alive(kernel) and not alive(k), "kernel and Kite modules go by the 35 s rule")
        assert time.monotonic() - begin >= 12 * SCALE - 0.05
        assert lab.launcher_pid() == 0
        assert _restarts(lab) == []
        lab.up()
        lab.until_well()
        lab.ok("down")
        lab.assert_nothing_left()


@scenario
def test_a_stopped_launcher_is_silent_and_not_lost(tmp_path: Path) -> None:
    """S-72."""
    with _lab(tmp_path, timing=QUICK) as lab:
        lab.up()
        old = lab.until_well()
        pids = {name: lab.pid(name) for name in ("watchdog", "x", "y", "kernel")}
        launcher = old["launcher"]["pid"]
        with Ears(lab.state) as ears:
            os.kill(launcher, signal.SIGSTOP)
            try:
                time.sleep(2.5)  # twice the grace
                names = ears.names()
                assert "module.offline" not in names
                assert "module.shutdown" not in names
                stopped = lab.run("status")
                assert stopped.returncode == 1
                assert "silent" in stopped.stdout + stopped.stderr
            finally:
                os.kill(launcher, signal.SIGCONT)
            lab.until_well()
        assert {name: lab.pid(name) for name in pids} == pids
        assert _restarts(lab) == []


@scenario
def test_a_spent_budget_ends_in_gave_up_and_up_by_hand_works(tmp_path: Path) -> None:
    """S-73."""
    with _lab(tmp_path, timing=QUICK, extra="[watchdog]\nrestarts = 1\n") as lab:
        lab.up()
        launcher = lab.until_well()["launcher"]["pid"]
        kill(launcher)
        lab.until(lambda: lab.launcher_pid() not in (0, launcher), "a new launcher")
        lab.until_well()
        assert len(_restarts(lab)) == 1
        last = lab.until_well()
        kernel, watchdog = lab.pid("kernel"), lab.pid("watchdog")
        with Ears(lab.state) as ears:
            kill(last["launcher"]["pid"])
            _, said = ears.wait("watchdog.gave_up")
        assert said["what"] == "instance"
        assert "1 starts of 1" in said["why"]
        lab.until(lambda: not alive(kernel) and not alive(watchdog), "kernel and watchdog leave")
        assert len(_restarts(lab)) == 1
        assert lab.launcher_pid() == 0
        lab.up()
        lab.until_well()
        lab.ok("down")
        lab.assert_nothing_left()


@scenario
def test_up_by_hand_in_the_moment_of_the_watchdogs_start_gives_one_instance(tmp_path: Path) -> None:
    """S-74: by hand at the very moment of the watchdog's start."""
    with _lab(tmp_path, timing=QUICK) as lab:
        lab.up()
        for offset_s in (0.0,):
            old = lab.until_well()["launcher"]["pid"]
            kill(old)
            time.sleep(12 * SCALE + offset_s)
            by_hand = lab.run("up", "-d", "--wait", "30", timeout_s=60)
            assert by_hand.returncode in (0, 75), by_hand.stderr
            lab.until(lambda gone=old: lab.launcher_pid() not in (0, gone), "one launcher")  # type: ignore[misc]
            lab.until_well()
            names = list(lab.marked().values())
            assert len(names) == len(set(names)), names
        lab.ok("down")
        lab.assert_nothing_left()
