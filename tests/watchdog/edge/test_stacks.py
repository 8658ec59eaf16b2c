"""What a hung module was doing is kept, and nobody who did not ask for it gets a signal. Source: spec 60 §1."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
import trio

from kite_watchdog.edge import stacks
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.peer import Peer
from kite_watchdog.edge.stacks import StackKeeper

MARK = secrets.token_hex(16)
HANGS = """\
import faulthandler, os, signal, sys, time
folder = sys.argv[1]
if folder:
    file = open(os.path.join(folder, "stacks.txt"), "a")
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)

def where_it_hangs():
    print("up", flush=True)
    time.sleep(600)

where_it_hangs()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "modules" / "x"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def keeper(tmp_path: Path) -> StackKeeper:
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    link = Link("ws://127.0.0.1:1", "t", module_id="watchdog", methods=(), peer=Peer(), log=log)
    return StackKeeper(tmp_path, link=link, instance=MARK, log=log)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def one(listens: str, **environ: str) -> subprocess.Popen[str]:
        variables = {**os.environ, "KITE_INSTANCE": MARK, "KITE_MODULE_ID": "x", **environ}
        argv = [sys.executable, "-c", HANGS, listens]
        process = subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _text(path: str | None) -> str:
    assert path is not None
    return Path(path).read_text("utf-8")


async def test_the_line_where_it_hangs_is_kept(keeper: StackKeeper, folder: Path, start: Start) -> None:
    process = start(str(folder))
    with trio.fail_after(30):
        kept = _text(await keeper.keep("x", methods=(), pid=process.pid))
    assert "where_it_hangs" in kept
    assert f"thread {process.pid}:" in kept
    assert process.poll() is None


async def test_a_module_that_does_not_listen_gets_no_signal(keeper: StackKeeper, folder: Path, start: Start) -> None:
    process = start("")
    (folder / "stacks.txt").touch()  # somebody says that it listens, and it doesn't: SIGUSR2 would end it
    kept = _text(await keeper.keep("x", methods=(), pid=process.pid))
    assert "where_it_hangs" not in kept
    assert f"thread {process.pid}:" in kept
    assert process.poll() is None


async def test_a_stopped_module_is_told_by_its_state(keeper: StackKeeper, folder: Path, start: Start) -> None:
    process = start(str(folder))
    process.send_signal(signal.SIGSTOP)
    with trio.fail_after(30):
        while "T (stopped)" not in stacks.threads(process.pid):
            await trio.sleep(0.01)
        assert "T (stopped)" in _text(await keeper.keep("x", methods=(), pid=process.pid))


@pytest.mark.parametrize("other", [{"KITE_INSTANCE": "another"}, {"KITE_MODULE_ID": "y"}])
async def test_a_stranger_is_never_touched(
    keeper: StackKeeper, folder: Path, start: Start, other: dict[str, str]
) -> None:
    process = start(str(folder), **other)
    assert await keeper.keep("x", methods=(), pid=process.pid) is None
    assert (folder / "stacks.txt").read_text("utf-8") == ""
    assert process.poll() is None


@pytest.mark.parametrize("name", ["..", ".", "a/b", "nosuch", "x\0"])
async def test_no_name_leads_out_of_the_modules_directory(
    keeper: StackKeeper, folder: Path, start: Start, name: str
) -> None:
    assert await keeper.keep(name, methods=(), pid=start(str(folder)).pid) is None


async def test_only_the_newest_reports_are_kept(keeper: StackKeeper, folder: Path, start: Start) -> None:
    process = start("")
    for _ in range(stacks.FILES_KEPT + 5):
        assert await keeper.keep("x", methods=(), pid=process.pid)
    kept = [name for name in os.listdir(folder) if name.startswith("stacks-")]
    assert len(kept) == stacks.FILES_KEPT


async def test_a_directory_that_can_not_be_written_is_said_and_no_failure(
    keeper: StackKeeper, folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stacks, "_write", full)
    assert await keeper.keep("x", methods=(), pid=start("").pid) is None


async def test_a_tool_that_is_there_is_asked(
    keeper: StackKeeper, folder: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "py-spy saw $*"\n', "utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    process = start("")
    assert f"py-spy saw dump --nonblocking --pid {process.pid}" in _text(
        await keeper.keep("x", methods=(), pid=process.pid)
    )


def test_a_process_that_is_gone_has_no_threads() -> None:
    assert stacks.threads(2**22) == ""
