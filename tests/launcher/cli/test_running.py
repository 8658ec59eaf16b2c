"""`kite-launch` against a real instance: what only real processes, pipes and descriptors can show.

Cases S-06, S-46, S-48, S-49, S-53, S-58, S-62, S-83 and the exit codes of spec 05 §3.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOML = """[kernel]
port = 0
[timing]
scale = 0.1
[module.x]
command = ["sleep", "1000"]
ready = { delay = "50ms" }
stop_timeout = "1s"
[module.y]
command = ["sh", "-c", "echo hello; exec sleep 1000"]
ready = { log = "hello" }
requires = ["x"]
stop_timeout = "1s"
"""


class Lab:
    """A folder with one instance and the shell to use it from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "kite.toml"
        self.config.write_text(TOML, encoding="utf-8")
        drop = ("KITE_STATE_DIR", "KITE_CONFIG", "KITE_INSTANCE", "NOTIFY_SOCKET")
        self.environ = {name: value for name, value in os.environ.items() if name not in drop}
        self.environ["XDG_STATE_HOME"] = str(folder.parent / "state")
        self.environ["KITE"] = f"{sys.executable} -P -m kite_launcher"

    def sh(self, script: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the folder; a command that hangs fails here, far beyond its own bound."""
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env=self.environ,
            cwd=self.folder,
            **more,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sh("$KITE status --json").stdout)
        return found

    def pids(self) -> dict[str, int | None]:
        return {row["name"]: row["pid"] for row in self.status()["modules"]}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An instance that was started by `up -d | cat`; ended by `down`."""
    folder = tmp_path_factory.mktemp("cli") / "lab"
    folder.mkdir()
    found = Lab(folder)
    done = found.sh("$KITE up -d 7</dev/null 9</dev/null | cat; exit ${PIPESTATUS[0]}")
    try:
        assert (done.returncode, done.stderr) == (0, "")
        (line,) = done.stdout.splitlines()
        assert "lab: everything as wanted" in line
        yield found
    finally:
        found.sh("$KITE down")
        assert found.sh("$KITE status").returncode == 3


def test_all_is_ready_when_up_returns(lab: Lab) -> None:
    found = lab.status()
    assert found["state"] == "ok"
    assert [row["ready"] for row in found["modules"]] == [True, True]
    assert lab.sh("$KITE status").returncode == 0


def test_children_have_no_descriptor_of_the_callers(lab: Lab) -> None:
    for pid in [*lab.pids().values(), lab.status()["launcher"]["pid"]]:
        links = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert links["0"] == "/dev/null"
        assert "/dev/null" not in [links.get("7"), links.get("9")]


def test_a_second_start_names_the_first_and_changes_nothing(lab: Lab) -> None:
    before = lab.status()
    for command in ("up", "up -d"):
        done = lab.sh(f"$KITE {command}")
        assert (done.returncode, done.stdout) == (75, "")
        assert str(before["launcher"]["pid"]) in done.stderr
        assert before["launcher"]["since"] in done.stderr
    assert lab.pids() == {row["name"]: row["pid"] for row in before["modules"]}


def test_commands_find_the_instance_from_below_and_by_name(lab: Lab) -> None:
    (lab.folder / "deep").mkdir(exist_ok=True)
    (state,) = (lab.folder.parent / "state" / "kite").iterdir()
    for script in (
        "cd deep && $KITE status",
        f"cd / && $KITE status --config {lab.config}",
        f"cd / && KITE_STATE_DIR={state} $KITE status",
        f"cd / && KITE_CONFIG={lab.config} $KITE status",
    ):
        assert lab.sh(script).returncode == 0, script
    assert lab.sh("cd / && $KITE status").returncode == 78


def test_unknown_names_are_64_and_nothing_happens(lab: Lab) -> None:
    before = lab.pids()
    for command in ("start", "stop", "restart", "wait", "why", "token"):
        done = lab.sh(f"$KITE {command} nosuch")
        assert (done.returncode, done.stdout) == (64, ""), command
        assert len(done.stderr.splitlines()) == 1
    done = lab.sh("$KITE why nosuch --json")
    assert (done.returncode, done.stdout) == (64, "")
    assert set(json.loads(done.stderr)["error"]) == {"code", "message", "hint"}
    assert lab.pids() == before


def test_a_stop_by_hand_counts_as_wanted_and_is_undone_by_start(lab: Lab) -> None:
    assert lab.sh("$KITE stop y").returncode == 0
    row = lab.status()["modules"][1]
    assert (row["state"], row["pid"], row["ready"]) == ("stopped", None, False)
    assert lab.sh("$KITE status").returncode == 0
    assert lab.sh("$KITE wait y --state stopped --timeout 5").returncode == 0
    assert lab.sh("$KITE wait y --timeout 0.2").returncode == 1
    assert lab.sh("$KITE start y && $KITE wait y --timeout 30").returncode == 0


def test_a_reload_is_a_plan_first_and_then_exactly_that(lab: Lab) -> None:
    before = lab.pids()
    changed = TOML.replace("1000", "1001", 1) + '[module.z]\ncommand = ["sleep", "9"]\nready = { delay = "50ms" }\n'
    lab.config.write_text(changed, encoding="utf-8")
    plan = json.loads(lab.sh("$KITE reload --dry-run --json").stdout)
    assert plan["schema"] == 1
    actions = {row["name"]: (row["action"], row["keys"]) for row in plan["changes"]}
    assert actions["x"] == ("restart", ["command"])
    assert actions["z"][0] == "start"
    assert lab.pids() == before
    lab.config.write_text("[kernel]\nport = 70000\n", encoding="utf-8")
    for flag in ("", "--json", "--dry-run"):
        done = lab.sh(f"$KITE reload {flag}")
        assert (done.returncode, done.stdout) == (78, "")
        assert "kite.toml:2:8:" in done.stderr
    assert lab.pids() == before
    lab.config.write_text("# only a comment\n" + TOML, encoding="utf-8")
    done = lab.sh("$KITE reload")
    assert done.returncode == 0
    assert lab.pids() == before
    lab.config.write_text(TOML, encoding="utf-8")


def test_why_tells_a_story_in_both_forms(lab: Lab) -> None:
    story = json.loads(lab.sh("$KITE why x --json").stdout)
    assert (story["schema"], story["name"]) == (1, "x")
    assert set(story) >= {"state", "rule", "budget", "next_try_s", "timeline"}
    assert set(story["budget"]) == {"left", "of", "within_s"}
    assert all(set(entry) >= {"at", "event", "cause", "detail"} for entry in story["timeline"])
    assert "restarts left" in lab.sh("$KITE why x").stdout


def test_a_token_is_printed_alone_and_stands_nowhere_else(lab: Lab) -> None:
    done = lab.sh("$KITE token x")
    token = done.stdout.strip()
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)
    assert len(token) >= 32
    everything = lab.sh(
        "$KITE status --json; $KITE why x --json; $KITE doctor; $KITE logs -n 1000; $KITE logs launcher"
    )
    assert token not in everything.stdout + everything.stderr
    (state,) = (lab.folder.parent / "state" / "kite").iterdir()
    assert all(token.encode() not in path.read_bytes() for path in state.rglob("*") if path.is_file())


def test_the_doctor_finds_nothing_wrong(lab: Lab) -> None:
    done = lab.sh("$KITE doctor --json")
    assert [row for row in json.loads(done.stdout)["findings"] if row["state"] != "ok"] == []
    assert done.returncode == 0


def test_a_reader_that_leaves_is_no_fault(lab: Lab) -> None:
    for script in ("$KITE status | head -1", "$KITE logs -f y | head -1", "$KITE status >&-"):
        done = lab.sh(script)
        assert (done.returncode, done.stderr) == (0, ""), script


def test_status_is_quick_from_cold(lab: Lab) -> None:
    """Judged by its own work, not by the clock: how long it waits for a busy machine says nothing of it."""

    def work_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    spent = []
    for _ in range(3):
        before = work_s()
        argv = [sys.executable, "-P", "-m", "kite_modules.cli.main", "status"]
        subprocess.run(argv, capture_output=True, timeout=60, check=True, env=lab.environ, cwd=lab.folder)
        spent.append(work_s() - before)
    assert min(spent) < 0.25


def test_up_that_cannot_become_ready_is_1_with_the_table(lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path)
    other.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    other.config.write_text(TOML.replace('["sleep", "1000"]', '["no-such-program"]'), encoding="utf-8")
    try:
        done = other.sh("$KITE up -d")
        assert done.returncode == 1
        rows = {line.split()[1]: line.split()[2] for line in done.stdout.splitlines()[2:]}
        assert (rows["x"], rows["y"]) == ("failed", "waiting")
        assert "no-such-program" in done.stdout
        assert other.sh("$KITE status").returncode == 2
    finally:
        assert other.sh("$KITE down").returncode == 0


def test_closed_streams_are_no_trap_and_down_ends_what_dead_ones_left(tmp_path: Path) -> None:
    other = Lab(tmp_path)
    other.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    try:
        assert other.sh("$KITE up -d <&- >&- 2>&-").returncode == 0
        assert other.status()["state"] == "ok"
        launcher, watchdog = (other.status()[name]["pid"] for name in ("launcher", "watchdog"))
        os.kill(launcher, signal.SIGKILL)
        os.kill(watchdog, signal.SIGKILL)
        left = json.loads(other.sh("$KITE status --json").stdout)
        assert (left["state"], left["modules"]) == ("stopped", [])
        assert {"kernel", "x", "y"} <= {row["name"] for row in left["leftovers"]}
        assert other.sh("$KITE stop x").returncode == 3
    finally:
        assert other.sh("$KITE down").returncode == 0
    assert "leftovers" not in json.loads(other.sh("$KITE status --json").stdout)
    assert other.sh("$KITE down").returncode == 3


def test_a_taken_port_is_69_with_its_holder(lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path)
    other.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        other.config.write_text(TOML.replace("port = 0", f"port = {port}"), encoding="utf-8")
        for command in ("up", "up -d"):
            done = other.sh(f"$KITE {command}")
            assert (done.returncode, done.stdout) == (69, "")
            assert str(port) in done.stderr
            assert str(os.getpid()) in done.stderr
            assert len(done.stderr.splitlines()) == 1
