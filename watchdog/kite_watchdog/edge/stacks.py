"""Keeps what a hung module was doing, before it is restarted: its own stacks where it can still say them, else what
the operating system tells of its threads.

Never a signal to a process that did not ask for it, never longer than a few seconds. Source: spec 60 §1.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trio

from kite_watchdog.edge.files import FILE_MODE
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.log import Log

METHOD: Final = "debug.stacks"
ASK_S: Final = 2.0  # seconds: a module that is hung for good will not answer, and its users wait
TOOL_S: Final = 5.0  # seconds for py-spy
BYTES_MAX: Final = 1_048_576  # bytes kept of one report
FILES_KEPT: Final = 10  # reports of one module
THREADS_MAX: Final = 200  # threads that are looked at


class StackKeeper:
    """Writes `<state-dir>/modules/<name>/stacks-<time>.txt`."""

    def __init__(self, state_dir: Path, *, link: Link, instance: str, log: Log) -> None:
        self._modules, self._link, self._instance, self._log = state_dir / "modules", link, instance, log

    async def keep(self, module_id: str, *, methods: tuple[str, ...], pid: int | None) -> str | None:
        """Keep what can be had. Returns the file's path, or None; never raises. Cancel: leaves no half file behind."""
        folder = self._modules / module_id
        if module_id in (".", "..") or "/" in module_id or "\0" in module_id or not folder.is_dir():
            return None
        parts: list[tuple[str, str]] = []
        if METHOD in methods:
            answer = await self._link.call(f"{module_id}.{METHOD}", {}, timeout_s=ASK_S, wait=False)
            parts.append(
                (f"what {module_id}.{METHOD} says", _text(answer.value()) if answer.error is None else answer.message)
            )
        if pid is not None and _is_module(pid, module_id, self._instance):
            parts.append(("faulthandler", await self._faulthandler(folder, pid)))
            parts.append(("py-spy", await _py_spy(pid)))
            parts.append(("threads as the kernel of the machine sees them", threads(pid)))
        body = "\n".join(f"== {title}\n{text}" for title, text in parts if text)
        if not body:
            return None
        try:
            return str(_write(folder, body))
        except OSError as error:
            self._log.warning("stacks can't be kept", module_id=module_id, why=error.strerror)
            return None

    async def _faulthandler(self, folder: Path, pid: int) -> str:
        """Have the SDK's faulthandler write to `stacks.txt` by SIGUSR2: only where that file says that it listens."""
        file = folder / "stacks.txt"
        if not file.is_file() or file.is_symlink() or not _catches(pid, signal.SIGUSR2):
            return ""
        before = file.stat().st_size
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return ""
        try:
            if not _is_module(pid, folder.name, self._instance):
                return ""
            signal.pidfd_send_signal(fd, signal.SIGUSR2)
        except OSError:
            return ""
        finally:
            os.close(fd)
        with trio.move_on_after(ASK_S):
            size, was = before, -1
            while size == before or size != was:  # until something came, and then no more
                await trio.sleep(0.1)
                size, was = file.stat().st_size, size
        return _tail(file, before)


def _tail(file: Path, begin: int) -> str:
    with open(file, "rb") as handle:
        handle.seek(begin)
        return handle.read(BYTES_MAX).decode("utf-8", "replace")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("stacks", value)
    return str(value)[:BYTES_MAX]


def _is_module(pid: int, module_id: str, instance: str) -> bool:
    """Say whether a process carries this instance's mark and this module's name: nobody else is ever touched."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    want = (f"KITE_INSTANCE={instance}".encode(), f"KITE_MODULE_ID={module_id}".encode())
    return bool(instance) and all(w in variables for w in want)


def _catches(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


async def _py_spy(pid: int) -> str:
    tool = shutil.which("py-spy")
    if tool is None:
        return ""
    with trio.move_on_after(TOOL_S), contextlib.suppress(OSError, subprocess.CalledProcessError):
        done = await trio.run_process(
            [tool, "dump", "--nonblocking", "--pid", str(pid)], capture_stdout=True, capture_stderr=True, check=False
        )
        return (done.stdout or done.stderr)[:BYTES_MAX].decode("utf-8", "replace")
    return ""


def threads(pid: int) -> str:
    """Tell state, wait channel and system call of each thread; works for a process that answers nobody."""
    out: list[str] = []
    try:
        ids = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return ""
    for task in ids[:THREADS_MAX]:
        seen: dict[str, str] = {}
        for name in ("comm", "wchan", "syscall", "stack"):
            with contextlib.suppress(OSError):
                seen[name] = Path(f"/proc/{pid}/task/{task}/{name}").read_text("utf-8", "replace").strip()
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/task/{task}/status").read_text("utf-8", "replace").splitlines()
            seen["state"] = next(line.partition(":")[2].strip() for line in lines if line.startswith("State:"))
        words = " · ".join(f"{k} {v}" for k, v in seen.items() if v and "\n" not in v)
        out.append(f"thread {task}: {words}" + (f"\n{seen['stack']}" if "\n" in seen.get("stack", "") else ""))
    return "\n".join(out)


def _write(folder: Path, body: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"stacks-{stamp}.txt"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with open(fd, "w", encoding="utf-8", errors="replace") as file:
        file.write(f"taken {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{body}\n"[:BYTES_MAX])
    for old in sorted(folder.glob("stacks-*.txt"))[:-FILES_KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path
