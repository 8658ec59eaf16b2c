"""Does one fault to an instance, and undoes what does not undo itself. Everything is bounded.

Source: spec 60-watchdog; 00 §27 (signals through a pidfd).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

import attrs
import trio

from kite_modules.chaos.look import Instance, strike
from kite_modules.chaos.plan import Fault
from kite_modules.chaos.probes import Wire

FILL_PIECE_BYTES: Final = 1_048_576
FILL_MAX_BYTES: Final = 256 * 1024 * 1024  # never more than this of anybody's disk
STEPS: Final = ("+400d", "-400d")


@attrs.frozen
class Done:
    """What was done: the pid that was hit, None for faults that hit no process; `skipped` says why nothing was done."""

    pid: int | None = None
    skipped: str = ""


class Hand:
    """Carries faults out."""

    def __init__(self, instance: Instance, wire: Wire, *, clock_file: Path | None) -> None:
        self._instance, self._wire, self._clock = instance, wire, clock_file

    async def do(self, fault: Fault) -> Done:
        """Do it, and hold it where it lasts. Cancel: what was stopped goes on, what was filled is freed."""
        verb = fault.what.split()[0]
        if verb == "kill":
            return self._strike(fault, signal.SIGKILL)
        if verb == "stop":
            return await self._stop(fault)
        if verb == "fill":
            return await self._fill(fault)
        if verb == "step":
            return await self._step(fault)
        return await self._hurt_wire(fault, verb)

    def _strike(self, fault: Fault, number: signal.Signals) -> Done:
        pid = self._instance.pid_of(fault.target)
        if pid is None or not strike(pid, number):
            return Done(skipped=f"{fault.target} does not run")
        return Done(pid)

    async def _stop(self, fault: Fault) -> Done:
        done = self._strike(fault, signal.SIGSTOP)
        try:
            if done.pid is not None:
                await trio.sleep(fault.hold_s)
        finally:
            if done.pid is not None:
                strike(done.pid, signal.SIGCONT)
        return done

    async def _hurt_wire(self, fault: Fault, verb: str) -> Done:
        proxy = self._wire.proxy
        if proxy is None or not self._wire.open:
            return Done(skipped="the wire is not open")
        if verb == "cut":
            proxy.cut()
        elif verb == "tear":
            proxy.tear()
        else:
            proxy.delay_s = min(0.5, fault.hold_s / 4)
            await trio.sleep(fault.hold_s)
            proxy.delay_s = 0.0
        return Done()

    async def _fill(self, fault: Fault) -> Done:
        file = self._instance.dir / "chaos.fill"
        try:
            await trio.to_thread.run_sync(fill, file)
            await trio.sleep(fault.hold_s)
        finally:
            with contextlib.suppress(OSError):
                file.unlink()
        return Done()

    async def _step(self, fault: Fault) -> Done:
        if self._clock is None:
            return Done(skipped="no clock that can be stepped")
        file = trio.Path(self._clock)
        for step in STEPS:
            await file.write_text(f"{step}\n", "ascii")
            await trio.sleep(fault.hold_s / len(STEPS))
        await file.write_text("+0\n", "ascii")
        return Done()


def fill(file: Path) -> int:
    """Fill the file system of a file, up to a bound; return the bytes written."""
    written = 0
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for size in (FILL_PIECE_BYTES, 4096, 1):  # down to the last byte
            piece = b"\0" * size
            with contextlib.suppress(OSError):
                while written < FILL_MAX_BYTES:
                    written += os.write(fd, piece)
    finally:
        os.close(fd)
    return written
