"""What is really there, seen from outside: processes by the instance's mark, the lock, the launcher's own word.

Identity is pid and start ticks, a descriptor is opened before it is checked, and a signal goes through it: a reused
pid is never touched. Source: spec 00 §27, 05 §4-5.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any, Final

from kite_modules.chaos.verdict import Leader

STATUS_S: Final = 3.0  # seconds: a launcher that is stopped does not answer
LINE_BYTES_MAX: Final = 4_194_304  # bytes


class Instance:
    """One instance by its state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.dir = state_dir

    def mark(self) -> str:
        """Give the instance's mark, "" where it has none yet."""
        with contextlib.suppress(OSError):
            return (self.dir / "instance.id").read_text("ascii").strip()
        return ""

    def leaders(self) -> list[Leader]:
        """Give the live processes that carry the mark and lead a group, with the name that each was given."""
        mark = f"KITE_INSTANCE={self.mark()}".encode()
        if mark == b"KITE_INSTANCE=":
            return []
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return [Leader(pid, name) for pid in pids if (name := _name_of(pid, mark)) is not None]

    def marked(self) -> list[int]:
        """Give every live process that carries the mark, leaders or not."""
        mark = f"KITE_INSTANCE={self.mark()}".encode()
        return [int(e) for e in os.listdir("/proc") if e.isdigit() and mark in _environ(int(e)) and _fields(int(e))]

    def launcher(self) -> int | None:
        """Give the pid in the lock's file while that process lives."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(json.loads((self.dir / "instance.lock").read_bytes())["pid"])
            return pid if _fields(pid) and self._holds_lock(pid) else None
        return None

    def pid_of(self, name: str) -> int | None:
        """Give the pid of the launcher, the kernel, the watchdog, the log keeper or a module."""
        if name == "launcher":
            return self.launcher()
        return next((leader.pid for leader in self.leaders() if leader.name == name), None)

    def status(self) -> dict[str, Any] | None:
        """Ask the launcher by its socket; None where nobody answers in time."""
        with contextlib.suppress(OSError, ValueError):
            answer = self._ask("status")
            result = answer.get("result")
            return result if isinstance(result, dict) else None
        return None

    def kernel(self) -> tuple[str, str] | None:
        """Give the kernel's address and the operator's token, or None where there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            url = json.loads((self.dir / "kernel.json").read_bytes())["url"]
            return str(url), (self.dir / "tokens" / "operator").read_text("ascii").strip()
        return None

    def starts(self) -> int:
        """Give how many fresh instances the watchdog has on record."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return len(json.loads((self.dir / "restarts.json").read_bytes())["starts"])
        return 0

    def _ask(self, method: str) -> dict[str, Any]:
        folder = os.open(self.dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX) as wire:
                wire.settimeout(STATUS_S)
                wire.connect(f"/proc/self/fd/{folder}/launcher.sock")
                order = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
                wire.sendall(json.dumps(order).encode() + b"\n")
                with wire.makefile("rb") as lines:
                    while line := lines.readline(LINE_BYTES_MAX):
                        answer = json.loads(line)
                        if isinstance(answer, dict) and "id" in answer:
                            return answer
        finally:
            os.close(folder)
        return {}

    def _holds_lock(self, pid: int) -> bool:
        inode = f":{(self.dir / 'instance.lock').stat().st_ino}"
        for line in Path("/proc/locks").read_text("ascii", "replace").splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[4] == str(pid) and fields[5].endswith(inode):
                return True
        return False


def whole(status: dict[str, Any] | None) -> bool:
    """Say whether everything is as wanted."""
    return status is not None and status.get("state") == "ok"


def strike(pid: int, number: signal.Signals) -> bool:
    """Send a signal through a pidfd that was opened before the process was looked at; False = it is gone."""
    before = _fields(pid)
    if not before:
        return False
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        after = _fields(pid)
        if not after or after[19] != before[19]:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def alive(pid: int) -> bool:
    """Say whether a process lives; a zombie is dead."""
    return bool(_fields(pid))


def _fields(pid: int) -> list[bytes]:
    """Give the fields of /proc/PID/stat from the third on; [] for what is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    fields = text[text.rfind(b")") + 2 :].split()
    return [] if len(fields) < 20 or fields[0] in (b"Z", b"X") else fields


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _name_of(pid: int, mark: bytes) -> str | None:
    variables = _environ(pid)
    fields = _fields(pid) if mark in variables else []
    if not fields or int(fields[2]) != pid:  # the third of these is the group
        return None
    names = [v[15:].decode("utf-8", "replace") for v in variables if v.startswith(b"KITE_MODULE_ID=")]
    return names[0] if names else "logkeeper"
