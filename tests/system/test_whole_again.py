"""The instance is whole again after a `kill -9` of any of its processes, and `down` leaves not one.

Source: issue of the launcher, "shown by"; cases S-66, S-68, S-69; spec 60 §2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lab import Lab, alive, kill, module


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder: Path = tmp_path_factory.mktemp("whole")
    with Lab(folder, module("x") + module("y", after='["x"]'), scale=0.1) as lab:
        lab.up()
        yield lab


def _pids(lab: Lab, *names: str) -> dict[str, int]:
    return {name: lab.pid(name) for name in names}


def test_killed_module_comes_back_and_nobody_else_moves(lab: Lab) -> None:
    lab.until_well()
    before = _pids(lab, "x", "y", "kernel", "watchdog")
    kill(before["x"])
    lab.until(lambda: lab.pid("x") not in (0, before["x"]) and lab.row("x")["ready"], "a new x")
    after = _pids(lab, "y", "kernel", "watchdog")
    assert after == {name: before[name] for name in after}
    assert lab.row("x")["restarts"] >= 1


def test_killed_watchdog_comes_back_and_nobody_else_moves(lab: Lab) -> None:
    lab.until_well()
    before = _pids(lab, "x", "y", "kernel", "watchdog")
    kill(before["watchdog"])
    lab.until(lambda: lab.pid("watchdog") not in (0, before["watchdog"]), "a new watchdog")
    lab.until_well()
    after = _pids(lab, "x", "y", "kernel")
    assert after == {name: before[name] for name in after}


def test_killed_kernel_comes_back_at_the_same_address(lab: Lab) -> None:
    status = lab.until_well()
    before = _pids(lab, "x", "y", "watchdog", "kernel")
    kill(before["kernel"])
    lab.until(lambda: lab.pid("kernel") not in (0, before["kernel"]), "a new kernel")
    again = lab.until_well()
    assert again["url"] == status["url"]
    after = _pids(lab, "x", "y", "watchdog")
    assert after == {name: before[name] for name in after}


def test_killed_keeper_comes_back_and_nobody_notices(lab: Lab) -> None:
    lab.until_well()
    before = _pids(lab, "x", "y", "kernel", "watchdog")
    keeper = lab.keeper_pid()
    kill(keeper)
    lab.until(lambda: lab.keeper_pid() not in (0, keeper) and alive(lab.keeper_pid()), "a new keeper")
    lab.until_well()
    assert _pids(lab, *before) == before


def test_killed_launcher_is_followed_by_a_fresh_instance(lab: Lab) -> None:
    status = lab.until_well()
    old = set(lab.marked())
    launcher = status["launcher"]["pid"]
    kill(launcher)
    lab.until(lambda: lab.launcher_pid() not in (0, launcher), "the watchdog starts a new launcher")
    lab.until_well()
    lab.until(lambda: not old.intersection(lab.marked()), "everything of the old instance is gone")
    restarts = (lab.state / "restarts.json").read_text("utf-8")
    assert restarts.count('"cause"') == 1


def test_down_leaves_not_one_process(lab: Lab) -> None:
    lab.until_well()
    lab.ok("down")
    lab.assert_nothing_left()
    assert lab.run("status").returncode == 3
    lab.up()
    lab.ok("down")
    lab.assert_nothing_left()
