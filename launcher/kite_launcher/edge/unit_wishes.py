"""One supervised process as others may touch it: its wish, its orders, what is heard of it, how ends are judged.

Everything here may be called from anywhere in the loop and never waits; the task that carries it out is `unit`'s.
Source: spec 50 §1–§3; 00 §30.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, Literal

import attrs
import trio

from kite_launcher.core.child import Child, Event, State, describe_exit
from kite_launcher.core.gate import Gate, gate
from kite_launcher.core.keeper_orders import Exited
from kite_launcher.core.notify import Note
from kite_launcher.core.proc import Identity
from kite_launcher.core.restart import Cause, GiveUp, RestartAt, Settle, Tally
from kite_launcher.core.unit_spec import UnitSpec
from kite_launcher.edge.house import House, Prepared
from kite_launcher.edge.pulse import Pulse

EXTEND_MAX_S: Final = 3600.0

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


class UnitWishes:
    """What is wanted of one process and what is known of it."""

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

    # -- judging ends -----------------------------------------------------------------------------------------

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
