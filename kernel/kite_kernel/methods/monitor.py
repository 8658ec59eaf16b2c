"""The monitor and dispatcher of facts: one round at a time, each step one compare-and-swap, so two of them do no harm.

A round judges silence by this kernel's own clock, mends what a crash left half done, names a target for what is due.
The kernel's own lateness and the store's outage give everybody a fresh period. Source: spec 70 §3, cases F-12 … F-22.
"""

from __future__ import annotations

from typing import Final

import trio

from kite_kernel.core import ownership, recovery, replica
from kite_kernel.core.facts import REPLICAS_MAX, Decision, Record, Refuse, Repeat, Write
from kite_kernel.store.port import Conflict, Unavailable

from .desk import LEADER, OWNED, RECOVERY, REPLICA, Facts
from .ownership import open_recovery

LATE_FACTOR: Final = 2.0  # a round this many intervals late says that the kernel itself was away


class Monitor:
    """Rounds over one desk. `interval_s` is how often; `round` may be driven by a test."""

    def __init__(self, facts: Facts, *, interval_s: float) -> None:
        self.facts = facts
        self.interval_s = interval_s
        self._last: float | None = None
        self._outage = False
        self._leader_seen: tuple[int, float] | None = None

    async def run(self) -> None:
        """Go round until cancelled."""
        loaded = False
        while True:
            if not loaded:
                loaded = await self.facts.load() is None
            if loaded:
                await self.round()
            await trio.sleep(self.interval_s)

    async def round(self) -> None:
        """Judge, mend, dispatch, once."""
        facts = self.facts
        now = facts.clock()
        late = self._last is not None and now - self._last > self.interval_s * LATE_FACTOR + 1.0
        self._last = now
        found = await facts.store.list(LEADER)
        if isinstance(found, Unavailable):
            self._outage = True
            return
        if late or self._outage:
            self._outage = False
            facts.fresh_period(now)
            return
        if not await self._lead(now):
            return
        await self._judge(now)
        await self._mend()
        self._dispatch(facts.clock())

    async def _lead(self, now: float) -> bool:
        """True while this kernel holds the monitor's lease, judged by an unchanged revision on its own clock."""
        facts = self.facts
        found = await facts.store.get(LEADER, "monitor")
        if isinstance(found, Unavailable):
            return False
        mine: Record = {"domain": "monitor", "holder": facts.holder, "at": facts.stamp(0)}
        if found is None:
            return await facts.swap(LEADER, "monitor", mine, None) is None
        held = await facts.read(LEADER, "monitor")
        if isinstance(held, tuple) and held[0]["holder"] == facts.holder and held[1] == found.revision:
            self._leader_seen = None
            return True
        if self._leader_seen is None or self._leader_seen[0] != found.revision:
            self._leader_seen = (found.revision, now)
            # An embedded store has one kernel at a time: who stood there before is gone.
            return await facts.swap(LEADER, "monitor", mine, found.revision) is None
        if now - self._leader_seen[1] < facts.times.lease_s:
            return False
        return await facts.swap(LEADER, "monitor", mine, found.revision) is None

    async def _judge(self, now: float) -> None:
        """Silent replicas become suspect, then expired, on the very revision whose silence was seen."""
        facts = self.facts
        for replica_id, (beat, since) in list(facts.beat_seen.items()):
            found = await facts.read(REPLICA, replica_id)
            if found is None or isinstance(found, Refuse):
                continue
            record, revision = found
            if record["beat"] != beat:
                continue
            silence = replica.decide_silent(
                record, silent_s=now - since, suspect_s=facts.times.suspect_s, expire_s=facts.times.expire_s
            )
            if silence is None:
                continue
            done = await facts.swap(REPLICA, replica_id, silence.record, revision)
            if isinstance(done, Conflict):
                facts.counts.conflicts += 1  # a beat came in between and wins
            elif done is None and silence.record["state"] == replica.EXPIRED:
                facts.counts.expired += 1
                facts.tell("replica.expired", {"replica_id": replica_id, "silent_s": round(now - since, 1)})

    async def _mend(self) -> None:
        """Close running keys whose owner is gone; bring recoveries in step with their keys."""
        facts = self.facts
        for key, owner in list(facts.running.items()):
            if not facts.alive(owner):
                await self._interrupt(key, owner)
        for recovery_id, record in list(facts.recoveries.items()):
            await self._settle(recovery_id, record)
        await facts.forget_oldest(REPLICAS_MAX)

    async def _interrupt(self, key: str, owner: str) -> None:
        facts = self.facts
        found = await facts.read(OWNED, key)
        if found is None or isinstance(found, Refuse):
            return
        record = found[0]
        if record["state"] != ownership.RUNNING or record["owner"]["replica_id"] != owner:
            return
        opened = await open_recovery(facts, record, cause="lost")
        if isinstance(opened, Refuse):
            return
        recovery_id, token = opened
        epoch = record["epoch"]

        def decide(now_there: Record | None) -> Decision:
            if now_there is None or now_there["state"] != ownership.RUNNING or now_there["epoch"] != epoch:
                return Repeat({})
            return ownership.decide_interrupt(now_there, recovery_id=recovery_id, recovery_token=token, cause="lost")

        answer = await facts.step(OWNED, key, decide)
        if not isinstance(answer, Refuse) and answer:
            facts.cut_at.setdefault(key, facts.clock())

    async def _settle(self, recovery_id: str, record: Record) -> None:
        """Finish a step that a crash left half done: the key's own record says how far it had come."""
        facts = self.facts
        found = await facts.read(OWNED, record["key"])
        if isinstance(found, Refuse):
            return
        owned = None if found is None else found[0]
        link = None if owned is None else owned["recovery"]
        linked = link is not None and link["id"] == recovery_id
        if owned is not None and owned["state"] == ownership.RUNNING and linked:
            decide = recovery.decide_claimed
        elif owned is not None and owned["state"] == ownership.RUNNING and owned["epoch"] == record["checkpoint_epoch"]:
            return  # made by a pause that has not closed its key yet: it is repeated, or its owner expires
        elif owned is not None and owned["state"] == ownership.INTERRUPTED and linked:
            decide = recovery.decide_reopen
        else:

            def decide(record: Record) -> Write | None:
                return recovery.decide_finish(record, outcome=recovery.DONE, why="its key was released")

        await facts.step(RECOVERY, recovery_id, lambda now_there: (now_there and decide(now_there)) or Repeat({}))

    def _dispatch(self, now: float) -> None:
        """Name a target for each due recovery, once a lease's length."""
        facts = self.facts
        replicas = facts.active_replicas()
        for recovery_id in facts.due(now):
            if now - facts.dispatched_at.get(recovery_id, float("-inf")) < facts.times.lease_s:
                continue
            record = facts.recoveries[recovery_id]
            target = recovery.route(record["route_key"] or record["key"], replicas)
            if target is None:
                continue
            facts.dispatched_at[recovery_id] = now
            facts.tell(
                "recovery.dispatch",
                {
                    "recovery_id": recovery_id,
                    "key": record["key"],
                    "cause": record["cause"],
                    "route_key": record["route_key"],
                    "target": target,
                    "module_id": facts.replicas[target]["module_id"],
                },
            )
