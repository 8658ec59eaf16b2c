"""One supervised process for as long as the instance lives: one task that starts it, keeps it and ends it.

Because one task does all of it in order, a second copy can't exist: the next start comes after the proof that
nothing of the last run is left. The decisions are the core's (`child`, `restart`, `gate`); this room carries them
out. Whoever wants something of a unit calls `want`, `order_stop`, `order_restart` and waits for its state.
Source: spec 50 §1–§3; 00 §30, §31.
"""

from __future__ import annotations

import errno
import math
from typing import Final

import trio

from kite_launcher.core.child import SIGNALS, Event, State, describe_exit
from kite_launcher.core.gate import lost_requirement
from kite_launcher.core.keeper_orders import Forked, Spawned, SpawnFailed
from kite_launcher.core.launch import RefusedError
from kite_launcher.core.proc import Identity, Proc, Tree
from kite_launcher.core.records import ProcessRecord
from kite_launcher.edge.guard import PAUSE_S, first_of
from kite_launcher.edge.house import Prepared
from kite_launcher.edge.readiness import wait_ready
from kite_launcher.edge.tree import Ending, TreeEnd
from kite_launcher.edge.unit_wishes import Run, StopOrder, UnitWishes

STATUS_WAIT_S: Final = 2.0  # from a process's end to the keeper's word about it, its last output written
HAUNTED_POLL_S: Final = 1.0
# A start that fails with one of these fails the same way a moment later: trying again would be a storm.
HOPELESS_ERRNOS: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG, errno.ENOTDIR, errno.EPERM, errno.ELOOP, errno.EISDIR}
    | {errno.ENAMETOOLONG, errno.EINVAL}
)


class Unit(UnitWishes):
    """Keeps one process. `run` is its task; everything else may be called from anywhere in the same loop."""

    async def run(self) -> None:
        """Keep the process until `close`. Returns when it is proved to be gone, or refuses to be.

        A fault of our own costs this unit one run: its tree is ended, the budget judges, the others go on.
        """
        while True:
            try:
                await self._keep()
            except Exception as error:
                await self._mend(first_of(error))
            else:
                return

    async def _mend(self, why: str) -> None:
        """End what a fault of our own left unattended and go where the budget says."""
        self.house.journal.error("a fault of the launcher's own", name=self.name, why=why)
        self.current, self._order, self._spawning, self.hurry = None, None, False, 2
        ending = Ending(9, 0.0, None, self.pulse, lambda: True, lambda: 2, lambda: 0.0)
        identity = self.child.identity
        try:
            left = await TreeEnd(self.house, Tree(self.name, identity, self.known), ending).run()
        except Exception as error:
            self.house.journal.error("a fault of the launcher's own", name=self.name, why=first_of(error))
            left = ()
        if left:
            self._refused(left)
            await self._haunted(left)
        elif self.busy or self.child.state is State.WAITING:
            self._judge(
                "exit", good=False, up_s=0.0, detail=f"a fault of the launcher's own: {why}", now=trio.current_time()
            )
        await trio.sleep(PAUSE_S)

    async def _keep(self) -> None:
        if self._adopt is not None:
            run, self._adopt = self._adopt, None
            await self._live(run)
        while await self._rest():
            run_or_none = await self._start()
            if run_or_none is not None:
                await self._live(run_or_none)

    async def _rest(self) -> bool:
        """Wait until it is to be started; False: never again."""
        child = self.child
        while True:
            if self.closing:
                return False
            now = trio.current_time()
            due = child.next_try if child.next_try is not None else now
            waiting = child.state in (State.WAITING, State.BACKOFF) or (
                child.state is State.FAILED and child.next_try is not None
            )
            if child.wanted and waiting and due <= now:
                way = self.gate()
                if way.open:
                    return True
                child.why = f"waits for {', '.join(way.waits_for)}"
            deadline = due if child.wanted and waiting and due > now else math.inf
            await self.pulse.wait(deadline)

    async def _start(self) -> Run | None:
        """Start it once. None: that failed, the child's state says how it goes on."""
        house = self.house
        prepared: Prepared | None = None
        self._order, self.hurry, self._spawning = None, 0, True
        self._early.clear()
        forked: list[Forked] = []

        async def on_forked(it: Forked) -> None:
            forked.append(it)
            await self._record(it, prepared)

        try:
            prepared = house.orders.prepare(self.spec)
            answer = await house.keeper.spawn(prepared.order, on_forked)
        except RefusedError as refused:
            answer = SpawnFailed(self.name, errno.EPERM, refused.refusal.text)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            answer = SpawnFailed(self.name, error.errno or 0, f"{place}{error.strerror} (errno {error.errno})")
        finally:
            self._spawning = False
            if prepared is not None:
                prepared.close()
        if isinstance(answer, SpawnFailed):
            for it in forked:
                house.book.drop(self.name, it.pid)
            self._start_failed(answer)
            return None
        run = self._born(answer)
        self.on_spawned(prepared, run)
        return run

    async def _record(self, forked: Forked, prepared: Prepared | None) -> None:
        argv = prepared.order.argv if prepared is not None else ()
        moment = self.house.moment()
        role = self.spec.role
        self.house.book.put(
            ProcessRecord(self.name, role, forked.pid, forked.start_ticks, forked.pid, argv, moment.utc)
        )
        self.record_trouble = trouble = await self.house.book.flush()
        if trouble is not None:
            self.house.journal.warning("record kept by the log keeper alone", name=self.name, why=trouble)

    def _born(self, spawned: Spawned) -> Run:
        now = trio.current_time()
        identity = Identity(spawned.pid, spawned.start_ticks)
        run = Run(identity, spawned.run, now, now + self.spec.ready_timeout_s)
        child = self.child
        child.run, child.identity, child.note, child.why = spawned.run, identity, "", ""
        again = child.state is State.BACKOFF
        if again:
            child.restarts += 1
        self._on(Event.SPAWNED, "restart" if again else "start", f"pid {spawned.pid}")
        child.identity = identity
        if self._beat_every_s() > 0:
            run.beat_due = now + self.spec.ready_timeout_s
        return run

    def _start_failed(self, failed: SpawnFailed) -> None:
        child, moment = self.child, self.house.moment()
        child.why = failed.why
        if self._order is not None and self._order.then == "stopped":
            self._order = None
            self._on(Event.UNWANTED, "stop")
            return
        if failed.errno in HOPELESS_ERRNOS:
            self._fail("can't be started", failed.why)
            return
        self._judge("start", good=False, up_s=0.0, detail=failed.why, now=moment.now)

    # -- one life --------------------------------------------------------------------------------------------

    async def _live(self, run: Run) -> None:
        """Attend one run from its start to the proof that nothing of it is left."""
        self.current, self.known = run, frozenset({run.identity})
        early, self._early = self._early, []
        for exited in early:
            self.heard_exit(exited)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_end, run)
                nursery.start_soon(self._watch_ready, run)
                await self._attend(run)
                up_s = self.child.up_s(trio.current_time())
                left = await self._end(run)
                await self._await_status(run)
                nursery.cancel_scope.cancel()
        finally:
            self.current = None
        self._conclude(run, up_s, left)
        if left:
            await self._haunted(left)

    async def _watch_end(self, run: Run) -> None:
        handle = self.house.processes.open(run.identity)
        if handle is not None:
            try:
                await handle.wait_ended()
            finally:
                handle.close()
        run.ended = True
        self.pulse.beat()

    async def _watch_ready(self, run: Run) -> None:
        module = self.spec.module
        if module is None or module.ready is None or run.ready:
            return
        await wait_ready(module.ready, house=self.house, name=self.name, run=run.number, notified=run.notified)
        run.ready = True
        self.pulse.beat()

    async def _attend(self, run: Run) -> None:
        """Return when the process ended by itself or is to be ended (`self._order` says why)."""
        child = self.child
        while not run.ended and self._order is None:
            now = trio.current_time()
            if run.ready and child.state is State.STARTING:
                self._on(Event.READY, "ready", f"after {now - run.started:.2f} s")
                if self._beat_every_s() > 0:
                    run.beat_due = now + self._beat_every_s()
            lost = lost_requirement(self.spec, self.house.children)
            if lost is not None:
                self._order = StopOrder(f"{lost} is away", "blocked")
                return
            due = math.inf if child.state is State.RUNNING else max(run.ready_due, run.extend_to)
            if now >= due:
                await self._not_ready(run)
                return
            if now >= run.beat_due:
                self._order = StopOrder(
                    "watchdog", "restart", counted="notify", detail="WATCHDOG=1 did not come in time"
                )
                return
            await self.pulse.wait(min(due, run.beat_due))

    async def _not_ready(self, run: Run) -> None:
        """It was not ready in time: say by which rule, with its last lines."""
        spec = self.spec
        rule = (
            spec.module.ready.words() if spec.module is not None and spec.module.ready is not None else "module.ready"
        )
        lines = await self.house.keeper.tail(self.name, 5)
        last = f"; last lines: {' | '.join(lines)}" if lines else "; it printed nothing"
        if run.ended or self._order is not None:
            return
        detail = f"not ready within {spec.ready_timeout_s:g} s by {rule}{last}"
        self._order = StopOrder("ready_timeout", "restart", counted="not_ready", detail=detail)

    async def _end(self, run: Run) -> tuple[Proc, ...]:
        """End what is left of the tree; returns what refused."""
        order, spec = self._order, self.spec
        if order is not None:
            self._on(Event.STOPPING, order.cause, order.detail)
        polite = order.reason if order is not None and spec.speaks_kite and self.house.wire.connected else None
        ending = Ending(
            stop_signal=SIGNALS.get(spec.stop_signal, 15),
            timeout_s=spec.stop_timeout_s,
            polite=polite,
            pulse=self.pulse,
            leader_ended=lambda: run.ended,
            hurry=lambda: self.hurry,
            extend_to=lambda: run.extend_to,
        )
        end = TreeEnd(self.house, Tree(self.name, run.identity, self.known), ending)
        left = await end.run()
        self.known = end.tree.known
        if order is not None and not left:
            how = "by force" if end.forced else "by itself"
            self.child.tell("left", self.house.moment(), cause=order.cause, detail=how)
        return left

    async def _await_status(self, run: Run) -> None:
        if run.ended:
            await self.pulse.until(lambda: run.status_known, trio.current_time() + STATUS_WAIT_S)

    def _conclude(self, run: Run, up_s: float, left: tuple[Proc, ...]) -> None:
        """Judge the end of one run."""
        order, now = self._order, trio.current_time()
        child, self._order = self.child, None
        words, good = describe_exit(run.status)
        child.exit_code = None if run.status is None or run.status & 0x7F else (run.status >> 8) & 0xFF
        if left:
            self._refused(left)
            return
        self.house.book.drop(self.name, run.identity.pid)
        if order is None:
            self._ended_alone(words, good, up_s)
        elif order.then == "stopped" or (self.closing and order.counted is None):
            child.why = order.cause
            self._on(Event.GONE, order.cause, words)
        elif order.then == "blocked":
            child.why = order.cause
            self._on(Event.BLOCKED, order.cause, words)
        elif order.counted is None:
            self._on(Event.BLOCKED, order.cause, words)
        else:
            self._judge(order.counted, good=False, up_s=up_s, detail=order.detail or words, now=now)
        self.pulse.beat()

    def _ended_alone(self, words: str, good: bool, up_s: float) -> None:
        rule = self.spec.module.ready if self.spec.module is not None else None
        if rule is not None and rule.kind == "exit" and self.child.exit_code == int(rule.value):
            self.child.why = words
            self._on(Event.DONE, "exit", words)
            return
        if self.closing:
            self._on(Event.GONE, "instance", words)
            return
        before = "" if self.child.ready_at is not None else ", before it was ready"
        self._judge("exit", good=good, up_s=up_s, detail=words + before, now=trio.current_time())

    def _refused(self, left: tuple[Proc, ...]) -> None:
        child = self.child
        names = ", ".join(str(row.pid) for row in left)
        child.why = f"refuses to die: pid {names}"
        self._on(Event.REFUSED, "KILL", child.why)
        child.refusers = tuple(row.identity for row in left)
        self.house.journal.error("refuses to die", name=self.name, pids=names)
        self.house.alarm(self.name, "refused", child.why)
        self.house.changed.beat()

    async def _haunted(self, left: tuple[Proc, ...]) -> None:
        """Something outlived KILL: look each second whether it went, start nothing meanwhile."""
        while left and not self.closing:
            await self.pulse.wait(trio.current_time() + HAUNTED_POLL_S)
            snapshot = await self.house.processes.snapshot()
            left = tuple(row for row in left if row.pid in snapshot and snapshot[row.pid].identity == row.identity)
            left = tuple(row for row in left if snapshot[row.pid].alive)
        if not left:
            pid = self.child.identity.pid if self.child.identity is not None else 0
            self.house.book.drop(self.name, pid)
            self._on(Event.BLOCKED if self.child.wanted else Event.GONE, "gone at last")
