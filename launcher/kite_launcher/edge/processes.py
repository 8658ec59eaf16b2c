"""The machine's processes as the supervisor may touch them: by pidfd and identity, never by a bare number.

`Processes` and `Handle` are the seam: the real ones below read /proc, tests put an in-line table in their place so
that hours of supervision run on the virtual clock (a real process and a virtual clock lie to each other).
Source: spec 00 §27, §29, §34.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Final, Protocol

import attrs
import trio

from kite_launcher.core.proc import Identity, Proc, Snapshot, parse_environ, parse_stat

LOOK_WINDOW_S: Final = 0.01  # looks asked for within it are one look: 500 modules that end together need a handful
LOOK_SHARE: Final = 3.0  # a look is followed by at least this many times its own length of other work
ENVIRON_SETTLED_S: Final = 3.0  # a process younger than this may be between fork and exec: its marks are read again
ENVIRON_MAX_BYTES: Final = 8 << 20


class Handle(Protocol):
    """One process that was seen alive under its identity."""

    identity: Identity

    def signal(self, number: int) -> str | None:
        """Send a signal; None: delivered, or it had ended already; else why it can't be."""
        ...

    async def wait_ended(self) -> None:
        """Wait until it is dead (a zombie is dead). Cancel: safe. One waiter at a time."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Processes(Protocol):
    """All processes of the machine."""

    boot_id: str

    def find(self, pid: int) -> Proc | None:
        """Read one process, None when there is none."""
        ...

    def open(self, identity: Identity) -> Handle | None:
        """Take hold of the process of this identity, None when it is gone or another."""
        ...

    async def snapshot(self) -> Snapshot:
        """Look at all processes; the look begins after the call."""
        ...

    def memory_bytes(self, pids: tuple[int, ...]) -> int:
        """Return what these processes hold together: the proportional set where it can be read, else resident."""
        ...


@attrs.define(eq=False)
class PidHandle:
    """A process held by its pidfd: the number can't be given to another while we act."""

    identity: Identity
    _fd: int

    def signal(self, number: int) -> str | None:
        """Send a signal; see `Handle.signal`."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return None
        except OSError as error:
            return f"signal {number}: {error.strerror}"
        return None

    async def wait_ended(self) -> None:
        """Wait until it is dead; see `Handle.wait_ended`."""
        await trio.lowlevel.wait_readable(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@attrs.define
class _Mark:
    module: str | None
    settled: bool


class ProcFs:
    """The real processes, read from /proc. `mark` is this instance's KITE_INSTANCE."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._marks: dict[Identity, _Mark] = {}
        self._pending: _Look | None = None
        self._last_cost_s = 0.0
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            self.boot_id = file.read().strip()

    def find(self, pid: int) -> Proc | None:
        """Read one process with its mark."""
        row = _read_stat(pid)
        return attrs.evolve(row, module=self._module(row, fresh=True)) if row is not None else None

    def open(self, identity: Identity) -> PidHandle | None:
        """Open the pidfd first and compare the identity after, so that no reuse fits in between."""
        try:
            fd = os.pidfd_open(identity.pid)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            return None
        row = _read_stat(identity.pid)
        if row is None or row.identity != identity or not row.alive:
            os.close(fd)
            return None
        return PidHandle(identity, fd)

    async def snapshot(self) -> Snapshot:
        """Look at all of /proc once for everybody who asks within the window. Cancel: safe."""
        look = self._pending
        if look is not None:
            await look.done.wait()
            return look.rows
        self._pending = look = _Look()
        try:
            # Shielded: others wait for this look; it is bounded by the window.
            with trio.CancelScope(shield=True):
                await trio.sleep(max(LOOK_WINDOW_S, min(self._last_cost_s * LOOK_SHARE, 0.5)))
        finally:
            self._pending = None
            look.rows = self._look()
            look.done.set()
        return look.rows

    def look(self) -> Snapshot:
        """Look now, without waiting for others."""
        return self._look()

    def _look(self) -> dict[int, Proc]:
        begin = time.perf_counter()
        rows: dict[int, Proc] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                row = _read_stat(int(entry))
                if row is not None:
                    module = self._module(row)
                    rows[row.pid] = row if module is None else attrs.evolve(row, module=module)
        alive = {row.identity for row in rows.values()}
        self._marks = {identity: mark for identity, mark in self._marks.items() if identity in alive}
        self._last_cost_s = time.perf_counter() - begin
        return rows

    def _module(self, row: Proc, *, fresh: bool = False) -> str | None:
        known = self._marks.get(row.identity)
        if known is not None and known.settled and not fresh:
            return known.module
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - row.start_ticks / _TICKS
        try:
            with open(f"/proc/{row.pid}/environ", "rb") as file:
                module = parse_environ(file.read(ENVIRON_MAX_BYTES), self._mark)
        except OSError:
            module = None
        if module is None and known is not None and known.module is not None and not row.alive:
            module = known.module  # a zombie's environment is empty; what it was stays true
        self._marks[row.identity] = _Mark(module, age_s > ENVIRON_SETTLED_S)
        return module

    def memory_bytes(self, pids: tuple[int, ...]) -> int:
        """Sum the proportional set sizes; a process that ends meanwhile counts nothing."""
        return sum(_memory_of(pid) for pid in pids)


@attrs.define(eq=False)
class _Look:
    done: trio.Event = attrs.field(factory=trio.Event)
    rows: Snapshot = attrs.field(factory=dict[int, Proc])


_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def _read_stat(pid: int) -> Proc | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read().decode("utf-8", "replace"))
    except OSError:
        return None


def _memory_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def own_identity() -> Identity:
    """Return this process's own identity."""
    row = _read_stat(os.getpid())
    if row is None:
        raise OSError(errno.ENOENT, "/proc is not mounted")
    return row.identity
