"""`logs` from outside: what it prints, when it ends, what it refuses."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

X = r"""2026-11-30T09:12:13.000001Z out 1 - one
2026-11-30T09:12:13.000002Z out 1 e a\\b\x1b[31mred
2026-11-30T09:12:14.000001Z out 1 p liste
2026-11-30T09:12:14.600001Z err 2 - zwei
2026-11-30T09:12:15.000001Z out 1 n ning
2026-11-30T09:12:16.000001Z out 3 - 你好
"""
Y = "2026-11-30T09:12:14.100001Z out 1 - y here\n"
BOUND_S = 20


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Make a state directory with the logs of an earlier run."""
    path = tmp_path / "state"
    (path / "logs").mkdir(parents=True)
    path.chmod(0o700)
    (path / "logs" / "x.log").write_text(X)
    (path / "logs" / "y@1.log").write_text(Y)
    return path


def start(state_dir: Path, *args: str, **how: object) -> subprocess.Popen[bytes]:
    """Start `kite-launch logs`."""
    code = "import sys; from kite_launcher.main import main; main()"
    env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    argv = [sys.executable, "-P", "-c", code, "logs", *args, "--state-dir", str(state_dir)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, bufsize=0, **how)  # type: ignore[call-overload,no-any-return]


def logs(state_dir: Path, *args: str) -> tuple[int, list[str], str]:
    """Run it: exit code, lines of stdout, stderr."""
    done = start(state_dir, *args)
    out, err = done.communicate(timeout=BOUND_S)
    return done.returncode, out.decode().splitlines(), err.decode()


def test_all_modules_are_merged_by_time(state_dir: Path) -> None:
    code, lines, err = logs(state_dir)
    assert (code, err) == (0, "")
    assert lines == [
        "2026-11-30 09:12:13.000 x   | one",
        "2026-11-30 09:12:13.000 x   | a\\\\b\\x1b[31mred",
        "2026-11-30 09:12:14.100 y@1 | y here",
        "2026-11-30 09:12:14.600 x   ! zwei",
        "2026-11-30 09:12:15.000 x   | listening [no newline]",
        "2026-11-30 09:12:16.000 x   | 你好",
    ]


def test_json_is_one_object_a_line_with_exactly_its_members(state_dir: Path) -> None:
    code, lines, _ = logs(state_dir, "x", "--json")
    shown = [json.loads(line) for line in lines]
    assert code == 0
    assert {tuple(line) for line in shown} == {("time", "module", "run", "stream", "line", "esc", "cont", "nonl")}
    assert [(line["run"], line["stream"], line["line"], line["esc"], line["nonl"]) for line in shown] == [
        (1, "out", "one", False, False),
        (1, "out", "a\\\\b\\x1b[31mred", True, False),
        (2, "err", "zwei", False, False),
        (1, "out", "listening", False, True),
        (3, "out", "你好", False, False),
    ]


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["x", "-n", "1"], ["你好"]),
        (["-n", "2"], ["listening", "你好"]),
        (["x", "-n", "0"], []),
        (["y"], ["y here"]),
        (["y@1"], ["y here"]),
        (["--run", "-1", "x"], ["zwei"]),
        (["--run", "0", "x"], ["你好"]),
        (["--run", "1", "x", "--stream", "out", "-n1"], ["listening"]),
        (["--run", "-9", "x"], []),
        (["--grep", "^y|zw"], ["y here", "zwei"]),
        (["--stream", "err"], ["zwei"]),
        (["--since", "2026-11-30 09:12:15"], ["listening", "你好"]),
        (["--until", "2026-11-30T09:12:13.000001Z"], ["one"]),
        (["--since", "2026-11-30T09:12:14Z", "--until", "2026-11-30T09:12:14.2Z"], ["y here"]),
        (["kernel"], []),
    ],
)
def test_only_what_is_asked_for_is_shown(state_dir: Path, args: list[str], shown: list[str]) -> None:
    code, lines, err = logs(state_dir, "--json", *args)
    assert (code, err) == (0, "")
    assert [json.loads(line)["line"] for line in lines] == shown


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-n", "abc", "x"], "number of lines"),
        (["-n", "-1", "x"], ""),
        (["xx"], "did you mean x?"),
        (["--grep", "("], "no regular expression"),
        (["--since", "soon"], "expected a time"),
        (["--run", "last"], ""),
        (["--stream", "both"], ""),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(state_dir: Path, args: list[str], says: str) -> None:
    code, lines, err = logs(state_dir, *args)
    assert (code, lines) == (64, [])
    assert says in err
    assert err.count("\n") == 1


def test_a_module_of_the_configuration_has_a_log_though_it_is_empty(state_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "kite.toml"
    config.write_text('[module.fresh]\ncommand = ["true"]\n[relay]\n')
    (state_dir / "launch.json").write_text(json.dumps({"schema": 1, "config": str(config)}))
    assert logs(state_dir, "fresh") == (0, [], "")
    assert logs(state_dir, "relay") == (0, [], "")
    assert logs(state_dir, "frsh")[0] == 64


def test_an_instance_that_never_ran_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    code, lines, err = logs(tmp_path)
    assert (code, lines) == (3, [])
    assert "nothing has been logged" in err


def test_torn_and_foreign_lines_are_passed_over(state_dir: Path) -> None:
    with (state_dir / "logs" / "y@1.log").open("ab") as file:
        file.write(b"\x1b[31mforged\n\xff\xfe\n2026-11-30T09:12:18.100001Z out 1 - last\n2026-11-30T0")
    assert [line.split("| ")[1] for line in logs(state_dir, "y")[1]] == ["y here", "last"]


def test_a_reader_that_goes_away_ends_it_quietly(state_dir: Path) -> None:
    (state_dir / "logs" / "x.log").write_text(X * 20_000)
    for args in (["x"], ["x", "-f"]):
        running = start(state_dir, *args)
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline().startswith(b"2026-11-30")
        running.stdout.close()
        assert running.wait(BOUND_S) == 0
        assert running.stderr.read() == b""
        running.stderr.close()


def test_a_closed_standard_output_is_no_fault(state_dir: Path) -> None:
    running = start(state_dir, "x", preexec_fn=lambda: os.close(1))
    _, err = running.communicate(timeout=BOUND_S)
    assert (running.returncode, err) == (0, b"")


def test_following_shows_what_comes_over_a_rotation_once(state_dir: Path) -> None:
    running = start(state_dir, "x", "-f", "-n", "1", "--json")
    assert running.stdout is not None
    log = state_dir / "logs" / "x.log"
    try:
        assert next_line(running) == "你好"
        for number in range(5):
            with log.open("a") as file:
                file.write(f"2026-11-30T09:13:0{number}.000000Z out 3 - {number}\n")
            log.rename(state_dir / "logs" / f"x.log.{9 - number}")
            log.write_text(f"2026-11-30T09:13:0{number}.500000Z out 3 - {number}.5\n")
        assert [next_line(running) for _ in range(10)] == [
            text for number in range(5) for text in (f"{number}", f"{number}.5")
        ]
    finally:
        running.terminate()
        running.communicate(timeout=BOUND_S)


def test_following_everything_shows_logs_that_appear(state_dir: Path) -> None:
    running = start(state_dir, "-f", "-n", "0", "--json")
    try:
        time.sleep(0.3)
        (state_dir / "logs" / "new.log").write_text("2026-11-30T09:13:00.000000Z out 1 - hello\n")
        assert next_line(running) == "hello"
    finally:
        running.terminate()
        running.communicate(timeout=BOUND_S)


def next_line(running: subprocess.Popen[bytes]) -> str:
    """Wait for the next line of JSON and give its text."""
    assert running.stdout is not None
    assert select.select([running.stdout], [], [], BOUND_S)[0], "nothing came"
    return str(json.loads(running.stdout.readline())["line"])


def test_ctrl_c_ends_following_with_nothing_to_complain_of(state_dir: Path) -> None:
    running = start(state_dir, "x", "-f", "--json")
    assert running.stdout is not None
    running.stdout.readline()
    running.send_signal(2)
    _, err = running.communicate(timeout=BOUND_S)
    assert (running.returncode, err) == (0, b"")
