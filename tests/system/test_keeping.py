"""Keeping what runs: groups, a program's own watchdog, alarms to people, a kernel that keeps crashing.

Source: spec 50 §2; 05 §4, §6; cases S-29, S-70.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from tests.support.lab import Lab, kill, module

BEATS = """\
import os, socket, time
mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def say(word):
    mouth.sendto(word, os.environ["NOTIFY_SOCKET"])
say(b"READY=1")
for _ in range(5):
    time.sleep(0.05)
    say(b"WATCHDOG=1")
time.sleep(600)
"""
NOTIFY = (
    "[notify]\n"
    """command = ["sh", "-c", "echo \\"$1: $2\\" >> alarms.txt; cat >> alarms.txt", "sh"]\n"""
    'limit = "1/1h"\n'
    '[group.all]\nstrategy = "one_for_all"\n[group.rest]\nstrategy = "rest_for_one"\n'
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    toml = (
        NOTIFY
        + "".join(module(name, group='"all"') for name in ("a1", "a2"))
        + "".join(module(name, group='"rest"') for name in ("r1", "r2", "r3"))
        + module("beats", "beats.py", ready="{ notify = true }", notify_watchdog='"2s"', max_restarts=0)
        + module("quits", command='["false"]', max_restarts=1, ready='{ delay = "5s" }')
        + module("x")
    )
    with Lab(tmp_path_factory.mktemp("keeping"), toml, files={"beats.py": BEATS}) as lab:
        lab.run("up", "-d")
        yield lab


def _pids(lab: Lab) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in lab.status()["modules"]}


def test_one_for_all_restarts_the_group_and_rest_for_one_what_follows(lab: Lab) -> None:
    before = _pids(lab)
    kill(before["a2"])
    kill(before["r2"])

    def renewed() -> bool:
        now = _pids(lab)
        return all(now[name] not in (None, before[name]) for name in ("a1", "a2", "r2", "r3"))

    lab.until(renewed, "both groups are renewed")
    after = _pids(lab)
    assert (after["r1"], after["x"]) == (before["r1"], before["x"])
    assert [lab.row(name)["restarts"] for name in ("a1", "a2", "r2", "r3")] == [0, 1, 1, 0]


def test_program_that_stops_saying_watchdog_is_ended(lab: Lab) -> None:
    lab.until(lambda: lab.row("beats")["state"] == "failed", "beats is given up")
    assert "WATCHDOG=1" in lab.row("beats")["why"]


def test_alarms_reach_the_command_within_their_limit(lab: Lab) -> None:
    lab.until(lambda: lab.log().count("alarm  name=") >= 2, "two alarms")
    lab.until(lambda: (lab.folder / "alarms.txt").exists(), "the command ran")
    text = (lab.folder / "alarms.txt").read_text("utf-8")
    assert text.count('"kind": "failed"') == 1
    assert json.loads(text.splitlines()[-1])["schema"] == 1


def test_commands_need_no_living_kernel_and_a_crashing_one_ends_the_instance(lab: Lab) -> None:
    seen = 0

    def waits_for_its_next_try() -> bool:
        nonlocal seen
        row = lab.row("kernel")
        if row["state"] == "backoff" and seen >= 2:
            return True
        if row["pid"] and row["state"] == "running":
            seen += 1
            kill(int(row["pid"]))
        return False

    lab.until(waits_for_its_next_try, "the kernel is in back-off")
    assert lab.run("status").returncode in (1, 2)
    told = lab.why("kernel")
    assert json.dumps(told["timeline"]).count("signal KILL") >= 2
    assert lab.run("stop", "x").returncode == 0
    begin = time.monotonic()
    lab.ok("down")
    assert time.monotonic() - begin < 8
    lab.assert_nothing_left()
    assert lab.run("status").returncode == 3
