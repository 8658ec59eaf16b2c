"""The desk of facts: carries decisions out, one compare-and-swap a step, over any engine behind the seam.

A step reads, decides, swaps; a conflict reads and decides again. What it keeps in memory (replicas, running keys, when
a beat was last seen to change) is a hint for speed and for judging silence by this kernel's clock; the swap decides.
Source: spec 70 §1-3, 00 §16 §24.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kite_kernel.core import ownership, recovery, replica
from kite_kernel.core.facts import Decision, Record, Refuse, Repeat, decode, encode, unavailable
from kite_kernel.store.port import Committed, Conflict, Fact, FactStore, Unavailable, Unknown

REPLICA: Final = "replica"
OWNED: Final = "owned"
RECOVERY: Final = "recovery"
LEADER: Final = "leader"

ROUNDS: Final = 16  # a step that loses this often is told so, instead of trying for ever
CACHE_BYTES: Final = 16 << 20  # records kept in memory to save a trip to the disk


@attrs.frozen
class Times:
    """Durations of [ownership], in seconds, scaled."""

    heartbeat_s: float
    suspect_s: float
    expire_s: float
    quiet_s: float
    lease_s: float
    attempts: int


@attrs.frozen
class Caller:
    """Who asks: a module's id and the role of its token."""

    module_id: str
    role: str


@attrs.define
class Counts:
    """Numbers for /metrics."""

    conflicts: int = 0
    claims: int = 0
    writes: int = 0
    fenced: int = 0
    expired: int = 0
    recovered: int = 0
    abandoned: int = 0
    takeover_s_last: float = 0.0


class Facts:
    """One desk for a kernel: `step` is the only way to change a record."""

    def __init__(
        self,
        store: FactStore,
        times: Times,
        *,
        holder: str,
        clock: Callable[[], float],
        stamp: Callable[[float], str],
        make_token: Callable[[], str],
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """`holder` names this kernel; `stamp(in_s)` is the wall clock in so many seconds; `tell` publishes an event."""
        self.store = store
        self.times = times
        self.holder = holder
        self.clock = clock
        self.stamp = stamp
        self.make_token = make_token
        self.tell = tell
        self.counts = Counts()
        self.replicas: dict[str, Record] = {}
        self.keys = 0
        self.running: dict[str, str] = {}  # key -> replica id
        self.recoveries: dict[str, Record] = {}  # the open ones
        self.due_at: dict[str, float] = {}  # recovery id -> when it may be leased (again)
        self.dispatched_at: dict[str, float] = {}
        self.beat_seen: dict[str, tuple[int, float]] = {}  # replica id -> (beat, since when)
        self.cut_at: dict[str, float] = {}  # key -> when its owner was seen to be gone
        self._cache: OrderedDict[tuple[str, str], Fact] = OrderedDict()
        self._cached_bytes = 0
        self._locks: dict[tuple[str, str], tuple[trio.Lock, int]] = {}

    # ---------------------------------------------------------------- steps

    async def load(self) -> Unavailable | None:
        """Read what the hints need; every time starts with a fresh period."""
        now = self.clock()
        rows: dict[str, tuple[Fact, ...]] = {}
        for bucket in (REPLICA, OWNED, RECOVERY):
            found = await self.store.list(bucket)
            if isinstance(found, Unavailable):
                return found
            rows[bucket] = found
        self.replicas, self.running, self.recoveries = {}, {}, {}
        self.keys = len(rows[OWNED])
        for bucket, facts in rows.items():
            for fact in facts:
                self._note(bucket, fact.key, decode(fact.value), now=now)
        self.fresh_period(now)
        return None

    def fresh_period(self, now: float) -> None:
        """Nobody is judged by silence before this moment: the kernel itself was away, or the store was."""
        self.beat_seen = {
            name: (record["beat"], now) for name, record in self.replicas.items() if record["state"] in replica.ALIVE
        }

    @asynccontextmanager
    async def _alone(self, place: tuple[str, str]) -> AsyncIterator[None]:
        """One step on a record at a time within this kernel, so that its own callers don't conflict with each other."""
        lock, waiting = self._locks.get(place, (trio.Lock(), 0))
        self._locks[place] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[place]
            if waiting == 1:
                del self._locks[place]
            else:
                self._locks[place] = (lock, waiting - 1)

    async def read(self, bucket: str, key: str) -> tuple[Record, int] | Refuse | None:
        """Return a record and its revision on the engine."""
        fact = self._cache.get((bucket, key))
        if fact is None:
            found = await self.store.get(bucket, key)
            if isinstance(found, Unavailable):
                return unavailable(found.reason, found.why)
            if found is None:
                return None
            fact = found
            self._keep(fact)
        else:
            self._cache.move_to_end((bucket, key))
        return decode(fact.value), fact.revision

    async def step(self, bucket: str, key: str, decide: Callable[[Record | None], Decision]) -> dict[str, Any] | Refuse:
        """Read, decide, swap; again on a conflict. Returns the answer, or the refusal."""
        async with self._alone((bucket, key)):
            for _ in range(ROUNDS):
                found = await self.read(bucket, key)
                if isinstance(found, Refuse):
                    return found
                record, revision = (None, None) if found is None else found
                decision = decide(record)
                if isinstance(decision, Refuse):
                    return decision
                if isinstance(decision, Repeat):
                    return decision.answer
                done = await self.swap(bucket, key, decision.record, revision)
                if done is None:
                    return decision.answer
                if isinstance(done, Refuse):
                    return done
                self.counts.conflicts += 1
            return unavailable("unavailable", f"{key} changed {ROUNDS} times while this step was decided")

    async def swap(self, bucket: str, key: str, record: Record, revision: int | None) -> Refuse | Conflict | None:
        """Put a record in place of that revision (None: of nothing); None = committed."""
        value = encode(record)
        self._drop(bucket, key)
        if revision is None:
            answer = await self.store.create(bucket, key, value)
        else:
            answer = await self.store.update(bucket, key, value, revision)
        if isinstance(answer, Unknown):
            answer = await self._read_back(bucket, key, value, revision, answer)
        if isinstance(answer, Unavailable):
            return unavailable(answer.reason, answer.why)
        if isinstance(answer, Unknown):
            return unavailable("unavailable", answer.why, outcome="unknown")
        if isinstance(answer, Conflict):
            return answer
        self._keep(Fact(bucket, key, value, answer.revision))
        self.keys += bucket == OWNED and revision is None
        self._note(bucket, key, record, now=self.clock())
        return None

    async def _read_back(
        self, bucket: str, key: str, value: bytes, revision: int | None, unknown: Unknown
    ) -> Committed | Conflict | Unknown:
        """Look what became of a write of unknown fate; a record holds random tokens and counters: equal is ours."""
        found = await self.store.get(bucket, key)
        if isinstance(found, Unavailable):
            return unknown
        if found is not None and found.value == value:
            return Committed(found.revision)
        if (None if found is None else found.revision) == revision:
            return Conflict(revision)  # it did not happen: decided again, written again
        return unknown

    def _keep(self, fact: Fact) -> None:
        self._drop(fact.bucket, fact.key)
        self._cache[fact.bucket, fact.key] = fact
        self._cached_bytes += len(fact.value)
        while self._cached_bytes > CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= len(oldest.value)

    def _drop(self, bucket: str, key: str) -> None:
        fact = self._cache.pop((bucket, key), None)
        if fact is not None:
            self._cached_bytes -= len(fact.value)

    def _note(self, bucket: str, key: str, record: Record, *, now: float) -> None:
        """Keep the hints in step with what was committed."""
        if bucket == REPLICA:
            self.replicas[key] = record
            if record["state"] not in replica.ALIVE:
                self.beat_seen.pop(key, None)
            elif self.beat_seen.get(key, (-1, 0.0))[0] != record["beat"]:
                self.beat_seen[key] = (record["beat"], now)
        elif bucket == OWNED:
            if record["state"] == ownership.RUNNING:
                self.running[key] = record["owner"]["replica_id"]
            else:
                self.running.pop(key, None)
        elif bucket == RECOVERY:
            self._note_recovery(key, record, now)

    def _note_recovery(self, key: str, record: Record, now: float) -> None:
        before = self.recoveries.get(key)
        if record["state"] not in recovery.OPEN:
            for hints in (self.recoveries, self.due_at, self.dispatched_at):
                hints.pop(key, None)
            return
        self.recoveries[key] = record
        if before is not None and before["state"] == record["state"] and before["attempts"] == record["attempts"]:
            return
        quiet_s, lease_s = self.times.quiet_s, self.times.lease_s
        if record["state"] == recovery.PENDING:
            self.due_at[key] = now + recovery.retry_delay_s(record["attempts"], quiet_s=quiet_s, lease_s=lease_s)
        elif record["state"] == recovery.LEASED:
            self.due_at[key] = now + lease_s
        else:
            self.due_at.pop(key, None)
        self.dispatched_at.pop(key, None)

    # ---------------------------------------------------------------- hints

    def alive(self, replica_id: str) -> bool:
        """True while the replica may own; what nobody knows is not alive."""
        record = self.replicas.get(replica_id)
        return record is not None and record["state"] in replica.ALIVE

    @property
    def living(self) -> int:
        """How many replicas are alive: those whose beats are watched."""
        return len(self.beat_seen)

    async def forget_oldest(self, most: int) -> None:
        """Remove the longest ended replicas beyond so many; their ids were random and come to nobody again."""
        ended = [name for name, record in self.replicas.items() if record["state"] not in replica.ALIVE]
        if len(ended) <= most:
            return
        for name in sorted(ended, key=lambda name: str(self.replicas[name]["since"]))[: len(ended) - most]:
            found = await self.read(REPLICA, name)
            if isinstance(found, tuple):
                self._drop(REPLICA, name)
                if isinstance(await self.store.delete(REPLICA, name, found[1]), Committed):
                    del self.replicas[name]

    def active_replicas(self) -> list[str]:
        """Return the ids of replicas that recoveries may be routed to."""
        return sorted(name for name, record in self.replicas.items() if record["state"] == replica.ACTIVE)

    def due(self, now: float) -> list[str]:
        """Return the recoveries that may be leased now, the longest due first."""
        return sorted((name for name, at in self.due_at.items() if at <= now), key=lambda name: self.due_at[name])
