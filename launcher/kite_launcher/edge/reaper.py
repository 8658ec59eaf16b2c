"""Collects dead children that nobody else waits for: orphans of a dead log keeper, and everybody's as PID 1.

Processes that a room of this house starts and waits for itself (a notify command, the trial of an upgrade) are
claimed, so that their status is not taken away. Source: spec 00 §28, §29; case S-88.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

REAP_EVERY_S: Final = 1.0  # a death while a process was being claimed is collected by the next look
_PR_SET_CHILD_SUBREAPER: Final = 36


class Reaper:
    """The one place of this process that calls waitpid for children in general."""

    def __init__(self, on_exit: Callable[[int, int], None]) -> None:
        self._on_exit = on_exit
        self._claiming = 0
        self.owned: set[int] = set()

    @asynccontextmanager
    async def process(self, command: Sequence[str], **options: Any) -> AsyncIterator[trio.Process]:
        """Start a process that the caller waits for; it is dead when the block is left. Raises OSError."""
        self._claiming += 1
        try:
            process = await trio.lowlevel.open_process(list(command), **options)
            self.owned.add(process.pid)
        finally:
            self._claiming -= 1
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            self.owned.discard(process.pid)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await trio.aclose_forcefully(stream)

    def reap(self) -> None:
        """Collect every dead child that is not claimed; call at SIGCHLD."""
        if self._claiming:
            return  # one of them may be the process that is just being made
        for pid in children_of_self():
            if pid in self.owned:
                continue
            try:
                dead, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            if dead == pid:
                self._on_exit(pid, status)

    async def run(self) -> None:
        """Look now and then, whatever became of a signal."""
        while True:
            await trio.sleep(REAP_EVERY_S)
            self.reap()


def become_subreaper() -> None:
    """Have orphans of our descendants fall to us instead of to init. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def children_of_self() -> list[int]:
    """Return the pids of our children, zombies included."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found
