"""One supervised process for as long as the instance lives: one task that starts it, keeps it and ends it.

Because one task does all of it in order, a second copy can't exist: the next start comes after the proof that
nothing of the last run is left. The decisions are the core's (`child`, `restart`, `gate`); this room carries them
out. Whoever wants something of a unit calls `want`, `order_stop`, `order_restart` and waits for its state.
Source: spec 50 §1–§3; 00 §30, §31.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable
from typing import Final, Literal

import attrs
import trio

from kite_launcher.core.child import SIGNALS, Child, Event, State, describe_exit
from kite_launcher.core.gate import Gate, gate, lost_requirement
from kite_launcher.core.keeper_orders import Exited, Forked, Spawned, SpawnFailed
from kite_launcher.core.launch import RefusedError
from kite_launcher.core.notify import Note
from kite_launcher.core.proc import Identity, Proc, Tree
from kite_launcher.core.records import ProcessRecord
from kite_launcher.core.restart import Cause, GiveUp, RestartAt, Settle, Tally
from kite_launcher.core.unit_spec import UnitSpec
from kite_launcher.edge.house import House, Prepared
from kite_launcher.edge.pulse import Pulse
from kite_launcher.edge.readiness import wait_ready
from kite_launcher.edge.tree import Ending, TreeEnd

STATUS_WAIT_S: Final = 2.0  # from a process's end to the keeper's word about it, its last output written
HAUNTED_POLL_S: Final = 1.0
EXTEND_MAX_S: Final = 3600.0
# A start that fails with one of these fails the same way a moment later: trying again would be a storm.
HOPELESS_ERRNOS: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG, errno.ENOTDIR, errno.EPERM, errno.ELOOP, errno.EISDIR}
    | {errno.ENAMETOOLONG, errno.EINVAL}
)

Then = Literal["stopped", "blocked", "restart"]


@attrs.frozen
class StopOrder:
    """Why a run is ended and what follows. `counted` names the cause that takes from the restart budget."""

    cause: str
    then: Then
    reason: str = "module_stop"
    counted: Cause | None = None
    detail: str = ""


@attrs.define(eq=False)
class Run:
    """One life of the process."""

    identity: Identity
    number: int
    started: float
    ready_due: float
    notified: trio.Event = attrs.field(factory=trio.Event)
    ended: bool = False
    status: int | None = None
    status_known: bool = False
    ready: bool = False
    started_wall: float = attrs.field(factory=time.time)
    extend_to: float = 0.0
    beat_due: float = math.inf
    adopted: bool = False  # an earlier launcher started it


class Unit:
    """Keeps one process. `run` is its task; everything else may be called from anywhere in the same loop."""

    def __init__(self, spec: UnitSpec, house: House) -> None:
        moment = house.moment()
        self.spec, self.house = spec, house
        self.child = Child(spec.name, spec.role, Tally(spec.policy), since_utc=moment.utc, since=moment.now)
        self.pulse = Pulse()
        self.closing = False
        self.hurry = 0
        self.current: Run | None = None
        self.known: frozenset[Identity] = frozenset()
        self.uids: frozenset[int] = frozenset()
        self._order: StopOrder | None = None
        self._spawning = False
        self._early: list[Exited] = []
        self._adopt: Run | None = None
        self.record_trouble: str | None = None
        self.on_spawned: Callable[[Prepared | None, Run], None] = lambda _prepared, _run: None

    # -- wishes ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The unit's name."""
        return self.spec.name

    @property
    def spawning(self) -> bool:
        """True while a process of it is being made."""
        return self._spawning

    @property
    def ordered(self) -> bool:
        """True while an order to stop or restart it is not carried out."""
        return self._order is not None

    @property
    def busy(self) -> bool:
        """True while a process of it exists or is being made."""
        return self.child.alive or self._spawning

    def gate(self) -> Gate:
        """Say for whom it waits."""
        if not self.house.open and self.spec.role == "module":
            return Gate(("kernel",))
        return gate(self.spec, self.house.specs, self.house.children)

    def want(self, cause: str, *, fresh: bool = False) -> None:
        """Have it up. `fresh`: a person asks, so the budget starts again."""
        child = self.child
        child.wanted, child.by_hand = True, False
        if fresh:
            child.tally.refresh()
        if not self.busy and child.state is not State.WAITING:
            self._on(Event.WANTED, cause)
        elif self._order is not None and self._order.then == "stopped" and not self.closing:
            self._order = attrs.evolve(self._order, then="restart")
        self.pulse.beat()

    def order_stop(self, cause: str, *, then: Then = "stopped", reason: str = "module_stop") -> None:
        """Have it down; `then` says what follows the proof that nothing is left."""
        child = self.child
        child.wanted = then != "stopped"
        if self.busy:
            self._order = StopOrder(cause, then, reason)
        elif then == "stopped" and child.state not in (State.STOPPED, State.FAILED, State.DONE):
            self._on(Event.UNWANTED, cause)
        self.pulse.beat()

    def order_restart(self, cause: str, *, counted: Cause | None = None, detail: str = "") -> bool:
        """End it and start it again; with `counted` it takes from the budget. False: it is not up."""
        if not self.busy or (self._order is not None and self._order.then == "stopped"):
            return False
        if self._order is None:
            self._order = StopOrder(cause, "restart", counted=counted, detail=detail)
        self.pulse.beat()
        return True

    def freeze(self, cause: str) -> None:
        """The instance ends: never start again; what has no process is stopped at once."""
        self.closing = True
        if not self.busy:
            self.order_stop(cause)
        self.pulse.beat()

    def close(self, cause: str, *, reason: str = "instance_stop") -> None:
        """Stop it for good and let its task return."""
        self.closing = True
        self.order_stop(cause, reason=reason)

    def press(self, level: int) -> None:
        """Hurry: 1 leaves the polite part out, 2 kills."""
        if level > self.hurry:
            self.hurry = level
            self.pulse.beat()

    # -- what is heard of it ---------------------------------------------------------------------------------

    def heard_exit(self, exited: Exited) -> None:
        """The keeper (or the launcher as reaper) tells how a process of this name ended."""
        run = self.current
        if run is not None and run.identity.pid == exited.pid and run.identity.start_ticks == exited.start_ticks:
            run.status, run.status_known = exited.status, True
            self.pulse.beat()
        elif self._spawning:
            self._early.append(exited)  # it ended before the answer to its start was looked at
        elif exited.run != self.child.run:
            words, _ = describe_exit(exited.status)
            self.child.tell("ended while no launcher lived", self.house.moment(), detail=f"{words} at {exited.at}")

    def heard_ready(self) -> None:
        """It said `module.ready`, or its rule came true."""
        if self.current is not None and not self.current.ready:
            self.current.ready = True
            self.pulse.beat()

    def heard_note(self, note: Note) -> None:
        """It said something on its notify socket."""
        run = self.current
        if run is None:
            return
        now = trio.current_time()
        if note.status is not None:
            self.child.note = note.status
        if note.extend_s is not None:
            run.extend_to = max(run.extend_to, now + min(note.extend_s, EXTEND_MAX_S))
        if note.watchdog and run.beat_due is not math.inf:
            run.beat_due = now + self._beat_every_s()
        if note.ready:
            run.notified.set()
        if note.stopping:
            self.child.tell("said STOPPING", self.house.moment())
        self.pulse.beat()

    def adopt(self, identity: Identity, run: int, *, ready: bool) -> None:
        """Go on with a process that an earlier launcher started; call before the task runs."""
        now = trio.current_time()
        self._adopt = Run(identity, run, now, now + self.spec.ready_timeout_s, ready=ready, adopted=True)
        self.child.run = run
        self._on(Event.SPAWNED, "adopted", f"pid {identity.pid}")
        self.child.identity = identity

    # -- its task --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the process until `close`. Returns when it is proved to be gone, or refuses to be."""
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

    def _judge(self, cause: Cause, *, good: bool, up_s: float, detail: str, now: float) -> None:
        """Ask the budget and go where it says."""
        child, house = self.child, self.house
        verdict = child.tally.ended(cause=cause, good=good, up_s=up_s, unit_random=house.random(), now=now)
        child.why = detail
        match verdict:
            case RestartAt(at, delay_s, number):
                left = child.tally.left(now=now)
                self._on(Event.RETRY, cause, f"{detail}; again in {delay_s:.2f} s ({number} used, {left} left)")
                child.next_try = at
                house.journal.warning("ended", name=self.name, cause=cause, detail=detail, again_in_s=round(delay_s, 3))
            case GiveUp(why, retry_at):
                self._fail(cause, f"{detail}; {why}")
                child.next_try = retry_at
            case Settle(True):
                self._on(Event.SETTLED, cause, detail)
                house.journal.info("ended", name=self.name, detail=detail)
            case Settle(_):
                self._fail(cause, detail)
        if cause != "group" and isinstance(verdict, RestartAt):
            house.on_crash(self.name)
        self.pulse.beat()

    def _fail(self, cause: str, why: str) -> None:
        self.child.why = why
        self._on(Event.FAILED, cause, why)
        self.house.journal.error("failed", name=self.name, cause=cause, why=why)
        self.house.alarm(self.name, "failed", why)

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

    # -- small things ----------------------------------------------------------------------------------------

    def _beat_every_s(self) -> float:
        module = self.spec.module
        return module.notify_watchdog_s or 0.0 if module is not None else 0.0

    def _on(self, event: Event, cause: str = "", detail: str = "") -> None:
        if not self.child.on(event, self.house.moment(), cause=cause, detail=detail):
            self.house.journal.error("impossible step", name=self.name, state=self.child.state.value, step=event.value)
        if event in (Event.READY, Event.SPAWNED, Event.GONE, Event.DONE):
            self.house.journal.info(event.value, name=self.name, cause=cause, detail=detail)
        self.pulse.beat()
        self.house.on_change(self.name)
        self.house.changed.beat()
