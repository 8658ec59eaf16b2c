"""One run of chaos: fault after fault, each followed by the wait for wholeness, and the verdict at the end.

Source: spec 60-watchdog.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from kite_modules.chaos.deeds import Hand
from kite_modules.chaos.look import Instance, whole
from kite_modules.chaos.plan import CLASSES, Fault, Pace, next_fault
from kite_modules.chaos.probes import Listener, Wire, read_records
from kite_modules.chaos.verdict import (
    Breach,
    breach_of_double,
    doubles,
    gaps_and_twins,
    guilty_close,
    lost_records,
    summary,
)

LOOK_S: Final = 0.1  # seconds between two looks at all processes
SLACK_S: Final = 30.0  # seconds that a busy machine may add to every promised time
EARLY_MAX_S: Final = 3.0  # seconds after a new launcher took the lock: about half of them are still its start
STEADY_LOOKS: Final = 2  # looks in a row that find everything well before it counts as whole


@attrs.frozen
class Options:
    """How to run: `restarts_ok` tells whether a lost launcher may be part of it."""

    seed: int
    seconds: float
    scale: float
    classes: Sequence[str] = CLASSES
    modules: Sequence[str] = ()
    durable: bool = False
    grace_s: float = 35.0  # seconds, not scaled
    count: int | None = None  # faults, instead of a time
    free: Sequence[str] = ()  # targets whose restart budget has no end
    early: bool = False  # hit before everything is whole again: every phase of a start is met


@attrs.define
class Report:
    """What was done and what was seen."""

    seed: int
    faults: list[tuple[Fault, float, str]] = attrs.field(factory=list)  # fault, seconds until whole, skipped
    breaches: list[Breach] = attrs.field(factory=list)
    unchecked: dict[str, str] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)

    @property
    def held(self) -> bool:
        """Say whether every invariant that could be looked at held."""
        return not self.breaches

    def table(self) -> list[tuple[str, str]]:
        """Give each invariant with what became of it."""
        return summary(self.breaches, self.unchecked)


class Chaos:
    """One run against one instance. `say` prints a line, `revive` starts an instance that nobody else would start."""

    def __init__(
        self,
        instance: Instance,
        options: Options,
        *,
        say: Callable[[str], None],
        hand: Callable[[Instance, Wire], Hand],
        revive: Callable[[], str | None] | None = None,
    ) -> None:
        self._instance, self._options, self._say, self._revive = instance, options, say, revive
        self.report = Report(options.seed)
        self._listener, self._wire = Listener(instance), Wire(instance)
        self._hand = hand(instance, self._wire)
        self._random = random.Random(options.seed)
        self._pace = Pace(options.free)
        self._fault = 0

    async def run(self) -> Report:
        """Hurt the instance for the time that was asked for. Cancel: undoes what is held."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_processes)
            nursery.start_soon(lambda: self._listener.run(durable=self._options.durable))
            nursery.start_soon(self._wire.run)
            await self._until_whole()
            await self._hurt()
            await self._judge()
            nursery.cancel_scope.cancel()
        return self.report

    async def _hurt(self) -> None:
        options, end = self._options, trio.current_time() + self._options.seconds
        while trio.current_time() < end if options.count is None else self._fault < options.count:
            self._fault += 1
            fault = next_fault(
                self._fault,
                random=self._random.random,
                classes=options.classes,
                modules=options.modules,
                scale=options.scale,
            )
            await trio.sleep(self._random.random() * EARLY_MAX_S if options.early else fault.pause_s)
            if self._pace.allows(fault, now=trio.current_time()):
                await self._one(fault)
            else:
                self.report.faults.append((fault, 0.0, "its restart budget would be used up"))

    async def _one(self, fault: Fault) -> None:
        verb, target = fault.what.split()[0], fault.target
        closes, heard, marked = len(self._listener.closes), self._wire.mark(), self._listener.beats
        begin = trio.current_time()
        done = await self._hand.do(fault)
        if done.skipped:
            self.report.faults.append((fault, 0.0, done.skipped))
            return
        gone = done.pid if verb == "kill" else None
        if self._options.early and target == "launcher":
            whole_s = await self._until_there(target, gone)
        else:
            whole_s = await self._until_whole(target if gone is not None else None, gone)
        took_s = trio.current_time() - begin
        self.report.faults.append((fault, took_s, ""))
        self._say(f"{fault.number:>4}  {fault.words():<34} whole again after {took_s:6.2f} s")
        if whole_s is None:
            self._breach("whole again in time", f"not within {took_s:.0f} s after: {fault.words()}")
        if target == "wire":
            await self._judge_wire(heard, marked)
        if target not in ("kernel", "launcher"):
            self._judge_closes(closes, fault)

    # ------------------------------------------------------------------ waiting

    def _bound_s(self, target: str | None) -> float:
        own = (self._options.grace_s + 10.0) * self._options.scale if target == "launcher" else 15.0
        return own + SLACK_S

    async def _until_whole(self, target: str | None = None, gone: int | None = None) -> float | None:
        """Wait until all is well and whoever was killed has a new process; None = not in time."""
        begin, steady = trio.current_time(), 0
        revived = False
        while (past_s := trio.current_time() - begin) < self._bound_s(target):
            replaced = target is None or self._instance.pid_of(target) not in (None, gone)
            well = replaced and whole(await trio.to_thread.run_sync(self._instance.status))
            steady = steady + 1 if well else 0
            if steady >= STEADY_LOOKS:
                return past_s
            if not revived and self._revive is not None and self._nobody_is_left_to_help(past_s):
                revived = True
                await self._bring_back()
            await trio.sleep(LOOK_S)
        return None

    async def _until_there(self, target: str, gone: int | None) -> float | None:
        """Wait only until a new one is there: the next fault comes in the middle of its start."""
        begin = trio.current_time()
        while (past_s := trio.current_time() - begin) < self._bound_s(target):
            if self._instance.pid_of(target) not in (None, gone):
                return past_s
            if self._revive is not None and self._nobody_is_left_to_help(past_s):
                await self._bring_back()
            await trio.sleep(LOOK_S / 2)
        return None

    def _nobody_is_left_to_help(self, past_s: float) -> bool:
        """Say whether launcher and watchdog are both gone: then nobody starts anything, as it should be."""
        grace_s = self._options.grace_s * self._options.scale
        return (
            past_s > grace_s + 1.0 and self._instance.launcher() is None and self._instance.pid_of("watchdog") is None
        )

    async def _bring_back(self) -> None:
        self.report.notes.append(f"after fault {self._fault} nobody was left to start an instance: started by hand")
        if self._revive is not None and (trouble := await trio.to_thread.run_sync(self._revive)):
            self.report.notes.append(trouble)

    # ------------------------------------------------------------------ judging

    async def _watch_processes(self) -> None:
        before = self._instance.leaders()
        told: set[tuple[str, tuple[int, ...]]] = set()
        while True:
            await trio.sleep(LOOK_S)
            now = await trio.to_thread.run_sync(self._instance.leaders)
            for name, pids in doubles(before, now).items():
                if (name, tuple(pids)) not in told:
                    told.add((name, tuple(pids)))
                    self.report.breaches.append(breach_of_double(name, pids, self._fault))
            before = now

    async def _judge_wire(self, heard: int, marked: int) -> None:
        """Everything that was said while the wire was hurt must have arrived once and in order."""
        arrived = await self._wire.wait_beyond(self._listener.beats, SLACK_S)
        numbers = self._wire.numbers[max(0, heard - 1) :]
        if not arrived or not numbers:
            self._breach("no acknowledged thing lost", "the wire did not come back")
            return
        missing, twins = gaps_and_twins(numbers, first=numbers[0])
        if missing or twins or numbers != sorted(numbers):
            self._breach("no acknowledged thing lost", f"over a hurt wire: missing {missing[:9]}, twice {twins[:9]}")

    def _judge_closes(self, before: int, fault: Fault) -> None:
        for _, code in self._listener.closes[before:]:
            if self._listener.late_s > 5.0 * self._options.scale:
                self.report.notes.append(f"this machine was too busy to judge a close {code}")
            elif guilty_close(code) or code is None:
                self._breach("no healthy peer closed", f"closed with {code} after: {fault.words()}")
        self._listener.late_s = 0.0

    async def _judge(self) -> None:
        if await self._until_whole() is None:
            self._breach("whole again in time", "not whole at the end")
        if not self._options.durable:
            self.report.unchecked["no acknowledged thing lost"] = "held on the wire; no durable stream named chaos"
            return
        kept = dict(self._listener.acknowledged)
        if not kept:
            self._breach("no acknowledged thing lost", "nothing was ever acknowledged")
            return
        found = await read_records(self._instance, min(kept), max(kept), SLACK_S)
        if lost := lost_records(kept, found):
            self._breach("no acknowledged thing lost", f"{len(lost)} of {len(kept)} records: {lost[:9]}")
        self.report.notes.append(f"{len(kept)} acknowledged records were all looked for")

    def judge_end(self, left: Sequence[int], trouble: str | None) -> None:
        """Take in what was left after the stop."""
        if trouble:
            self._breach("nothing left after the stop", trouble)
        if left:
            self._breach("nothing left after the stop", f"still there: {list(left)}")

    def _breach(self, invariant: str, evidence: str) -> None:
        self.report.breaches.append(Breach(invariant, evidence, self._fault))
        self._say(f"      BROKEN: {invariant}: {evidence}")
