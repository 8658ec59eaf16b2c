"""A real kernel and a real watchdog, with a launcher that the test plays: half an instance, for the rows of spec 60 §2.

The recorded command is a small program that writes down that it was started, with its arguments and environment
names, and then does what the test wrote into `verdict`: an exit code, or `lock` to behave like a launcher that holds
the instance's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import trio
from tests.support.kernel_process import KernelProcess
from tests.support.lab import boot_id, kill, start_ticks
from tests.support.raw_peer import RawPeer

BOUND_S = 30.0
RECORDER = """\
import fcntl, json, os, sys, time
folder = sys.argv[1]
line = json.dumps({"argv": sys.argv, "env": sorted(os.environ), "at": time.time(), "cwd": os.getcwd(),
                   "starts": len(json.load(open(os.path.join(folder, "restarts.json")))["starts"]),
                   "sid": os.getsid(0), "pid": os.getpid()})
with open(os.path.join(folder, "started.jsonl"), "a") as file:
    file.write(line + "\\n")
verdict = open(os.path.join(folder, "verdict")).read().strip()
if verdict == "lock":
    lock = open(os.path.join(folder, "instance.lock"), "a+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    time.sleep(30)
print("the start says", verdict, file=sys.stderr)
sys.exit(int(verdict))
"""


class WatchdogBox:
    """`async with WatchdogBox(folder, scale=0.05).running() as box: …`."""

    def __init__(self, folder: Path, *, scale: float = 0.1, restarts: int = 5, health: Any = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        roles = {"launcher": "launcher", "watchdog": "watchdog", "ears": "module", "x": "module", "op": "operator"}
        self.folder, self.scale = folder, scale
        self.state = folder / "state"
        self.state.mkdir(mode=0o700, exist_ok=True)
        # The 35 s rule shortened further: here it matters what follows, the real times are shown elsewhere.
        self.kernel = KernelProcess(folder, roles, scale=scale, standalone=False, config='launcher_grace = "12s"\n')
        self.options: dict[str, Any] = {
            "restarts": restarts,
            "within_s": 600,
            "scale": scale,
            "debounce_s": 5 * scale,
            "health": {"x": 15 * scale} if health is None else health,
        }
        (folder / "recorder.py").write_text(RECORDER, "utf-8")
        self.verdict("0")
        self.nursery: trio.Nursery
        self._peers: list[RawPeer] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self.log = folder / "watchdog.err"
        self.launcher = self._child(["sleep", "600"])  # the process that the record calls the launcher
        self.write_launch()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Start the kernel; at the end everything that was started is ended and every wire closed."""
        self.kernel.start()
        try:
            async with trio.open_nursery() as self.nursery:
                yield self
                self.nursery.cancel_scope.cancel()
        finally:
            for peer in self._peers:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(peer.stream)
            for row in self.starts():
                kill(row["pid"])
            for process in self._children:
                process.kill()
                process.wait(10)
            self.kernel.kill()

    async def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until a process has ended; return its exit code."""
        found: int = await trio.to_thread.run_sync(process.wait, BOUND_S)
        return found

    # --- the pieces ---

    def _child(self, argv: list[str], **more: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **more)
        self._children.append(process)
        return process

    def verdict(self, what: str) -> None:
        """Say what a started command does: an exit code, or `lock`."""
        (self.state / "verdict").write_text(what, "utf-8")

    def write_launch(self, **changes: Any) -> None:
        """Write launch.json as the launcher would; `changes` forge it."""
        pid = self.launcher.pid
        document = {
            "schema": 1,
            "argv": [sys.executable, "-P", str(self.folder / "recorder.py"), str(self.state), "up", "--detach"],
            "cwd": str(self.folder),
            "env_names": ["PATH", "HOME", "KITE_INSTANCE", "LANG"],
            "launcher": {"pid": pid, "start_ticks": start_ticks(pid), "boot_id": boot_id()},
            **changes,
        }
        file = self.state / "launch.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(document), "utf-8")

    def kill_launcher(self) -> None:
        """End the process that the record calls the launcher."""
        self.launcher.kill()
        self.launcher.wait(10)

    def watchdog(self) -> subprocess.Popen[bytes]:
        """Start a real watchdog."""
        options = self.folder / "options.json"
        options.touch(mode=0o600)
        options.write_text(json.dumps(self.options), "utf-8")
        reading, writing = os.pipe()
        os.write(writing, self.kernel.tokens["watchdog"].encode())
        os.close(writing)
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("KITE_")},
            "KITE_URL": self.kernel.url,
            "KITE_MODULE_ID": "watchdog",
            "KITE_INSTANCE": secrets.token_hex(16),
            "KITE_TOKEN_FD": str(reading),
            "KITE_OPTIONS_FILE": str(options),
        }
        argv = [sys.executable, "-P", "-m", "kite_watchdog", "--state-dir", str(self.state)]
        with self.log.open("ab") as log:
            process = self._child(argv, env=environ, pass_fds=[reading], stdout=log, stderr=log, start_new_session=True)
        os.close(reading)
        return process

    async def peer(self, name: str, *, ready: bool = True, **params: Any) -> RawPeer:
        """Connect one of the roles by hand."""
        peer = await RawPeer.connect(self.nursery, int(self.kernel.ready["port"]))
        self._peers.append(peer)
        await peer.auth(self.kernel.tokens[name], name, instance=f"{name}-1", protocol=2, **params)
        if ready:
            await peer.become_ready()
        return peer

    # --- what is seen ---

    def starts(self) -> list[dict[str, Any]]:
        """Give what the recorded command wrote down, one row a start."""
        with contextlib.suppress(OSError):
            return [json.loads(line) for line in (self.state / "started.jsonl").read_text("utf-8").splitlines()]
        return []

    def recorded(self) -> list[dict[str, Any]]:
        """Give the starts in restarts.json."""
        with contextlib.suppress(OSError):
            rows: list[dict[str, Any]] = json.loads((self.state / "restarts.json").read_bytes())["starts"]
            return rows
        return []

    def said(self) -> str:
        """Give the watchdog's log."""
        return self.log.read_text("utf-8", "replace")

    async def until(self, condition: Callable[[], Any], what: str, bound_s: float = BOUND_S) -> Any:
        """Wait until `condition` is truthy and return it."""
        deadline = time.monotonic() + bound_s
        while not (found := condition()):
            assert time.monotonic() < deadline, (f"not within {bound_s} s: {what}", self.said()[-3000:])
            await trio.sleep(0.02)
        return found
