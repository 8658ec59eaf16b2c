"""The log keeper as a process: how it is started and how it is collected.

`posix_spawn`, not `subprocess`: nobody keeps an object that wants to collect the process, since the launcher
collects all its children in one place.
"""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import trio

from kite_launcher.keeper.processes import open_identified

KILL_S: Final = 2.0
_NOT_PASSED_ON: Final = ("KITE_", "LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET")


def start_keeper(state_dir: Path, sock: socket.socket, *, mark: str) -> int:
    """Start the process with `sock` as its connection to us; give its pid. Raises: OSError."""
    target = 3
    argv = [sys.executable, "-P", "-X", "utf8", "-m", "kite_launcher.keeper"]
    argv += ["--state-dir", str(state_dir), "--socket-fd", str(target)]
    env = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_PASSED_ON)}
    if mark:
        env["KITE_INSTANCE"] = mark
    lifted = os.dup(sock.fileno())
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, lifted, target),
        ]
        every = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        return os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsigmask=(), setsigdef=every)
    finally:
        os.close(lifted)


async def end_keeper(pid: int, ticks: int, timeout_s: float) -> None:
    """Wait until exactly this process is gone, and collect it if it is a child of ours; kill it at the deadline."""
    pidfd = open_identified(pid, ticks) if pid > 0 else None
    if pidfd is None:
        _collect(pid)
        return
    try:
        with trio.move_on_after(timeout_s) as scope:
            await trio.lowlevel.wait_readable(pidfd)
        if scope.cancelled_caught:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            with trio.move_on_after(KILL_S):
                await trio.lowlevel.wait_readable(pidfd)
        _collect(pid)
    finally:
        os.close(pidfd)


def _collect(pid: int) -> None:
    if pid > 0:
        with contextlib.suppress(ChildProcessError):  # collected already, or not a child of ours
            os.waitpid(pid, os.WNOHANG)
