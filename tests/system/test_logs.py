"""Logs of a real instance: nothing lost, nothing doubled, whoever is killed and whatever becomes of the folder.

Source: cases S-21 … S-25, S-27; spec 00 §28, 50 §2, 05 §3.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab import Lab, alive, kill, module

SCRIPTS = {
    # numbers, and at TERM one last word
    "count.py": (
        "import signal, sys, time\n"
        "def end(*_):\n    print('ended by TERM', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "number = 0\n"
        "while True:\n    print(number, flush=True); number += 1; time.sleep(0.01)\n"
    ),
    "odd.py": (
        "import os, time\n"
        "os.write(1, bytes([0, 0x88, 0xFF]) + b'\\x1b[31m\\n')\n"
        "raw = '😀'.encode()\n"
        "os.write(1, b'a' + raw[:2]); time.sleep(1); os.write(1, raw[2:] + b'b\\n')\n"
        "os.write(2, b'no newline'); time.sleep(60)\n"
    ),
    "long.py": "import os\nfor _ in range(320): os.write(1, b'a' * 65536)\nos.write(1, b'end\\nnext\\n')\n",
    "short.py": "import sys\nprint('no newline', end='')\nsys.exit(1)\n",
}
TOML = (
    module("x", "count.py")
    + module("odd", "odd.py")
    + module("long", "long.py", restart='"never"', ready="{ exit = 0 }")
    + module("short", "short.py", restart='"never"')
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Run one instance for this file."""
    with Lab(tmp_path_factory.mktemp("logs"), TOML, files=SCRIPTS, scale=0.1) as made:
        made.up(code=1)  # `short` fails on purpose
        yield made


def shown(lab: Lab, *args: str) -> list[dict[str, Any]]:
    """Give what `logs --json` shows."""
    return [json.loads(line) for line in lab.ok("logs", "--json", *args).splitlines()]


def numbers(lab: Lab, *args: str) -> list[int]:
    """Give the numbers that x printed."""
    return [int(line["line"]) for line in shown(lab, "x", *args) if line["line"].isdecimal()]


def test_a_line_without_newline_is_kept_and_marked(lab: Lab) -> None:
    [line] = shown(lab, "short")
    assert (line["line"], line["nonl"], line["cont"], line["stream"]) == ("no newline", True, False, "out")


def test_a_line_of_twenty_megabytes_is_in_parts_that_join_to_it(lab: Lab) -> None:
    lines = shown(lab, "long")
    assert [line["cont"] for line in lines[-2:]] == [False, False]
    assert all(line["cont"] for line in lines[:-2])
    assert "".join(line["line"] for line in lines[:-1]) == "a" * 320 * 65536 + "end"
    assert lines[-1]["line"] == "next"


def test_odd_bytes_can_be_told_back_and_a_paused_character_is_whole(lab: Lab) -> None:
    lab.until(lambda: len(shown(lab, "odd")) == 3, "three lines")
    first, second, prompt = sorted(shown(lab, "odd"), key=lambda line: line["stream"] == "err")
    assert (first["line"], first["esc"]) == ("\\x00\\x88\\xff\\x1b[31m", True)
    assert (second["line"], second["esc"]) == ("a😀b", False)
    assert (prompt["line"], prompt["cont"], prompt["nonl"]) == ("no newline", True, False)
    assert "\x1b" not in lab.ok("logs")


def test_a_log_keeper_killed_five_times_costs_no_line(lab: Lab) -> None:
    x = lab.pid("x")
    for _ in range(5):
        keeper = lab.keeper_pid()
        kill(keeper)
        lab.until(lambda keeper=keeper: lab.keeper_pid() not in (0, keeper), "the next keeper", 10)  # type: ignore[misc]
        lab.until(lambda: alive(lab.keeper_pid()), "it lives", 10)
    assert lab.pid("x") == x
    seen = len(numbers(lab))
    lab.until(lambda: len(numbers(lab)) > seen + 20, "x is heard")
    found = numbers(lab)
    assert found == list(range(len(found)))


def test_a_removed_folder_comes_back_with_one_warning(lab: Lab) -> None:
    logs = lab.state / "logs"
    shutil.rmtree(logs.rename(lab.state / "taken"))  # a folder that is written to can't be emptied by name
    lab.until(lambda: (logs / "x.log").exists() and len(numbers(lab)) > 20, "x is heard again")
    found = numbers(lab)
    assert found == list(range(found[0], found[0] + len(found)))
    said = lab.ok("logs", "logkeeper", "launcher")
    assert said.count("log x:") <= 2  # once in each of the two logs
    assert "taken away" in said


def test_a_killed_launcher_costs_no_line_and_no_module_its_output(lab: Lab) -> None:
    """Last of this file: a new instance takes the place of this one."""
    x = lab.pid("x")
    kill(lab.launcher_pid())
    lab.until(lambda: lab.pid("x") not in (0, x) and lab.row("x")["ready"], "a new x")
    old = shown(lab, "x", "--run", "-1")
    assert old[-1]["line"] == "ended by TERM"
    found = [int(line["line"]) for line in old if line["line"].isdecimal()]
    assert found == list(range(found[0], found[0] + len(found)))
    assert numbers(lab, "--run", "0")[0] == 0


def test_logs_are_shown_when_nothing_runs(tmp_path: Path) -> None:
    with Lab(tmp_path / "idle", module("x", "short.py", restart='"never"'), files=SCRIPTS, scale=0.1) as lab:
        lab.up(code=1)
        lab.ok("down")
        assert [line["line"] for line in shown(lab, "x")] == ["no newline"]
        assert lab.run("logs", "nosuch").returncode == 64
