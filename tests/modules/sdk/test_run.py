"""Modules as real processes at a real kernel: exit codes, the users' log lines, kill -9 of the kernel.

Source: spec 10-wire §4, 05-surface §4 and §8, cases W-53, W-54.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from tests.support.kernel_process import KernelProcess

from kite_modules.cli.connection import connected
from kite_modules.cli.instance import Target
from kite_modules.sdk import CallError, Kite

BOUND_S = 30.0
SOURCE = """
import trio
from kite_modules.sdk import Kite, Module
module = Module("a")
@module.method
async def pid() -> int:
    import os
    return os.getpid()
@module.method
async def nap(seconds: float) -> str:
    await trio.sleep(seconds)
    return "slept"
@module.on_shutdown
async def farewell(reason):
    print("farewell", reason, flush=True)
{extra}
module.run({main})
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelProcess]:
    folder = tmp_path_factory.mktemp("kernel")
    with KernelProcess(folder, {"a": "module", "o": "operator"}, scale=0.2) as running:
        yield running


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    for process in started:
        process.kill()
        process.communicate()
    started.clear()


class Process:
    """One module's process."""

    def __init__(
        self, folder: Path, *, url: str, token: str | None, extra: str = "", main: str = "", source: str = ""
    ) -> None:
        script = folder / "module.py"
        script.write_text((source or SOURCE).format(extra=extra, main=main), "utf-8")
        env = {key: value for key, value in os.environ.items() if not key.startswith("KITE_")}
        env |= {"KITE_URL": url, "KITE_MODULE_ID": "a", "PYTHONUNBUFFERED": "1"}
        given = []
        if token is not None:
            reading, writing = os.pipe()
            os.write(writing, token.encode())
            os.close(writing)
            env["KITE_TOKEN_FD"] = str(reading)
            given = [reading]
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            env=env,
            pass_fds=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(self.process)
        for descriptor in given:
            os.close(descriptor)

    def end(self, *, within_s: float = BOUND_S) -> tuple[int, str, str]:
        """Wait for its end; returns exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, out, err


def with_kite(kernel: KernelProcess, work: object) -> None:
    """Run `work(kite)` as an operator."""

    async def main() -> None:
        target = Target(kernel.url, kernel.tokens["o"], None, None)
        with trio.fail_after(BOUND_S):
            async with connected(target) as kite:
                await work(kite)  # type: ignore[operator]

    trio.run(main)


async def ready(kite: Kite) -> int:
    """Wait until module a answers; returns its pid."""
    while True:
        rows = {row["module_id"]: row["state"] for row in (await kite.call("registry.list_modules"))["modules"]}
        if rows.get("a") == "ready":
            with suppress(CallError):  # the one before it was still leaving
                return int(await kite.call("a.pid"))
        await trio.sleep(0.02)


def test_term_ends_a_module_in_order(kernel: KernelProcess, tmp_path: Path) -> None:
    module = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"])

    async def work(kite: Kite) -> None:
        pid = await ready(kite)
        async with kite.subscribe("module.exiting") as events:
            os.kill(pid, signal.SIGTERM)
            assert (await anext(events)).data["module_id"] == "a"

    with_kite(kernel, work)
    code, out, err = module.end()
    assert (code, out) == (0, "farewell done\n")
    assert "Traceback" not in err


def test_a_shutdown_by_the_kernel_ends_it_with_0(kernel: KernelProcess, tmp_path: Path) -> None:
    module = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"])

    async def work(kite: Kite) -> None:
        await ready(kite)
        await kite.call("kernel.shutdown_module", {"module_id": "a", "reason": "module_stop", "deadline_s": 5})

    with_kite(kernel, work)
    code, out, _ = module.end()
    assert (code, out) == (0, "farewell module_stop\n")


def test_a_wrong_token_is_one_try_one_line_and_exit_1(kernel: KernelProcess, tmp_path: Path) -> None:
    """W-53."""
    code, _, err = Process(tmp_path, url=kernel.url, token="SECRET-wrong-token").end()
    assert code == 1
    lines = [line for line in err.splitlines() if "[module] 致命错误 (code 4001)，退出" in line]
    assert len(lines) == 1
    assert "ERROR" in lines[0]
    assert "SECRET" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("url", "token", "code", "said"),
    [
        ("", "x", 78, "KITE_URL"),
        ("ws://127.0.0.1:1", None, 78, "no token"),
        ("ws://127.0.0.1:1", "", 78, "token is empty"),
        ("http://127.0.0.1:1", "x", 1, "url must begin"),
    ],
)
def test_what_is_missing_is_said_in_one_line(tmp_path: Path, url: str, token: str | None, code: int, said: str) -> None:
    found, _, err = Process(tmp_path, url=url, token=token).end()
    assert found == code
    assert said in err
    assert len(err.splitlines()) == 1


def test_main_ends_the_module_and_a_failing_one_says_where(kernel: KernelProcess, tmp_path: Path) -> None:
    good = "async def main(kite):\n    print(await kite.call('a.nap', {'seconds': 0}), flush=True)"
    code, out, _ = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"], extra=good, main="main").end()
    assert (code, out) == (0, "slept\nfarewell done\n")
    bad = "async def main(kite):\n    raise RuntimeError('it broke')"
    code, _, err = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"], extra=bad, main="main").end()
    assert code == 1
    assert "RuntimeError: it broke" in err
    assert "module.py" in err
    assert "Traceback" not in err


def test_kill_9_of_the_kernel_is_survived(kernel: KernelProcess, tmp_path: Path) -> None:
    """W-54: the module comes back by itself, and was the same process all the time."""
    module = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"])
    pids: list[int] = []

    async def work(kite: Kite) -> None:
        pids.append(await ready(kite))

    with_kite(kernel, work)
    kernel.kill()
    time.sleep(0.3)
    kernel.start()
    with_kite(kernel, work)
    assert pids == [module.process.pid] * 2
    module.process.terminate()
    code, _, err = module.end()
    assert code == 0
    assert len([line for line in err.splitlines() if "connection lost" in line]) == 1
    assert "Traceback" not in err


def test_two_signals_end_it_at_once(kernel: KernelProcess, tmp_path: Path) -> None:
    module = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"])

    async def work(kite: Kite) -> None:
        pid = await ready(kite)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_call_quietly, kite)
            await trio.sleep(0.3)
            os.kill(pid, signal.SIGTERM)
            await trio.sleep(0.3)
            os.kill(pid, signal.SIGTERM)
            nursery.cancel_scope.cancel()

    start = time.monotonic()
    with_kite(kernel, work)
    module.end()
    assert time.monotonic() - start < BOUND_S


def test_a_stopping_kernel_is_waited_for_and_its_successor_served(kernel: KernelProcess, tmp_path: Path) -> None:
    """`module.shutdown {kernel_stop}`: acked, left with 1000, come back to by the table."""
    module = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"])

    async def work(kite: Kite) -> None:
        assert await ready(kite) == module.process.pid

    with_kite(kernel, work)
    start = time.monotonic()
    assert kernel.stop() == 0
    assert time.monotonic() - start < 10  # nobody had to be waited for
    kernel.start()
    with_kite(kernel, work)
    module.process.terminate()
    code, out, _ = module.end()
    assert (code, out) == (0, "farewell done\n")


LOOPS = {
    "aio": """
import asyncio, os, threading
from kite_modules.sdk.aio import Module
module = Module("a")
@module.method
async def pid() -> int:
    await asyncio.sleep(0)
    return os.getpid()
@module.task
async def tick(kite):
    while True:
        await kite.publish("tick", 1)
        await asyncio.sleep(0.05)
@module.on_shutdown
async def farewell(reason):
    print("farewell", reason, flush=True)
module.run({main})
""",
    "threads": """
import os, threading
from kite_modules.sdk.threads import Module
module = Module("a")
@module.method
def pid() -> int:
    assert threading.current_thread() is not threading.main_thread()
    return os.getpid()
@module.task
def tick(kite):
    while not kite.stopping.wait(0.05):
        kite.publish("tick", 1)
@module.on_shutdown
def farewell(reason):
    print("farewell", reason, flush=True)
module.run({main})
""",
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("end", ["signal", "shutdown"])
def test_other_loops_run_as_processes_too(kernel: KernelProcess, tmp_path: Path, loop: str, end: str) -> None:
    module = Process(tmp_path, url=kernel.url, token=kernel.tokens["a"], source=LOOPS[loop])

    async def work(kite: Kite) -> None:
        pid = await ready(kite)
        async with kite.subscribe("tick") as ticks:
            assert (await anext(ticks)).source == "a"
        if end == "signal":
            os.kill(pid, signal.SIGTERM)
        else:
            await kite.call("kernel.shutdown_module", {"module_id": "a", "reason": "module_stop", "deadline_s": 5})

    with_kite(kernel, work)
    code, out, err = module.end()
    assert (code, out) == (0, f"farewell {'done' if end == 'signal' else 'module_stop'}\n"), err
    assert "Traceback" not in err


@pytest.mark.parametrize("loop", LOOPS)
def test_other_loops_end_with_a_wrong_token_as_well(kernel: KernelProcess, tmp_path: Path, loop: str) -> None:
    code, _, err = Process(tmp_path, url=kernel.url, token="wrong", source=LOOPS[loop]).end()
    assert code == 1
    assert "[module] 致命错误 (code 4001)，退出" in err
    assert "Traceback" not in err


async def _call_quietly(kite: Kite) -> None:
    await kite.call("a.nap", {"seconds": 60}, timeout=60)
