"""Reload is a plan: only what changed is touched, a bad file changes nothing, what a person stopped stays stopped.

Source: cases S-61 … S-65; spec 05 §3.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab import Lab, kill, module

SHOW = "import os, time\nprint('LEVEL', os.environ.get('LEVEL'), flush=True)\nwhile True:\n    time.sleep(60)\n"
SLOW = (
    "import os, signal, sys, time\nprint('LEVEL', os.environ.get('LEVEL'), flush=True)\n"
    "def end(*_):\n    time.sleep(1); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\nwhile True:\n    time.sleep(60)\n"
)


def _x(level: str) -> str:
    return module("x", "show.py", env=f'{{ LEVEL = "{level}" }}')


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    toml = _x("a") + module("y") + module("z") + module("r", replicas=2)
    with Lab(tmp_path_factory.mktemp("reload"), toml, files={"show.py": SHOW}) as lab:
        lab.up()
        yield lab


def _pids(lab: Lab) -> dict[str, int]:
    status = lab.status()
    rows = {row["name"]: row["pid"] for row in status["modules"]}
    return {**rows, "kernel": status["kernel"]["pid"], "watchdog": status["watchdog"]["pid"]}


def _plan(lab: Lab) -> dict[str, tuple[str, list[str]]]:
    answer: dict[str, Any] = json.loads(lab.ok("reload", "--dry-run", "--json"))
    assert answer["schema"] == 1
    return {row["name"]: (row["action"], row["keys"]) for row in answer["changes"]}


def test_order_comments_and_spelling_are_no_change(lab: Lab) -> None:
    before = _pids(lab)
    other = (
        "# a comment\n"
        + module("z")
        + module("r", replicas=2)
        + _x("a").replace('"1s"', '"1000ms"')
        + module("y")
        + "\n"
    )
    lab.write(other)
    assert {action for action, _ in _plan(lab).values()} == {"keep"}
    lab.ok("reload")
    assert _pids(lab) == before


def test_exactly_what_changed_is_touched_once(lab: Lab) -> None:
    before = _pids(lab)
    lab.write(_x("b") + module("z") + module("w") + module("r", replicas=3))
    plan = _plan(lab)
    assert plan["x"] == ("restart", ["env.LEVEL"])
    assert (plan["w"][0], plan["y"][0], plan["z"][0]) == ("start", "stop", "keep")
    assert (plan["r@3"][0], plan["r@1"][0], plan["r@2"][0]) == ("start", "keep", "keep")
    assert _pids(lab) == before
    lab.ok("reload")
    after = _pids(lab)
    assert "y" not in after
    assert after["x"] != before["x"]
    assert after["w"]
    assert after["r@3"]
    for name in ("z", "kernel", "watchdog", "r@1", "r@2"):
        assert after[name] == before[name], name
    lab.until(lambda: lab.log("x").count("LEVEL b") == 1, "x has the new value")
    assert "y" not in lab.marked().values()
    lab.until_well()


def test_bad_file_changes_nothing_and_the_old_command_comes_back(lab: Lab) -> None:
    before = _pids(lab)
    good = lab.config.read_text("utf-8")
    lab.config.write_text(good + "\n[module.x2]\ncommand = [\n", "utf-8")
    done = lab.run("reload")
    assert done.returncode == 78
    assert "kite.toml:" in done.stderr
    assert _pids(lab) == before
    kill(before["x"])
    lab.until(lambda: lab.pid("x") not in (0, before["x"]), "x again")
    lab.until(lambda: lab.log("x").count("LEVEL b") == 2, "with its old values")
    done = lab.run("restart", "x")
    assert done.returncode == 0
    assert "has changed" in done.stderr
    lab.config.write_text(good, "utf-8")


def test_stopped_by_hand_stays_stopped_over_reload_and_crash(lab: Lab) -> None:
    lab.ok("stop", "x")
    before = _pids(lab)
    lab.write(_x("c") + module("z", env='{ LEVEL = "n" }') + module("w") + module("r", replicas=3))
    lab.ok("reload")
    after = _pids(lab)
    assert after["z"] != before["z"]
    assert lab.row("x")["state"] == "stopped"
    assert lab.run("status").returncode == 0
    kill(lab.launcher_pid())
    lab.up()
    assert lab.row("x")["state"] == "stopped"
    lab.ok("start", "x")
    assert lab.row("x")["ready"]
    lab.until(lambda: "LEVEL c" in lab.log("x"), "the new values")


def test_reload_by_hang_up(lab: Lab) -> None:
    lab.until_well()
    before = _pids(lab)
    lab.write(_x("c") + module("z", env='{ LEVEL = "n" }') + module("r", replicas=3))
    kill(lab.launcher_pid(), 1)
    lab.until(lambda: "w" not in _pids(lab), "w is gone")
    after = _pids(lab)
    assert after == {name: pid for name, pid in before.items() if name != "w"}


def test_new_kernel_address_is_taken_or_refused_as_a_whole(lab: Lab) -> None:
    lab.until_well()
    old = lab.status()["url"]
    before = _pids(lab)
    toml = _x("c") + module("z", env='{ LEVEL = "n" }') + module("r", replicas=3)
    taken = int(old.rpartition(":")[2])
    lab.write(f"[kernel]\nport = {taken}\n" + toml)
    done = lab.run("reload")
    assert done.returncode == 69, done.stderr
    assert str(taken) in done.stderr
    assert _pids(lab) == before
    lab.write(toml)
    lab.ok("reload")


def test_crash_half_way_leaves_the_new_file_as_a_whole(tmp_path: Path) -> None:
    def toml(level: str) -> str:
        env = f'{{ LEVEL = "{level}" }}'
        return module("x", "slow.py", env=env, stop_timeout='"5s"') + module(
            "y", "slow.py", env=env, stop_timeout='"5s"'
        )

    with Lab(tmp_path / "lab", toml("old"), files={"slow.py": SLOW}, scale=0.1) as lab:
        lab.up()
        launcher = lab.launcher_pid()
        lab.write(toml("new") + module("w"))
        reload = threading.Thread(target=lab.run, args=("reload",))
        reload.start()
        lab.until(lambda: lab.row("x")["state"] == "stopping", "the reload is under way")
        time.sleep(0.2)
        kill(launcher)
        reload.join(30)
        lab.until(lambda: lab.launcher_pid() not in (0, launcher), "a new launcher")
        lab.until_well()
        names = sorted(lab.marked().values())
        assert [name for name in names if name in ("w", "x", "y")] == ["w", "x", "y"]
        for name in ("x", "y"):
            lab.until(lambda: lab.log(name).rstrip().endswith("LEVEL new"), "the new value")  # noqa: B023
