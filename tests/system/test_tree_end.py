"""A stop ends the whole tree of a module, within its time, and says whom it waits for.

Source: cases S-10, S-11, S-13 … S-18, S-20; spec 50 §3.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lab import COMMAND, Lab, alive, kill, module

SCRIPTS = {
    # its leader ends on TERM, a child in its group ignores TERM
    "child.py": (
        "import os, signal, time\n"
        "if os.fork() == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n    time.sleep(60)\n"
    ),
    # a grandchild (double fork, its own session) holds the output and prints on
    "grandchild.py": (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n        os._exit(0)\n"
        "    def end(*_):\n        print('last word', flush=True); os._exit(0)\n"
        "    signal.signal(signal.SIGTERM, end)\n"
        "    while True:\n        print('tick', flush=True); time.sleep(0.02)\n"
        "while True:\n    time.sleep(60)\n"
    ),
    # leaves group, session and environment behind; keeps ignoring TERM
    "scrubbed.py": (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n        os._exit(0)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    os.execve('/bin/sleep', ['sleep', '987654'], {})\n"
        "while True:\n    time.sleep(60)\n"
    ),
    "stubborn.py": (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(60)\n"
    ),
    "slow.py": (
        "import signal, sys, time\n"
        "def end(*_):\n    time.sleep(1.5); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nwhile True:\n    time.sleep(60)\n"
    ),
    # notes its start and its end, a second to end
    "notes.py": (
        "import signal, sys, time\n"
        "def note(word):\n    print(word, time.monotonic(), file=open('notes.txt', 'a'), flush=True)\n"
        "def end(*_):\n    time.sleep(0.3); note('end'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nnote('start')\nprint('noted', flush=True)\n"
        "while True:\n    time.sleep(60)\n"
    ),
    "bomb.py": (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(4):\n    os.fork()\n"
        "while True:\n"
        "    if os.fork() == 0:\n        time.sleep(0.05); os._exit(0)\n"
        "    os.waitpid(-1, os.WNOHANG)\n"
        "    time.sleep(0.02)\n"
    ),
}

TOML = (
    module("x")
    + module("child", "child.py")
    + module("grandchild", "grandchild.py")
    + module("scrubbed", "scrubbed.py")
    + module("stubborn", "stubborn.py", stop_timeout='"3s"')
    + module("slow", "slow.py", stop_timeout='"5s"')
    + module("notes", "notes.py", stop_timeout='"5s"', ready='{ log = "noted" }')
    + module("bomb", "bomb.py")
    + module("never", ready='{ log = "this is never printed" }', ready_timeout='"1h"', max_restarts=0)
    + module("after_never", after='["never"]')
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("tree"), TOML, files=SCRIPTS) as lab:
        # `never` is never ready: up gives up waiting at its own bound.
        done = lab.run("up", "-d", "--wait", "3")
        assert done.returncode == 1, done.stderr
        yield lab


def _timed_stop(lab: Lab, name: str, *, at_most_s: float) -> float:
    begin = time.monotonic()
    lab.ok("stop", name)
    took = time.monotonic() - begin
    assert took < at_most_s, took
    row = lab.row(name)
    assert (row["state"], row["pid"]) == ("stopped", None)
    assert name not in lab.marked().values()
    return took


def test_child_in_the_group_that_ignores_term_is_killed_at_the_deadline(lab: Lab) -> None:
    assert _timed_stop(lab, "child", at_most_s=5) >= 0.9


def test_grandchild_in_its_own_session_ends_and_its_last_line_is_kept(lab: Lab) -> None:
    _timed_stop(lab, "grandchild", at_most_s=5)
    lab.until(lambda: "last word" in lab.log("grandchild"), "the last line is kept", 5)


def test_process_that_left_every_trace_behind_is_found_by_its_lock(lab: Lab) -> None:
    sleeper = lab.until(lambda: _sleepers(), "the scrubbed process")
    _timed_stop(lab, "scrubbed", at_most_s=6)
    assert not any(alive(pid) for pid in sleeper)


def _sleepers() -> list[int]:
    found = subprocess.run(["pgrep", "-f", "sleep 987654"], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def test_fork_bomb_ends(lab: Lab) -> None:
    _timed_stop(lab, "bomb", at_most_s=8)


def test_stopped_process_ends(lab: Lab) -> None:
    os.kill(lab.pid("x"), signal.SIGSTOP)
    _timed_stop(lab, "x", at_most_s=5)
    lab.ok("start", "x")


def test_each_second_says_who_is_waited_for(lab: Lab) -> None:
    pid = lab.pid("stubborn")
    done = lab.run("stop", "stubborn")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "stubborn" in line]
    assert len(lines) >= 2, done.stderr
    assert str(pid) in lines[0]
    assert "1 s of 3 s" in lines[0]
    assert "KILL" in lines[0]


def test_slow_stop_of_one_delays_nobody_else(lab: Lab) -> None:
    slow = threading.Thread(target=lab.ok, args=("stop", "slow"))
    slow.start()
    lab.until(lambda: lab.row("slow")["state"] == "stopping", "slow is stopping")
    begin = time.monotonic()
    lab.ok("stop", "x")
    took = time.monotonic() - begin
    assert lab.row("slow")["state"] == "stopping", f"x took {took} s"
    slow.join(20)
    assert lab.row("slow")["state"] == "stopped"
    lab.ok("start", "x")


def test_restart_never_overlaps_two_lives(lab: Lab) -> None:
    lab.ok("restart", "notes")
    both = [threading.Thread(target=lab.ok, args=("restart", "notes")) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(30)
    words = [line.split() for line in (lab.folder / "notes.txt").read_text("utf-8").splitlines()]
    assert [word for word, _ in words] == ["start", "end"] * (len(words) // 2) + ["start"]
    assert 2 <= len(words) // 2 <= 3
    instants = [float(at) for _, at in words]
    assert instants == sorted(instants)


def test_waiting_for_another_can_be_stopped_and_started_at_once(lab: Lab) -> None:
    assert lab.row("after_never")["state"] == "waiting"
    for command, state in (("stop", "stopped"), ("start", "waiting")):
        begin = time.monotonic()
        lab.ok(command, "after_never")
        assert time.monotonic() - begin < 3
        assert lab.row("after_never")["state"] == state


def test_down_proves_that_nothing_is_left(lab: Lab) -> None:
    lab.ok("down")
    lab.assert_nothing_left()
    assert "after_never" not in lab.log("after_never")
    assert not (lab.state / "launcher.sock").exists()
    assert list((lab.state / "tokens").iterdir()) == []


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_hang_up_around_term_is_one_normal_stop(tmp_path: Path, first: signal.Signals) -> None:
    second = signal.SIGHUP if first is signal.SIGTERM else signal.SIGTERM
    files = {"slow.py": SCRIPTS["slow.py"]}
    with Lab(tmp_path / "lab", module("x", "slow.py", stop_timeout='"5s"'), files=files) as lab:
        front = lab.front()
        lab.until_well()
        front.send_signal(first)
        time.sleep(0.01)
        front.send_signal(second)
        assert front.wait(30) == 0
        lab.assert_nothing_left()
        assert lab.log().count("started  name=x") == 1


def test_closed_terminal_is_a_normal_stop_in_front_and_nothing_to_a_detached_one(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(lab.folder)
            os.execve(COMMAND[0], [*COMMAND, "up"], lab.env())
        try:
            lab.until_well()
            os.close(master)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        except BaseException:
            kill(pid)
            raise
        lab.until_nothing_left(5)
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(lab.folder)
            os.execve(COMMAND[0], [*COMMAND, "up", "-d"], lab.env())
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        os.close(master)
        launcher = lab.launcher_pid()
        lab.until_well()
        assert lab.launcher_pid() == launcher
