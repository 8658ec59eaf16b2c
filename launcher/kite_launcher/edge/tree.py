"""The end of one module's process tree: the ladder, and the proof that nothing of it is left.

Order of one end: the wire's `module.shutdown` (Kite modules), at half of the time the stop signal to the group, at
the deadline KILL for all that is left, one KILL a process; then the proof by group, session, descent, mark and lock.
What outlives KILL is returned by name, never called stopped. A stop never waits for an end of file.
Source: spec 50 §3; spec 00 §29; cases S-10 … S-20.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

import attrs
import trio

from kite_launcher.core.proc import Identity, Proc, Tree, members
from kite_launcher.edge.house import House
from kite_launcher.edge.pulse import Pulse

KILL_PATIENCE_S: Final = 1.0  # from KILL to "refuses to die": uninterruptible sleep ends sooner or not at all
POLL_MIN_S: Final = 0.02
POLL_MAX_S: Final = 0.2


@attrs.define(eq=False)
class Ending:
    """How one tree is to be ended, and what changes while that goes on.

    `hurry`: 1 leaves the polite part out, 2 kills at once. `extend_to` is a later deadline that the program asked
    for by EXTEND_TIMEOUT_USEC.
    """

    stop_signal: int
    timeout_s: float
    polite: str | None  # the reason of `module.shutdown`, None to leave it out
    pulse: Pulse
    leader_ended: Callable[[], bool]
    hurry: Callable[[], int]
    extend_to: Callable[[], float]


@attrs.define(eq=False)
class TreeEnd:
    """Ends one tree; `known` grows with everything that was seen of it."""

    house: House
    tree: Tree
    how: Ending
    _killed: set[Identity] = attrs.field(factory=set[Identity])
    _signalled: set[Identity] = attrs.field(factory=set[Identity])
    forced: bool = False

    async def run(self) -> tuple[Proc, ...]:
        """End it and return what refused to die. Cancel: safe, the tree may still live."""
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell, start)
            left = await self._ladder(start)
            nursery.cancel_scope.cancel()
        return left

    async def _ladder(self, start: float) -> tuple[Proc, ...]:
        how = self.how
        deadline = start + how.timeout_s
        await self._ask(start + how.timeout_s / 2)
        left = await self._survivors()
        if left and how.hurry() < 2:
            self._signal(left, how.stop_signal, group_only=not how.leader_ended())
            left = await self._wait_gone(deadline)
        if left:
            self.forced = True
            left = await self._kill(left)
        return left

    async def _ask(self, until: float) -> None:
        """The polite part: say `module.shutdown` over the wire and give it half of the time."""
        how = self.how
        if how.polite is None or how.leader_ended() or how.hurry() > 0:
            return
        if await self.house.wire.shutdown_module(self.tree.name, how.polite, how.timeout_s):
            await how.pulse.until(lambda: how.leader_ended() or how.hurry() > 0, until)

    async def _wait_gone(self, deadline: float) -> tuple[Proc, ...]:
        """Wait for the tree's end; once its leader is gone the rest gets the signal, too."""
        how = self.how
        poll = POLL_MIN_S
        while True:
            due = max(deadline, how.extend_to())
            if not how.leader_ended():
                await how.pulse.until(lambda: how.leader_ended() or how.hurry() >= 2, due)
            left = await self._survivors()
            due = max(deadline, how.extend_to())
            if not left or how.hurry() >= 2 or trio.current_time() >= due:
                return left
            if how.leader_ended():
                self._signal(left, how.stop_signal, group_only=False)
                await how.pulse.wait(min(trio.current_time() + poll, due))
                poll = min(poll * 2, POLL_MAX_S)

    async def _kill(self, left: tuple[Proc, ...]) -> tuple[Proc, ...]:
        give_up = trio.current_time() + KILL_PATIENCE_S
        poll = POLL_MIN_S
        while left:
            fresh = [row for row in left if row.identity not in self._killed]
            for row in fresh:
                self._killed.add(row.identity)
                self._send(row, signal.SIGKILL)
            if not fresh and trio.current_time() >= give_up:
                return left
            await self.how.pulse.wait(trio.current_time() + poll)
            poll = min(poll * 2, POLL_MAX_S)
            left = await self._survivors()
        return ()

    async def _survivors(self) -> tuple[Proc, ...]:
        """Look who is left: by group, session, descent, mark, and by the lock that only this tree can hold."""
        snapshot = await self.house.processes.snapshot()
        found = members(snapshot, self.tree, spare=self.house.spare())
        if not found:
            holders = self.house.lock_holders(self.tree.name)
            found = tuple(snapshot[pid] for pid in holders if pid in snapshot and snapshot[pid].alive)
        self.tree = attrs.evolve(self.tree, known=self.tree.known | {row.identity for row in found})
        return found

    def _signal(self, rows: tuple[Proc, ...], number: int, *, group_only: bool) -> None:
        leader = self.tree.leader
        for row in rows:
            grouped = leader is None or leader.pid in (row.pid, row.pgid, row.sid)
            if row.identity in self._signalled or (group_only and not grouped):
                continue
            self._signalled.add(row.identity)
            self._send(row, number)
            self._send(row, signal.SIGCONT)  # a stopped process acts on the signal only once it goes on

    def _send(self, row: Proc, number: int) -> None:
        handle = self.house.processes.open(row.identity)
        if handle is None:
            return
        why = handle.signal(number)
        handle.close()
        if why is not None:
            self.house.journal.warning("signal refused", name=self.tree.name, pid=row.pid, why=why)

    async def _tell(self, start: float) -> None:
        """Say each second who is waited for and what comes next."""
        pid = self.tree.leader.pid if self.tree.leader is not None else 0
        while True:
            await trio.sleep(1.0)
            gone = trio.current_time() - start
            total = max(self.how.timeout_s, self.how.extend_to() - start)
            next_step = "KILL next" if gone < total else "killed, waiting for its end"
            text = f"waiting for {self.tree.name} (pid {pid}) {gone:.0f} s of {total:g} s, {next_step}"
            self.house.on_progress(self.tree.name, text)
