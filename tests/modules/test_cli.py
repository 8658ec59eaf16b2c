"""`kite` from outside: its own commands at a real kernel, exit codes, JSON, and who is asked when nothing runs.

Source: spec 05-surface §3, cases S-46…S-49, S-53, X-11, X-38.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kernel_process import KernelProcess

from kite_modules.cli import commands, main
from kite_modules.sdk import Settings, threads

BOUND_S = 40.0
KITE = [sys.executable, "-P", "-m", "kite_modules.cli.main"]
ECHO = """
from kite_modules.sdk import Module, Refused
module = Module("echo")
@module.method
async def say(text: str, times: int = 1) -> str:
    \"\"\"Say it.\"\"\"
    return text * times
@module.method
async def count(n: int):
    for number in range(n):
        yield number
@module.method
async def refuse():
    raise Refused("sold out", code=17)
module.run()
"""


class Instance:
    """A standalone kernel with an operator's token where `kite` looks for it, and a module that echoes."""

    def __init__(self, folder: Path) -> None:
        self.kernel = KernelProcess(folder, {"echo": "module", "operator": "operator"})
        self.kernel.start()
        self.state = folder / "state"
        tokens = self.state / "tokens"
        tokens.mkdir(mode=0o700)
        (tokens / "operator").touch(mode=0o600)
        (tokens / "operator").write_text(self.kernel.tokens["operator"], "utf-8")
        (folder / "echo.py").write_text(ECHO, "utf-8")
        token = folder / "echo.token"
        token.touch(mode=0o600)
        token.write_text(self.kernel.tokens["echo"], "utf-8")
        env = clean_env() | {"KITE_URL": self.kernel.url, "KITE_TOKEN_FILE": str(token)}
        self.module = subprocess.Popen([sys.executable, str(folder / "echo.py")], env=env, stderr=subprocess.DEVNULL)
        self.stack = contextlib.ExitStack()
        settings = Settings(url=self.kernel.url, token=self.kernel.tokens["operator"], module_id="tester")
        self.tester = self.stack.enter_context(threads.Module("tester").connected(settings))

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return what the kernel knows of every module."""
        return {row["module_id"]: row for row in self.tester.call("registry.list_modules")["modules"]}

    def kite(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return kite(*words, "--state-dir", str(self.state), **more)

    def end(self) -> None:
        self.stack.close()
        self.module.kill()
        self.module.wait()
        self.kernel.kill()


def clean_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("KITE_")}


def kite(*words: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KITE, *words],
        env=clean_env() | (env or {}),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
        **more,
    )


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    running = Instance(tmp_path_factory.mktemp("instance"))
    deadline = time.monotonic() + BOUND_S
    while running.rows().get("echo", {}).get("state") != "ready":
        assert time.monotonic() < deadline, running.rows()
        time.sleep(0.02)
    yield running
    running.end()


# ------------------------------------------------------------------ calls


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (['{"text":"a"}'], "a"),
        (['["b",2]'], "bb"),
        (["text=c", "times:=3"], "ccc"),
        (["text=with = sign"], "with = sign"),
    ],
)
def test_call_prints_the_result(instance: Instance, words: list[str], result: str) -> None:
    done = instance.kite("call", "echo.say", *words)
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, result, "")


def test_call_takes_stdin_and_carries_numbers_as_they_are(instance: Instance) -> None:
    done = instance.kite("call", "echo.say", "-", input='{"text":"é\\u00e9 \\u2028"}')
    assert done.returncode == 0
    assert json.loads(done.stdout) == "éé \u2028"
    assert "\u2028" not in done.stdout  # nothing that could move a terminal's cursor
    done = instance.kite("call", "echo.say", "--json", '{"text":"x"}')
    assert json.loads(done.stdout) == {"schema": 1, "result": "x"}


def test_call_shows_what_a_method_yields(instance: Instance) -> None:
    done = instance.kite("call", "echo.count", "n:=3")
    assert done.returncode == 0
    assert done.stderr.split() == ["0", "1", "2"]
    assert json.loads(done.stdout) == {"yielded": 3}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["echo.nope"], "-32601"),
        (["nobody.run"], "-32001, unknown_module, not_sent"),
        (["echo.say", '{"text":7}'], "-32602, invalid_params, not_sent"),
        (["echo.refuse"], "sold out (17)"),
    ],
)
def test_a_failed_call_is_one_line_and_exit_1(instance: Instance, words: list[str], said: str) -> None:
    done = instance.kite("call", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = instance.kite("call", *words, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    error = json.loads(done.stderr)
    assert error["schema"] == 1
    assert set(error["error"]) >= {"code", "message", "hint"}


# ------------------------------------------------------------------ events


def follow(instance: Instance, *words: str) -> subprocess.Popen[str]:
    """Start a subscriber and wait until the kernel knows it."""
    command = [*KITE, *words, "--state-dir", str(instance.state)]
    process = subprocess.Popen(command, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        if instance.rows().get(f"kite-{process.pid}", {}).get("subscriptions"):
            return process
        time.sleep(0.02)
    process.kill()
    raise AssertionError("the subscriber did not come up")


def test_sub_prints_what_pub_publishes(instance: Instance) -> None:
    subscriber = follow(instance, "sub", "orders.>", "--count", "2", "--json")
    one = instance.kite("pub", "orders.created", '{"id":7}')
    assert (one.returncode, one.stdout) == (0, "delivered to 1\n")
    assert json.loads(instance.kite("pub", "orders.paid", "by=you", "--json").stdout)["delivered"] == 1
    out, err = subscriber.communicate(timeout=BOUND_S)
    assert (subscriber.returncode, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert [(event["event"], event["data"]) for event in events] == [
        ("orders.created", {"id": 7}),
        ("orders.paid", {"by": "you"}),
    ]


def test_sub_that_does_not_hear_enough_exits_1(instance: Instance) -> None:
    assert instance.kite("sub", "nothing.here", "--count", "1", "--timeout", "0.3").returncode == 1
    assert instance.kite("sub", "nothing.here", "--timeout", "0.3").returncode == 0


def test_events_shows_all_that_happens(instance: Instance) -> None:
    follower = follow(instance, "events", "-f")
    assert follower.stdout is not None
    instance.tester.publish("anything.at.all", 5)
    line = follower.stdout.readline()
    while "module." in line:  # commands of other tests come and go
        line = follower.stdout.readline()
    assert "anything.at.all 5" in line
    follower.terminate()
    follower.communicate(timeout=BOUND_S)


def test_a_reader_that_goes_away_ends_the_command_quietly(instance: Instance) -> None:
    follower = follow(instance, "sub", "flood.>")
    assert follower.stdout is not None
    instance.tester.publish("flood.1")
    follower.stdout.readline()
    follower.stdout.close()
    for _ in range(3):
        instance.tester.publish("flood.2")
        time.sleep(0.05)
    assert follower.wait(BOUND_S) == 0
    assert follower.stderr is not None
    assert follower.stderr.read() == ""
    follower.stderr.close()


def test_ctrl_c_leaves_no_traceback(instance: Instance) -> None:
    follower = follow(instance, "sub", "x.>")
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=BOUND_S)
    assert follower.returncode == 1
    assert err == ""


# ------------------------------------------------------------------ what is there


def test_methods_shows_parameters_and_docs(instance: Instance) -> None:
    done = instance.kite("methods", "echo")
    assert "echo.say(text: string, times: integer = 1)  Say it." in done.stdout.splitlines()
    rows = json.loads(instance.kite("methods", "echo", "--json").stdout)["methods"]
    assert {row["name"] for row in rows} == {"echo.say", "echo.count", "echo.refuse", "echo.health"}
    assert instance.kite("methods", "nobody").returncode == 1


def test_top_and_bench_print_tables_and_json(instance: Instance) -> None:
    assert "echo" in instance.kite("top", "--once").stdout
    assert json.loads(instance.kite("top", "--json").stdout)["schema"] == 1
    done = instance.kite("bench", "--seconds", "0.2", "--in-flight", "8", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 6
    assert all(row["per_s"] > 0 and row["p50_ms"] > 0 for row in rows)


def test_top_on_a_terminal_restores_it(instance: Instance) -> None:
    import termios

    near, far = pty.openpty()
    before = termios.tcgetattr(far)
    process = subprocess.Popen(
        [*KITE, "top", "--state-dir", str(instance.state)], env=clean_env(), stdin=far, stdout=far, stderr=far
    )
    shown = b""
    deadline = time.monotonic() + BOUND_S
    while b"echo" not in shown and time.monotonic() < deadline:
        if select.select([near], [], [], 0.2)[0]:
            shown += os.read(near, 65536)
    assert b"echo" in shown
    os.write(near, b"\x1b[A")  # an arrow key does not end it
    time.sleep(0.2)
    assert process.poll() is None
    os.write(near, b"\x1b")
    assert process.wait(BOUND_S) == 0
    assert termios.tcgetattr(far) == before
    os.close(near)
    os.close(far)


def test_version(instance: Instance) -> None:
    assert kite("version").stdout.startswith("kite ")
    assert kite("--version").stdout.startswith("kite ")
    assert json.loads(kite("version", "--json").stdout)["schema"] == 1


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cal"], "did you mean 'call'"),
        (["subb", "x"], "did you mean 'sub'"),
        (["call"], "call: "),
        (["call", "nodot"], "MODULE.METHOD"),
        (["call", "a.b", "{bad"], "no JSON"),
        (["call", "a.b", "7"], "object or an array"),
        (["call", "a.b", "--timeut", "3"], "did you mean '--timeout'"),
        (["call", "a.b", "--timeout", "soon"], "--timeout"),
        (["call", "a.b", "--token=S3CRET"], "no option '--token'"),
        (["sub", "a..b"], "no event pattern"),
        (["sub", "a", "--count", "0"], "--count"),
        (["pub"], "pub: "),
        (["pub", "e", "{x"], "no JSON"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_line_that_is_none_is_64_with_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words, "--state-dir", str(tmp_path)]
    assert main.run(words) == 64
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert len(shown.err.splitlines()) == 1
    assert "S3CRET" not in shown.err
    assert main.run([*words, "--json"]) == 64
    assert json.loads(capsys.readouterr().err)["error"]["code"] == 64


def test_no_instance_is_78_and_says_where_it_looked(tmp_path: Path) -> None:
    done = kite("call", "a.b", cwd=tmp_path)
    assert done.returncode == 78
    for word in ("--state-dir", "--config", "KITE_STATE_DIR", "KITE_CONFIG", str(tmp_path)):
        assert word in done.stderr


def test_nothing_running_is_3(tmp_path: Path) -> None:
    (tmp_path / "kite.toml").write_text('[instance]\nname = "lab"\n', "utf-8")
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert kite("call", "a.b", cwd=tmp_path, env=env).returncode == 3
    done = kite("sub", "a", "--json", cwd=tmp_path, env=env)
    assert json.loads(done.stderr)["error"]["code"] == 3


def test_a_dead_kernel_is_3_and_a_silent_one_69(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir(mode=0o700)
    (tokens / "operator").touch(mode=0o600)
    (tokens / "operator").write_text("t", "utf-8")
    dead = subprocess.Popen(["true"])
    dead.wait()
    kernel = {"url": "ws://127.0.0.1:9", "pid": dead.pid}
    (tmp_path / "kernel.json").write_text(json.dumps(kernel), "utf-8")
    os.chmod(tmp_path, 0o700)
    assert kite("call", "a.b", "--state-dir", str(tmp_path)).returncode == 3
    (tmp_path / "kernel.json").write_text(json.dumps({**kernel, "pid": os.getpid()}), "utf-8")
    done = kite("call", "a.b", "--state-dir", str(tmp_path))
    assert done.returncode == 69
    assert "does not answer" in done.stderr


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_directory_that_others_may_write_is_77(tmp_path: Path, mode: int) -> None:
    os.chmod(tmp_path, mode)
    done = kite("call", "a.b", "--state-dir", str(tmp_path))
    assert done.returncode == 77
    assert str(tmp_path) in done.stderr


def test_a_token_that_others_may_read_is_77(instance: Instance) -> None:
    path = instance.state / "tokens" / "operator"
    os.chmod(path, 0o644)
    try:
        done = instance.kite("call", "echo.health")
    finally:
        os.chmod(path, 0o600)
    assert done.returncode == 77
    assert f"chmod 600 {path}" in done.stderr


def test_another_instances_token_is_77(instance: Instance, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("wrong", "utf-8")
    done = kite("call", "a.b", env={"KITE_URL": instance.kernel.url, "KITE_TOKEN_FILE": str(token)}, cwd="/")
    assert done.returncode == 77


# ------------------------------------------------------------------ the rest


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    overview = capsys.readouterr().out
    for name in [*commands.OWN, *commands.LAUNCHER]:
        if name in commands.OWN and not commands._is_there(commands.OWN[name]):
            continue
        assert f"\n  {name} " in overview
    for name in ("call", "pub", "sub", "events", "methods", "top", "bench", "version"):
        assert main.run([name, "--help"]) == 0
        assert f"example: {commands.OWN[name].example}" in " ".join(capsys.readouterr().out.split())


def test_the_launchers_commands_are_the_launchers(tmp_path: Path) -> None:
    done = kite("status", cwd=tmp_path)
    assert done.returncode == 78
    assert done.stderr.startswith("kite-launch:")


def test_nothing_beside_the_file_is_imported(tmp_path: Path) -> None:
    """S-86."""
    for name in ("json", "trio", "msgspec", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('trace', 'w')", "utf-8")
    kite("call", "a.b", cwd=tmp_path)
    kite("status", cwd=tmp_path)
    assert not (tmp_path / "trace").exists()


def test_a_command_starts_fast_enough() -> None:
    """Nothing heavy is loaded before it is known to be needed."""
    heavy = "('trio', 'attrs', 'msgspec', 'rich', 'asyncio')"
    code = f"import sys; import kite_modules.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND_S, check=True)
    assert done.stdout.strip() == "[]"
