"""`kite.own` over real processes: killed, stopped past expiry, asked to end; one writer, nothing lost or doubled."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.client import dropped_after
from tests.support.kernel_process import KernelProcess

PROGRAM = Path(__file__).parent / "programs" / "writer.py"
SCALE = 0.15  # expiry 4.5 s, quiet 0.75 s, lease 4.5 s
WAIT_S = 30.0
ASKERS = itertools.count()  # each question comes as another module: the rate limit counts them one by one


ROLES = {"r1": "module", "r2": "module", "o": "operator"}


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelProcess]:
    with KernelProcess(tmp_path, ROLES, scale=SCALE) as running:
        yield running


@pytest.fixture
def patient_kernel(tmp_path: Path) -> Iterator[KernelProcess]:
    """One whose replicas outlive the slowest restart of a kernel."""
    with KernelProcess(tmp_path, ROLES) as running:
        yield running


def start(kernel: KernelProcess, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    token_file = kernel.folder / f"{name}.token"
    token_file.touch(mode=0o600)
    token_file.write_text(kernel.tokens[name], "utf-8")
    env = {**os.environ, "KITE_URL": kernel.url, "KITE_MODULE_ID": name, "KITE_TOKEN_FILE": str(token_file)}
    log = (kernel.folder / f"{name}.log").open("ab")
    with log:
        return subprocess.Popen([sys.executable, "-P", PROGRAM, *arguments], env=env, stdout=log, stderr=log)


def ask(kernel: KernelProcess, method: str, **params: Any) -> Any:
    async def call() -> Any:
        async with dropped_after(f"{kernel.url}/ws") as wire:
            auth = {"token": kernel.tokens["o"], "module_id": f"asker{next(ASKERS)}"}
            for number, (name, given) in enumerate((("auth", auth), (method, params))):
                request = {"jsonrpc": "2.0", "id": number, "method": name, "params": given}
                await wire.send_message(json.dumps(request))
            while True:
                answer = json.loads(await wire.get_message())
                if answer.get("id") == 1:
                    return answer.get("result", answer.get("error"))

    return trio.run(call)


def until(what: Callable[[], Any]) -> Any:
    due = time.monotonic() + WAIT_S
    while time.monotonic() < due:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"never came true; last: {found!r}")


def items(kernel: KernelProcess) -> list[str]:
    return [item["id"] for item in ask(kernel, "ownership.get", key="k").get("data", {}).get("items", [])]


def at_least(kernel: KernelProcess, count: int) -> Callable[[], bool]:
    return lambda: len(items(kernel)) >= count


@pytest.mark.parametrize("how", ["kill", "stop", "term"])
def test_another_replica_goes_on_where_the_lost_one_stood(kernel: KernelProcess, how: str) -> None:
    with ExitStack() as stack:
        first = start(kernel, "r1", "k")
        stack.callback(first.wait)
        stack.callback(first.kill)
        until(at_least(kernel, 5))
        second = start(kernel, "r2")
        stack.callback(second.wait)
        stack.callback(second.kill)
        until(lambda: len(ask(kernel, "replica.list")["replicas"]) == 2)
        owner = ask(kernel, "ownership.get", key="k")["owner"]["replica_id"]
        if how == "kill":
            first.kill()
        elif how == "stop":
            first.send_signal(signal.SIGSTOP)
        else:
            first.terminate()
            assert first.wait(20) == 0
        before = len(items(kernel))
        until(lambda: (ask(kernel, "ownership.get", key="k")["owner"] or {"replica_id": owner})["replica_id"] != owner)
        if how == "stop":
            first.send_signal(signal.SIGCONT)
            assert first.wait(20) != 0  # fenced: it ends by itself, and a launcher would start it under a new id
        until(at_least(kernel, before + 5))
        assert ask(kernel, "ownership.get", key="k")["epoch"] == 2
        found = items(kernel)
        assert found == [f"m{number}" for number in range(1, len(found) + 1)]
        causes = {row["cause"] for row in ask(kernel, "recovery.list")["recoveries"]}
        assert causes == {"shutdown" if how == "term" else "lost"}


def test_a_killed_kernel_costs_an_owner_nothing(patient_kernel: KernelProcess) -> None:
    kernel = patient_kernel
    with ExitStack() as stack:
        first = start(kernel, "r1", "k")
        stack.callback(first.wait)
        stack.callback(first.kill)
        until(at_least(kernel, 5))
        kernel.kill()
        kernel.start()
        before = len(items(kernel))
        until(at_least(kernel, before + 5))
        found = items(kernel)
        assert found == [f"m{number}" for number in range(1, len(found) + 1)]
        assert ask(kernel, "ownership.get", key="k")["epoch"] == 1
        assert first.poll() is None
