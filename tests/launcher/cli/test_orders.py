"""Commands against a control socket: exit codes, JSON, progress, silence, nothing there.

Cases S-02, S-03, S-14, S-47, S-48, S-51, S-53, S-59, S-72.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kite_launcher.cli import ask

from .conftest import Launch
from .fake_launcher import fake_launcher, row, status

STATE = "state-dir"


@pytest.fixture
def state(lab: Path) -> Path:
    return lab / STATE


@pytest.mark.parametrize(("word", "code"), [("ok", 0), ("degraded", 1), ("failed", 2), ("stopped", 3)])
def test_the_state_of_the_whole_is_the_exit_code(launch: Launch, state: Path, word: str, code: int) -> None:
    with fake_launcher(state, {"status": status(word, row("x"))}):
        said = launch("status", "--state-dir", STATE)
        assert (said.code, said.err) == (code, "")
        said = launch("status", "--json", "--state-dir", STATE)
        assert (said.code, json.loads(said.out)) == (code, status(word, row("x")))


def test_nothing_runs_is_3_for_every_order(launch: Launch) -> None:
    for argv in (
        ["status"],
        ["down"],
        ["stop", "x"],
        ["start", "x"],
        ["wait", "x"],
        ["why", "x"],
        ["reload"],
        ["token", "x"],
    ):
        said = launch(*argv)
        assert said.code == 3, argv
        assert "nothing is running" in said.out + said.err
    found = json.loads(launch("status", "--json").out)
    assert (found["schema"], found["state"], found["instance"]) == (1, "stopped", "lab")


def test_names_and_options_reach_the_launcher(launch: Launch, state: Path) -> None:
    answers: dict[str, Any] = {
        "start": {"modules": [row("x")]},
        "stop": {"modules": [row("x", "stopped")]},
        "restart": {"modules": [row("x")], "notes": ["kite.toml has changed since"]},
        "down": {"text": "all stopped"},
        "wait": {"modules": [row("x", "starting")], "exit": 1},
        "token": {"token": "t0ken"},
        "reload": {"schema": 1, "changes": []},
    }
    with fake_launcher(state, answers) as launcher:
        assert launch("start", "x", "y", "--state-dir", STATE).code == 0
        assert "stopped" in launch("stop", "x", "--state-dir", STATE).out
        assert "kite.toml has changed" in launch("restart", "x", "--state-dir", STATE).err
        assert launch("down", "--timeout", "3", "--state-dir", STATE).code == 0
        said = launch("wait", "x", "--state", "done", "--timeout", "2", "--state-dir", STATE)
        assert (said.code, "starting" in said.out) == (1, True)
        assert launch("token", "x", "--state-dir", STATE).out == "t0ken\n"
        assert launch("reload", "-n", "--state-dir", STATE).code == 0
    assert launcher.calls == [
        ("start", {"names": ["x", "y"]}),
        ("stop", {"names": ["x"]}),
        ("restart", {"names": ["x"]}),
        ("down", {"timeout_s": 3.0}),
        ("wait", {"names": ["x"], "state": "done", "timeout_s": 2.0}),
        ("token", {"name": "x"}),
        ("reload", {"dry_run": True}),
    ]


def test_a_refusal_has_the_launchers_exit_code_message_and_hint(launch: Launch, state: Path) -> None:
    data = {"exit": 64, "hint": "did you mean 'x'?"}
    error = {"error": {"code": -32602, "message": "no module 'nosuch'", "data": data}}
    with fake_launcher(state, lambda method, params: [error]):
        said = launch("start", "nosuch", "--state-dir", STATE)
        assert (said.code, said.out) == (64, "")
        assert said.err == "kite-launch: no module 'nosuch'; did you mean 'x'?\n"
        said = launch("why", "nosuch", "--json", "--state-dir", STATE)
        assert (said.code, said.out) == (64, "")
        assert json.loads(said.err)["error"] == {
            "code": 64,
            "message": "no module 'nosuch'",
            "hint": "did you mean 'x'?",
        }


def test_a_bad_file_on_reload_is_told_line_by_line(launch: Launch, state: Path) -> None:
    lines = ["kite.toml:9:1: unknown key 'a'", "kite.toml:10:1: unknown key 'b'"]
    error = {"error": {"code": -32000, "message": "2 mistakes", "data": {"exit": 78, "lines": lines}}}
    with fake_launcher(state, lambda method, params: [error]):
        assert launch("reload", "--state-dir", STATE).err.splitlines() == lines
        said = launch("reload", "--json", "--state-dir", STATE)
        assert said.code == 78
        assert json.loads(said.err)["error"]["message"].splitlines() == lines


def test_a_plan_is_shown_without_what_is_kept(launch: Launch, state: Path) -> None:
    changes = [
        {"name": "x", "action": "restart", "keys": ["env.LEVEL"]},
        {"name": "z", "action": "keep", "keys": []},
    ]
    with fake_launcher(state, {"reload": {"schema": 1, "changes": changes}}):
        said = launch("reload", "--dry-run", "--state-dir", STATE)
        assert said.out.splitlines()[0].split() == ["restart", "x", "env.LEVEL"]
        assert "1 kept" in said.out
        assert "z" not in said.out.split()
        said = launch("reload", "--dry-run", "--json", "--state-dir", STATE)
        assert json.loads(said.out) == {"schema": 1, "changes": changes}


def test_what_is_waited_for_is_shown_line_by_line(launch: Launch, state: Path) -> None:
    def answer(method: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        words = [f"x (pid 7): {second} s of 3 s, KILL next" for second in (1, 2)]
        notices = [{"method": "progress", "params": {"name": "x", "text": text}} for text in words]
        return [*notices, {"result": {"modules": [row("x", "stopped")]}}]

    with fake_launcher(state, answer):
        said = launch("stop", "x", "--state-dir", STATE)
        assert said.err.splitlines() == ["x (pid 7): 1 s of 3 s, KILL next", "x (pid 7): 2 s of 3 s, KILL next"]
        assert said.out.split()[:2] == ["x", "stopped"]


def test_no_path_is_too_long(launch: Launch, lab: Path) -> None:
    deep = lab / ("d" * 100) / ("e" * 120)
    with fake_launcher(deep, {"status": status("ok")}):
        assert launch("status", "--state-dir", str(deep)).code == 0


def hold_lock(state: Path) -> int:
    fd = os.open(state / "instance.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, json.dumps({"pid": os.getpid(), "since": "2026-01-02T03:04:05+00:00"}).encode())
    return fd


def test_a_silent_launcher_is_1_and_said_in_bounded_time(
    launch: Launch, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "ANSWER_S", 0.2)
    monkeypatch.setattr(
        "kite_launcher.cli.ask.ask.__kwdefaults__", {"params": None, "timeout_s": 0.2, "progress": None}
    )
    with fake_launcher(state, lambda method, params: []):
        lock = hold_lock(state)
        said = launch("status", "--state-dir", STATE)
        found = json.loads(launch("status", "--json", "--state-dir", STATE).out)
        os.close(lock)
    assert said.code == 1
    assert "silent" in said.out
    assert (found["state"], found["launcher"]["pid"], found["modules"]) == ("degraded", os.getpid(), [])


def test_a_launcher_that_is_only_starting_is_not_nothing(launch: Launch, state: Path) -> None:
    state.mkdir(mode=0o700)
    lock = hold_lock(state)
    assert launch("status", "--state-dir", STATE).code == 1
    assert launch("stop", "x", "--state-dir", STATE).code == 1
    os.close(lock)
    assert launch("status", "--state-dir", STATE).code == 3


def test_a_launcher_that_dies_while_asked_is_one_line(launch: Launch, state: Path) -> None:
    with fake_launcher(state, lambda method, params: None):
        said = launch("stop", "x", "--state-dir", STATE)
    assert said.code == 1
    assert len(said.err.splitlines()) == 1


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, "KITE_INSTANCE": mark})


def record(state: Path, pid: int, *, ticks: int | None = None, boot: str | None = None) -> None:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    boot = boot or Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    process = {
        "name": "x",
        "role": "module",
        "pid": pid,
        "start_ticks": ticks or int(text[19]),
        "pgid": pid,
        "argv": [],
    }
    content = {"schema": 1, "boot_id": boot, "instance": "m" * 32, "processes": [process]}
    (state / "processes.json").write_text(json.dumps(content), encoding="utf-8")
    (state / "instance.id").write_text("m" * 32 + "\n", encoding="utf-8")


def wait_exec(pid: int) -> None:
    """Wait until the child's own environment is to be seen: before exec it still has the parent's."""
    deadline = time.monotonic() + 10
    while b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_leftovers_are_named_only_when_they_are_ours(launch: Launch, state: Path) -> None:
    state.mkdir(mode=0o700)
    mine, stranger = sleeper("m" * 32), sleeper("n" * 32)
    try:
        wait_exec(mine.pid)
        wait_exec(stranger.pid)
        record(state, mine.pid)
        said = launch("status", "--state-dir", STATE)
        assert (said.code, f"x (pid {mine.pid})" in said.out) == (3, True)
        assert str(mine.pid) in launch("stop", "x", "--state-dir", STATE).err
        for wrong in ({"ticks": 1}, {"boot": "another"}):
            record(state, mine.pid, **wrong)
            assert str(mine.pid) not in launch("status", "--state-dir", STATE).out
            assert launch("down", "--state-dir", STATE).code == 3
        record(state, stranger.pid)
        assert launch("down", "--state-dir", STATE).code == 3
        assert mine.poll() is None
        assert stranger.poll() is None
    finally:
        for process in (mine, stranger):
            process.kill()
            process.wait()


def test_a_forged_record_is_no_reason_to_fail(launch: Launch, state: Path) -> None:
    state.mkdir(mode=0o700)
    for text in ("", "[", "[]", '{"processes": 7}', '{"processes": [7, {"pid": "x"}]}', "[" * 100_000):
        (state / "processes.json").write_text(text, encoding="utf-8")
        assert launch("status", "--state-dir", STATE).code == 3


def run(lab: Path, script: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "KITE": f"{sys.executable} -P -m kite_launcher"}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=30, check=False, env=environ, cwd=lab
    )


def test_a_reader_that_leaves_and_a_closed_stdout_are_no_fault(lab: Path, state: Path) -> None:
    modules = [row(f"module-{number}", why="w" * 500) for number in range(400)]
    with fake_launcher(state, {"status": status("ok", *modules)}):
        done = run(lab, f"$KITE status --state-dir {STATE} | head -1; exit ${{PIPESTATUS[0]}}")
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 1
        for closed in (">&-", ">&- 2>&-", "> /dev/full"):
            done = run(lab, f"$KITE status --state-dir {STATE} {closed}")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), closed


def test_a_terminal_that_knows_no_signs_gets_them_escaped(lab: Path, state: Path) -> None:
    with fake_launcher(state, {"status": status("ok", row("备份"))}):
        done = run(lab, f"PYTHONIOENCODING=ascii $KITE status --state-dir {STATE}")
        assert (done.returncode, done.stderr) == (0, "")
        assert "\\u25cf" in done.stdout
        assert "\\u5907" in done.stdout


def test_status_imports_nothing_heavy(lab: Path, state: Path) -> None:
    script = (
        "import sys; from kite_launcher.main import run; code = run(['status', '--state-dir', 'state-dir']);"
        "heavy = {'trio', 'rich', 'structlog', 'tomlkit', 'yaml', 'asyncio', 'difflib'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    with fake_launcher(state, {"status": status("ok", row("x"))}):
        argv = [sys.executable, "-P", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=lab)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
