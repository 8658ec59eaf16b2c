"""Cases that need a kernel of its own process: signals, files, descriptors, memory (W-39, W-44, W-57 to W-59, X-09 to
X-12, X-39, X-40)."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.kernel_process import KernelProcess
from tests.support.raw_peer import RawPeer, head_of, http, is_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BOUND_S = 40.0


class Crowd:
    """Raw modules on a kernel process, closed with the block."""

    def __init__(self, kernel: KernelProcess, nursery: trio.Nursery) -> None:
        self.kernel = kernel
        self.nursery = nursery
        self.peers: list[RawPeer] = []

    async def connect(self, name: str, **params: Any) -> RawPeer:
        peer = await RawPeer.connect(self.nursery, self.kernel.ready["port"])
        self.peers.append(peer)
        await peer.auth(self.kernel.tokens[name], name, instance=f"{name}-1", **params)
        return peer

    async def ready(self, name: str, methods: tuple[str, ...] = ("echo",), events: tuple[str, ...] = ()) -> RawPeer:
        peer = await self.connect(name)
        await peer.become_ready(methods, events)
        return peer


@asynccontextmanager
async def crowd(kernel: KernelProcess) -> AsyncIterator[Crowd]:
    async with trio.open_nursery() as nursery:
        on = Crowd(kernel, nursery)
        try:
            with trio.fail_after(BOUND_S * 2):
                yield on
        finally:
            nursery.cancel_scope.cancel()
            for peer in on.peers:
                assert isinstance(peer.stream, trio.SocketStream)
                peer.stream.socket.close()


def modules(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "module") | {"o": "operator"}


def memory_bytes(pid: int, row: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{row}:"))


def reset_peak(pid: int) -> None:
    """Let VmHWM begin again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")


def pid_of(kernel: KernelProcess) -> int:
    assert kernel.process is not None
    return kernel.process.pid


async def exit_code(kernel: KernelProcess, within_s: float) -> int:
    assert kernel.process is not None
    with trio.fail_after(within_s):
        while (code := kernel.process.poll()) is None:
            await trio.sleep(0.05)
    return code


def no_traceback(kernel: KernelProcess) -> str:
    log = kernel.log.read_text("utf-8")
    assert "Traceback" not in log
    assert not any(token in log for token in kernel.tokens.values())
    return log


# --- signals ---


async def test_w44_a_stopped_kernel_blames_nobody_and_a_stopped_module_is_found(tmp_path: Path) -> None:
    names = [f"m{n}" for n in range(40)]
    with KernelProcess(tmp_path, modules("a", *names), scale=0.2) as kernel:
        async with crowd(kernel) as on:
            peers = [await on.ready(name) for name in names]
            a = await on.ready("a")
            assert "result" in await a.call("kernel.info", {})
            os.kill(pid_of(kernel), signal.SIGSTOP)
            await trio.sleep(4)  # twenty seconds, scaled
            os.kill(pid_of(kernel), signal.SIGCONT)
            await trio.sleep(3)
            closed = (await (await on.connect("o")).result("kernel.closed", {}))["closed"]
            assert closed == []
            assert [peer.closed for peer in peers] == [None] * len(peers)
            log = no_traceback(kernel)
            assert "ping timeout" not in log
            assert len(re.findall(r"\[kernel\].*\b[34]\.\d+", log)) >= 1  # one line says how long it was away
            peers[0].stop_reading()
            with trio.fail_after(BOUND_S):
                while not closed:  # calls keep the quick interval of pings
                    ident = await peers[1].ask("m2.echo", {})
                    await peers[2].reply(await peers[2].request("echo"), None)
                    await peers[1].answer_to(ident)
                    await trio.sleep(0.2)
                    closed = (await on.peers[-1].result("kernel.closed", {}))["closed"]
            assert [(row["module_id"], row["code"]) for row in closed] == [("m0", 4012)]


async def test_w58_sigterm_says_shutdown_waits_for_the_polite_and_cuts_the_rest(tmp_path: Path) -> None:
    with KernelProcess(tmp_path, modules("polite", "mute", "deaf"), scale=0.2) as kernel:
        async with crowd(kernel) as on:
            polite, mute, deaf = [await on.ready(name) for name in ("polite", "mute", "deaf")]
            deaf.stop_reading()
            began = trio.current_time()
            os.kill(pid_of(kernel), signal.SIGTERM)
            told = (await polite.event("module.shutdown"))["data"]
            assert told["reason"] == "kernel_stop"
            assert told["deadline_s"] == pytest.approx(2.0)
            status, headers, _ = await http(kernel.ready["port"], head_of("/ws"))
            assert status == 503
            assert headers["retry-after"]
            await polite.notify("module.shutdown_ack", {"module_id": "polite"})
            await polite.goodbye()
            assert (await mute.end(BOUND_S)).code == 1001
            assert trio.current_time() - began > 1.5
            assert await exit_code(kernel, BOUND_S) == 0
        no_traceback(kernel)


async def test_w58_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with KernelProcess(tmp_path, modules("mute")) as kernel:
        async with crowd(kernel) as on:
            mute = await on.ready("mute")
            os.kill(pid_of(kernel), signal.SIGTERM)
            await mute.event("module.shutdown")
            os.kill(pid_of(kernel), signal.SIGTERM)
            assert await exit_code(kernel, 8) == 0  # ten seconds would have been the deadline
        no_traceback(kernel)


def run_kernel(*arguments: object, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "kite_kernel.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)


def test_w59_a_taken_port_and_a_taken_state_directory_are_refused_by_name(tmp_path: Path) -> None:
    with KernelProcess(tmp_path, modules("a")) as kernel:
        port = kernel.ready["port"]
        taken = run_kernel("--standalone", "--port", port, "--state-dir", tmp_path / "other")
        assert taken.returncode == 69
        assert str(port) in taken.stderr
        again = run_kernel("--standalone", "--port", 0, "--state-dir", tmp_path / "state")
        assert again.returncode == 75
        assert str(pid_of(kernel)) in again.stderr
        assert "Traceback" not in taken.stderr + again.stderr
        assert taken.stdout + again.stdout == ""
        assert json.loads((tmp_path / "state" / "kernel.json").read_text("utf-8"))["pid"] == pid_of(kernel)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def walk(token: str, name: str) -> bytes:
    """Return the frames of a module's whole walk to ready, after its upgrade."""
    auth = {"token": token, "module_id": name, "instance": f"{name}-1", "protocol": 2}
    steps = [
        ("auth", auth),
        ("event.subscribe", {"events": []}),
        ("registry.register", {"methods": ["echo"]}),
        ("event.publish", {"event": "module.ready", "data": {}}),
    ]
    calls = ({"jsonrpc": "2.0", "id": f"step-{n}", "method": m, "params": p} for n, (m, p) in enumerate(steps))
    return b"".join(client_frame(json.dumps(call).encode()) for call in calls)


async def stay_ready(port: int, frames: bytes, told: list[str], arrived: trio.Event, gone: trio.Event) -> None:
    """Be a module that comes back by the strategy table and reads everything without parsing it."""
    delay_s = 0.5
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(head_of("/ws"))
                head = await stream.receive_some(4096)
                if b" 101 " not in head:
                    told.append(head.decode("latin-1"))
                    raise OSError
                await stream.send_all(frames)
                data = b""
                while b'"step-3"' not in data:
                    piece = await stream.receive_some(1 << 18)
                    if not piece:
                        told.append(data[-200:].decode("latin-1"))
                        raise OSError
                    data = data[-200:] + piece
                arrived.set()
                while await stream.receive_some(1 << 20):
                    await trio.sleep(1)  # the others' thousand events come in few pieces
        except (OSError, trio.BrokenResourceError):
            pass
        if arrived.is_set():
            gone.set()
            return
        await trio.sleep(delay_s)
        delay_s = min(delay_s * 2, 10)


async def test_w57_a_thousand_modules_are_back_after_a_kernel_restart(tmp_path: Path) -> None:
    names = [f"m{n}" for n in range(1000)]
    with KernelProcess(tmp_path, modules(*names)) as kernel:
        port = kernel.ready["port"]
        walks = [walk(kernel.tokens[name], name) for name in names]
        told: list[str] = []

        async def arrive(nursery: trio.Nursery, some: list[bytes]) -> tuple[float, list[trio.Event]]:
            began = trio.current_time()
            ends = [(trio.Event(), trio.Event()) for _ in some]
            for frames, (arrived, gone) in zip(some, ends, strict=True):
                nursery.start_soon(stay_ready, port, frames, told, arrived, gone)
            with trio.fail_after(BOUND_S * 2):
                for arrived, _ in ends:
                    await arrived.wait()
            return trio.current_time() - began, [gone for _, gone in ends]

        async with crowd(kernel) as on:
            _, gone = await arrive(on.nursery, walks[:50])  # what was there before is gone with the process
            kernel.kill()
            for event in gone:
                await event.wait()
            kernel.start()
            told.clear()
            took_s, _ = await arrive(on.nursery, walks)
            listed = (await (await on.connect("o")).result("registry.list_modules", {}))["modules"]
            assert {row["module_id"] for row in listed if row["state"] == "ready"} == set(names)
            assert [text for text in told if "4020" in text or "4012" in text] == []
            assert took_s < 15 * slowness()
        no_traceback(kernel)


def slowness() -> float:
    """Return how much slower this machine is now than a free one: others may be at work on it."""
    began = time.perf_counter()
    sum(range(3_000_000))
    return max(1.0, (time.perf_counter() - began) / 0.08) * 2


# --- files ---


def write_tokens(kernel: KernelProcess, text: str) -> None:
    (kernel.folder / "tokens.toml").write_text(text, "utf-8")
    os.kill(pid_of(kernel), signal.SIGHUP)


async def test_x09_a_token_that_left_the_file_closes_all_its_wires_and_a_broken_file_changes_nothing(
    tmp_path: Path,
) -> None:
    with KernelProcess(tmp_path, modules("a", "b", "c"), config="[streams.ticks]\nring = 10\n") as kernel:
        async with crowd(kernel) as on:
            a, b, c = [await on.ready(name) for name in ("a", "b", "c")]
            bearer = [*UPGRADE_FIELDS, ("Authorization", f"Bearer {kernel.tokens['b']}")]
            sub = await RawPeer.connect(on.nursery, kernel.ready["port"], "/sub/ticks", bearer)
            pub = await RawPeer.connect(on.nursery, kernel.ready["port"], "/pub/ticks", bearer)
            on.peers += [sub, pub]
            ident = await a.ask("b.echo", {})
            await b.request("echo")
            whole = (kernel.folder / "tokens.toml").read_text("utf-8")
            write_tokens(kernel, "[broken\ntoken = 5")
            await c.settle()
            with trio.fail_after(BOUND_S):
                while "TOML" not in kernel.log.read_text("utf-8"):
                    await trio.sleep(0.05)
            assert b.closed is None
            rows = whole.split("[")
            write_tokens(kernel, "[".join(row for row in rows if not row.startswith('"b"')))
            assert (await b.end(3)).code == 4001
            assert (await b.notice("bye"))["verdict"] == "never"
            assert {(await peer.end(3)).code for peer in (sub, pub)} == {4001}
            error = (await a.answer_to(ident))["error"]
            assert (error["code"], error["data"]["outcome"]) == (-32002, "unknown")
            assert (a.closed, c.closed) == (None, None)
        no_traceback(kernel)


UPGRADE_FIELDS = [
    ("Host", "127.0.0.1"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
]
GOOD = '[a]\ntoken = "secret-canary-1"\nrole = "module"\n'


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("mode 0644", 77),
        ("link", 77),
        ("fifo", 77),
        ("directory", 77),
        ("empty", 78),
        ("bad TOML", 78),
        ("no role", 78),
    ],
)
def test_x10_a_wrong_tokens_file_stops_the_start_at_once(tmp_path: Path, kind: str, code: int) -> None:
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    path.write_text(GOOD, "utf-8")
    if kind == "mode 0644":
        path.chmod(0o644)
    elif kind == "link":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    elif kind == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.unlink()
        path.mkdir(0o700)
    else:
        path.write_text(
            {
                "empty": "",
                "bad TOML": '[a]\ntoken = "secret-canary-2\n',
                "no role": '[a]\ntoken = "secret-canary-3"\nrole = "king"\n',
            }[kind],
            "utf-8",
        )
    done = run_kernel("--standalone", "--tokens", path, "--state-dir", tmp_path / "state", "--port", 0)
    assert done.returncode == code
    assert str(path) in done.stderr
    assert "canary" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if kind == "mode 0644":
        assert f"chmod 600 {path}" in done.stderr


async def test_x12_files_and_sockets_are_private_under_any_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with KernelProcess(tmp_path, modules("a")) as kernel:
            async with crowd(kernel) as on:
                await on.ready("a")
                state = tmp_path / "state"
                for path in (state, *state.rglob("*")):
                    mode = stat.S_IMODE(path.lstat().st_mode)
                    assert mode & 0o077 == 0, f"{path} {mode:o}"
    finally:
        os.umask(old)


# --- memory and descriptors ---


async def test_x39_declared_gigabytes_take_no_memory(tmp_path: Path) -> None:
    with KernelProcess(tmp_path, modules("a")) as kernel:
        async with crowd(kernel) as on:
            await on.ready("a")
            before = memory_bytes(pid_of(kernel))
            for _ in range(64):
                peer = await RawPeer.connect(on.nursery, kernel.ready["port"])
                on.peers.append(peer)
                await peer.send_bytes(b"\x81\xff" + (1 << 30).to_bytes(8, "big") + b"mask" + b"x" * 10)
            for peer in on.peers[1:]:
                assert (await peer.end(BOUND_S)).code == 1009
            assert memory_bytes(pid_of(kernel)) - before < 5_000_000


async def test_w39_memory_stays_within_the_queues_bound(tmp_path: Path) -> None:
    queue_bytes = 8 << 20
    with KernelProcess(tmp_path, modules("a", "b", "c"), config="[kernel]\nqueue_messages = 100000\n") as kernel:
        async with crowd(kernel) as on:
            a = await on.ready("a", events=("x.>",))
            b = await on.ready("b", events=("x.>",))
            c = await on.ready("c")
            note = {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "x.t", "data": "y" * 1000}}
            burst = client_frame(json.dumps(note).encode()) * 200
            for _ in range(60):  # what is kept for resume is full from here on, for everybody
                await c.send_bytes(burst)
                await c.settle()
                await a.settle()
            reset_peak(pid_of(kernel))
            before = memory_bytes(pid_of(kernel))
            a.stop_reading()
            for _ in range(250):
                await c.send_bytes(burst)
                await c.settle()
            await b.settle()
            assert len([m for m in b.take() if is_event("x.t")(m)]) == 310 * 200
            rows = (await (await on.connect("o")).result("kernel.closed", {}))["closed"]
            assert [(row["module_id"], row["code"]) for row in rows] == [("a", 4011)]
            assert memory_bytes(pid_of(kernel), "VmHWM") - before < queue_bytes + 20_000_000


async def test_x40_without_descriptors_the_kernel_says_no_spins_not_and_comes_back(tmp_path: Path) -> None:
    with KernelProcess(tmp_path, modules("a", "b")) as kernel:
        async with crowd(kernel) as on:
            a = await on.ready("a")
            resource.prlimit(pid_of(kernel), resource.RLIMIT_NOFILE, (64, 64))
            socks = []
            for _ in range(200):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", kernel.ready["port"]))
                sock.send(b"GET /ws HTT")
                socks.append(sock)
            await trio.sleep(0.5)
            cpu_before, began = cpu_s(pid_of(kernel)), trio.current_time()
            await trio.sleep(2)
            assert (cpu_s(pid_of(kernel)) - cpu_before) / (trio.current_time() - began) < 0.2
            assert "version" in await a.result("kernel.info", {})
            for sock in socks:
                sock.close()
            with trio.fail_after(BOUND_S):
                while True:
                    try:
                        b = await on.ready("b")
                        break
                    except (OSError, AssertionError, trio.BrokenResourceError):
                        await trio.sleep(0.2)
            ident = await a.ask("b.echo", {})
            await b.reply(await b.request("echo"), "works again")
            assert (await a.answer_to(ident))["result"] == "works again"
        no_traceback(kernel)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
