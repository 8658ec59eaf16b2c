"""`scripts/chaos` as a person runs it: the timelines at a tenth, and a few seconds of faults with their verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CHAOS = [sys.executable, "-P", "-m", "kite_modules.cli.main", "chaos"]


def _chaos(*words: str, within_s: float = 110.0) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("KITE_")}
    done = subprocess.run(
        [*CHAOS, *words], capture_output=True, text=True, timeout=within_s, check=False, env=environ, cwd="/"
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def _document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["schema"] == 1
    return found


def test_timelines_a_d_e_and_f_hold_and_are_printed_beside_what_is_promised() -> None:
    done = _chaos("--scratch", "--timelines", "ADEF")
    print(done.stdout)  # noqa: T201 - the measured times beside the promised ones
    assert done.returncode == 0, done.stdout + done.stderr
    for name in "ADEF":
        assert f"\n{name}: " in f"\n{done.stdout}"
    assert done.stdout.count("promised") >= 9
    assert "BROKEN" not in done.stdout


def test_a_few_seconds_of_faults_break_nothing() -> None:
    classes = "kill module,kill kernel,kill watchdog,cut wire,tear wire,stop kernel"
    done = _chaos("--scratch", "--seconds", "3", "--seed", "5", "--faults", classes, "--json")
    report = _document(done)
    assert report["held"] is True, report
    assert done.returncode == 0
    assert set(report["invariants"].values()) == {"held"}
    assert [fault for fault in report["faults"] if not fault["skipped"]]


def test_a_running_instance_is_not_hurt_unless_one_says_yes(tmp_path: Path) -> None:
    (tmp_path / "kite.toml").write_text("[kernel]\nport = 0\n", "utf-8")
    done = _chaos("--config", str(tmp_path / "kite.toml"))
    assert done.returncode in (3, 64)
    assert done.stdout == ""


def test_an_unknown_fault_is_refused_by_name() -> None:
    done = _chaos("--scratch", "--faults", "kill everything")
    assert done.returncode == 64
    assert "kill everything" in done.stderr


def test_told_to_end_it_stops_its_instance_and_removes_the_folder(tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("KITE_")}
    argv = [*CHAOS, "--scratch", "--seconds", "60", "--faults", "stop module"]
    process = subprocess.Popen(
        argv, env={**environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("seed "), "the instance is up, the run begins"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []
