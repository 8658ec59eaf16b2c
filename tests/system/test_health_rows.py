"""A module's health decides, with real processes: S-75, and a module that hangs or hides while its process lives.

Times at a tenth: asked every 1.5 s while healthy, 0.5 s after a failure, 0.2 s while failing; an answer due in 0.5 s.
Source: spec 60-watchdog §1; cases S-75.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.ears import Ears
from tests.support.lab import Lab, alive, module

# Answers as a file says, and notes when it was asked.
PLAYED = """\
import json, time
from pathlib import Path
from kite_modules.sdk import Module
module = Module("h")
here = Path(__file__).parent

@module.health
async def health():
    with open(here / "asked", "a") as file:
        file.write(f"{time.time()}\\n")
    said = (here / "say").read_text().strip()
    if said == "error":
        raise RuntimeError("the database is away")
    if said == "hang":
        time.sleep(600)
    return json.loads(said)

module.run()
"""


class Played:
    """The instance, and what its module `h` says about itself."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.folder = lab, lab.folder

    def say(self, what: str) -> None:
        (self.folder / "say.new").write_text(what, "utf-8")
        (self.folder / "say.new").rename(self.folder / "say")

    def asked(self) -> list[float]:
        return [float(line) for line in (self.folder / "asked").read_text("utf-8").split()]

    def next_asked(self, count: int = 1) -> list[float]:
        """Wait for so many further health calls and give their times."""
        before = len(self.asked())
        self.lab.until(lambda: len(self.asked()) >= before + count, f"{count} health calls")
        return self.asked()[before - 1 :]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder: Path = tmp_path_factory.mktemp("health")
    command = f'["{sys.executable}", "-P", "h.py"]'
    toml = module("h", ready=None, command=command) + module("x")
    with Lab(folder, toml, files={"h.py": PLAYED}, scale=0.1) as lab:
        played = Played(lab)
        played.say('{"status":"ok"}')
        lab.up()
        lab.until_well()
        lab.until(lambda: (folder / "asked").exists(), "the first health call")
        yield played


def _gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(times)]


def test_degraded_is_shown_with_its_reason_and_not_restarted(played: Played) -> None:
    lab = played.lab
    pid = lab.pid("h")
    played.say('{"status":"degraded","why":"the disk is slow"}')
    lab.until(lambda: "the disk is slow" in str(lab.row("h")["why"]), "shown with its reason")
    assert lab.run("status").returncode == 1
    gaps = _gaps(played.next_asked(2))
    assert all(1.4 <= gap < 3.0 for gap in gaps), gaps
    played.say('{"status":"ok"}')
    lab.until_well()
    assert lab.pid("h") == pid


def test_two_errors_and_a_good_answer_restart_nothing(played: Played) -> None:
    lab = played.lab
    pid = lab.pid("h")
    with Ears(lab.state) as ears:
        played.say("error")
        times = played.next_asked(2)
        played.say('{"status":"ok"}')
        played.next_asked(3)
        lab.until_well()
        assert "watchdog.restart" not in ears.names()
    assert 0.45 <= _gaps(times)[1] < 1.4, _gaps(times)  # 0.5 s after the first failure, not 1.5 s
    assert lab.pid("h") == pid


def test_three_errors_are_one_restart_with_the_reason(played: Played) -> None:
    lab = played.lab
    pid, other = lab.pid("h"), lab.pid("x")
    with Ears(lab.state) as ears:
        played.say("error")
        _, restart = ears.wait("watchdog.restart", module_id="h")
        played.say('{"status":"ok"}')
        ears.wait("watchdog.module", module_id="h", verdict="healthy")
        assert ears.names().count("watchdog.restart") == 1
    assert "the database is away" in restart["reason"] or "error" in restart["reason"]
    times = played.asked()
    lab.until_well()
    assert lab.pid("h") not in (0, pid)
    assert lab.pid("x") == other
    assert any("watchdog" in str(row.get("cause")) for row in lab.why("h")["timeline"])
    assert min(_gaps(times)[-4:]) < 0.45, "every 0.2 s while failing and after the restart"


def test_a_hung_module_has_its_stacks_kept_and_is_restarted(played: Played) -> None:
    lab = played.lab
    pid = lab.pid("h")
    with Ears(lab.state) as ears:
        played.say("hang")
        _, verdict = ears.wait("watchdog.module", module_id="h", verdict="hung")
        _, restart = ears.wait("watchdog.restart", module_id="h")
        played.say('{"status":"ok"}')
    assert verdict["failures"] == 3
    assert restart["reason"].startswith("hung")
    lab.until_well()
    assert lab.pid("h") not in (0, pid)
    kept = list((lab.state / "modules" / "h").glob("stacks-*.txt"))
    assert kept
    assert any("in health" in file.read_text("utf-8") for file in kept), "where it hung can be read"


def test_a_stopped_module_is_told_and_replaced(played: Played) -> None:
    lab = played.lab
    pid = lab.pid("h")
    with Ears(lab.state) as ears:
        os.kill(pid, signal.SIGSTOP)
        ears.wait("watchdog.restart", module_id="h")
    lab.until(lambda: not alive(pid), "the stopped process is gone")
    lab.until_well()
    assert lab.pid("h") not in (0, pid)


def test_a_watchdog_that_was_stopped_restarts_nothing_when_it_wakes(played: Played) -> None:
    lab = played.lab
    lab.until_well()
    before = {name: lab.pid(name) for name in ("h", "x", "kernel")}
    watchdog = lab.pid("watchdog")
    with Ears(lab.state) as ears:
        for _ in range(2):
            os.kill(watchdog, signal.SIGSTOP)
            time.sleep(0.8)  # longer than an answer may take
            os.kill(watchdog, signal.SIGCONT)
            played.next_asked()
        assert "watchdog.restart" not in ears.names()
    assert {name: lab.pid(name) for name in before} == before


def test_a_kernel_that_was_stopped_costs_no_module_its_life(played: Played) -> None:
    lab = played.lab
    lab.until_well()
    before = {name: lab.pid(name) for name in ("h", "x")}
    with Ears(lab.state) as ears:
        for _ in range(2):
            played.next_asked()
            os.kill(lab.pid("kernel"), signal.SIGSTOP)
            time.sleep(0.7)  # longer than an answer may take, shorter than the launcher's patience
            os.kill(lab.pid("kernel"), signal.SIGCONT)
        assert "watchdog.restart" not in ears.names()
    lab.until_well()
    assert {name: lab.pid(name) for name in before} == before


def test_a_hung_watchdog_is_replaced_by_the_launcher(played: Played) -> None:
    lab = played.lab
    lab.until_well()
    before = {name: lab.pid(name) for name in ("h", "x", "kernel")}
    watchdog = lab.pid("watchdog")
    with Ears(lab.state) as ears:
        os.kill(watchdog, signal.SIGSTOP)
        _, alarm = ears.wait("launcher.alarm", name="watchdog")
    assert alarm["kind"] == "hang"
    lab.until(lambda: not alive(watchdog), "the stopped watchdog is gone")
    lab.until(lambda: lab.pid("watchdog") not in (0, watchdog), "a new watchdog")
    lab.until_well()
    assert {name: lab.pid(name) for name in before} == before
