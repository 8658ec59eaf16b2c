"""The tools of chaos touch what they mean and nothing else."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from kite_modules.chaos import deeds
from kite_modules.chaos.look import Instance, alive, strike
from kite_modules.chaos.proxy import Proxy

MARK = secrets.token_hex(16)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "KITE_INSTANCE": MARK, "KITE_MODULE_ID": "alpha"}
    process = subprocess.Popen(["sleep", "300"], env=environ, start_new_session=True, stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait(10)


def test_processes_are_found_by_the_mark_and_the_name(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / "instance.id").write_text(MARK + "\n", "ascii")
    instance = Instance(tmp_path)
    assert instance.pid_of("alpha") == sleeper.pid
    assert instance.pid_of("beta") is None
    assert sleeper.pid in instance.marked()


def test_without_a_mark_nobody_is_found(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert Instance(tmp_path).leaders() == []
    assert Instance(tmp_path).launcher() is None
    assert Instance(tmp_path).status() is None
    assert alive(sleeper.pid)


def test_a_signal_reaches_a_living_process_once(sleeper: subprocess.Popen[bytes]) -> None:
    assert strike(sleeper.pid, signal.SIGKILL)
    sleeper.wait(10)
    assert not strike(sleeper.pid, signal.SIGKILL)


def test_a_zombie_is_dead_and_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    strike(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(sleeper.pid)
    assert not strike(sleeper.pid, signal.SIGTERM)


def test_filling_a_disk_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deeds, "FILL_MAX_BYTES", 3 * deeds.FILL_PIECE_BYTES)
    assert deeds.fill(tmp_path / "fill") == 3 * deeds.FILL_PIECE_BYTES


async def _echo(stream: trio.SocketStream) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


@pytest.fixture
async def proxied(nursery: trio.Nursery) -> Proxy:
    listeners = await nursery.start(partial(trio.serve_tcp, _echo, 0, host="127.0.0.1"))
    proxy = Proxy("127.0.0.1", listeners[0].socket.getsockname()[1])
    await nursery.start(proxy.run)
    return proxy


async def test_a_wire_passes_everything_until_it_is_cut(proxied: Proxy) -> None:
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", proxied.port) as wire:
            await wire.send_all(b"x" * 10)
            assert await wire.receive_some(10) == b"x" * 10
            proxied.cut()
            with contextlib.suppress(trio.BrokenResourceError):
                assert await wire.receive_some(10) == b""


async def test_a_torn_wire_gives_half_a_piece_and_ends(proxied: Proxy) -> None:
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", proxied.port) as wire:
            proxied.tear()
            await wire.send_all(b"0123456789")
            got = b""
            with contextlib.suppress(trio.BrokenResourceError):
                while data := await wire.receive_some(10):
                    got += data
            assert got == b"01234"


async def test_a_refusing_wire_lets_nobody_through(proxied: Proxy) -> None:
    proxied.refuse = True
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", proxied.port) as wire:
            with contextlib.suppress(trio.BrokenResourceError):
                assert await wire.receive_some(10) == b""


async def test_the_proxy_listens_on_loopback_only(proxied: Proxy) -> None:
    wanted = f":{proxied.port:04X} "
    lines = [line for line in _sockets() if wanted in line and " 0A " in line]
    assert [line.split()[1] for line in lines] == [f"0100007F:{proxied.port:04X}"]


def _sockets() -> list[str]:
    return Path("/proc/net/tcp").read_text("ascii").splitlines()
