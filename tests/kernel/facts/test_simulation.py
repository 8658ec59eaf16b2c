"""Kernels, replicas, store and monitors in one process under one seed: crashes at any step, writes of unknown fate,
zombies, two monitors. A failing seed replays by its number.

Laws at every moment: no two accepted writers in one epoch; epochs and revisions only rise; what was acknowledged
stands; no item twice. At the end: every key is finished by somebody or visibly abandoned.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from tests.support.facts import TIMES, Desk

from kite_kernel.core import replica
from kite_kernel.core.facts import Refuse
from kite_kernel.store.memory import MemoryStore
from kite_kernel.store.port import Unavailable, Unknown

KEYS = ("k1", "k2", "k3")
WORKERS = 4
STEPS = 260


class Crash(Exception):
    """The kernel process is gone."""


class World:
    """Everything that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.faults = True
        self.store = MemoryStore(self._fault)
        self.boots = 0
        self.now = 1000.0
        self.workers: list[dict[str, Any]] = []
        self.writers: dict[tuple[str, int], str] = {}  # (key, epoch) -> who was accepted
        self.acknowledged: dict[str, list[str]] = {key: [] for key in KEYS}
        self.highest: dict[str, tuple[int, int]] = dict.fromkeys(KEYS, (0, 0))
        self.item = 0

    def _fault(self, operation: str) -> Unknown | Unavailable | None:
        if not self.faults:
            return None
        roll = self.chance.random()
        if roll < 0.01:
            raise Crash
        if roll < 0.02 and operation in ("create", "update"):
            return Unknown("the answer was lost")
        if roll < 0.03:
            return Unavailable("unavailable", "for a moment")
        return None

    async def boot(self) -> None:
        """A kernel starts over the store that is there."""
        self.boots += 1
        self.desk = Desk(self.store, holder=f"k{self.boots}", start=self.now, seed=f"s{self.seed}-")
        self.other = Desk(self.store, holder=f"m{self.boots}", start=self.now, seed=f"o{self.seed}-")
        for desk in (self.desk, self.other):
            while await desk.facts.load() is not None:
                pass

    async def call(self, method: str, **params: Any) -> dict[str, Any] | None:
        """Ask the kernel; None = refused, or nobody knows."""
        answer = await self.desk.call(method, **params)
        return None if isinstance(answer, Refuse) else answer

    # ------------------------------------------------------------ what may happen

    async def step(self) -> None:
        action = self.chance.choice(
            (self.hire, self.pass_time, self.pass_time, self.beat, self.claim, self.claim, self.write, self.write,
             self.write, self.recover, self.recover, self.pause, self.kill, self.second_monitor, self.finish)
        )  # fmt: skip
        await action()

    async def hire(self) -> None:
        if len(self.workers) < WORKERS:
            made = await self.call("replica.register", caller=f"w{len(self.workers)}")
            if made is not None:
                self.workers.append({**made, "owns": {}, "stopped": False})

    def worker(self) -> dict[str, Any] | None:
        return self.chance.choice(self.workers) if self.workers else None

    async def pass_time(self) -> None:
        for _ in range(self.chance.choice((1, 3, 8))):
            self.now += 1.0
            self.desk.now = self.other.now = self.now
            for worker in self.workers:
                if not worker["stopped"] and int(self.now) % 4 == 0:
                    await self._beat(worker)
            await self.desk.monitor.round()

    async def second_monitor(self) -> None:
        """Another kernel's monitor, with an old or a fresh list."""
        self.other.facts._cache.clear()
        if self.chance.random() < 0.5:
            await self.other.facts.load()
        await self.other.monitor.round()

    async def _beat(self, worker: dict[str, Any]) -> None:
        await self.call("replica.heartbeat", replica_id=worker["replica_id"], token=worker["token"], tasks=1)

    async def beat(self) -> None:
        worker = self.worker()
        if worker is not None:
            await self._beat(worker)

    async def claim(self) -> None:
        worker, key = self.worker(), self.chance.choice(KEYS)
        if worker is None:
            return
        await self.call("ownership.create", key=key)
        bearer = {"replica_id": worker["replica_id"], "replica_token": worker["token"]}
        claimed = await self.call("ownership.claim", key=key, **bearer)
        if claimed is not None:
            worker["owns"][key] = (claimed["guard"], None)

    async def recover(self) -> None:
        worker = self.worker()
        found = await self.call("recovery.lease", dispatcher="d") if worker is not None else None
        for offer in found["recoveries"] if found is not None else ():
            assert worker is not None
            claimed = await self.call(
                "recovery.claim", recovery_id=offer["recovery_id"], token=offer["token"],
                checkpoint_epoch=offer["checkpoint_epoch"], replica_id=worker["replica_id"],
                replica_token=worker["token"],
            )  # fmt: skip
            if claimed is not None:
                worker["owns"][claimed["key"]] = (claimed["guard"], offer["recovery_id"])

    async def write(self) -> None:
        """Whoever ever owned something may try, stopped ones too: they are the zombies."""
        worker = self.worker()
        if worker is None or not worker["owns"]:
            return
        key = self.chance.choice(list(worker["owns"]))
        guard, _ = worker["owns"][key]
        self.item += 1
        name = f"i{self.item}"
        answer = await self.call("ownership.write", key=key, guard=guard, append=[{"id": name}], nonce=name)
        if answer is not None:
            owner = self.writers.setdefault((key, guard["epoch"]), worker["replica_id"])
            assert owner == worker["replica_id"], f"two writers in epoch {guard['epoch']} of {key}"
            assert self.desk.facts.replicas[worker["replica_id"]]["state"] in replica.ALIVE
            self.acknowledged[key].append(name)

    async def pause(self) -> None:
        await self._let_go("ownership.pause", checkpoint={"at": self.item})

    async def finish(self) -> None:
        if self.chance.random() < 0.2:
            await self._let_go("ownership.release", state=self.chance.choice(("idle", "done")))

    async def _let_go(self, method: str, **params: Any) -> None:
        worker = self.worker()
        if worker is None or not worker["owns"]:
            return
        key = self.chance.choice(list(worker["owns"]))
        guard, recovery_id = worker["owns"][key]
        if recovery_id is not None and method == "ownership.release":
            await self.call("recovery.complete", recovery_id=recovery_id, guard=guard, outcome="done")
        await self.call(method, key=key, guard=guard, **params)

    async def kill(self) -> None:
        worker = self.worker()
        if worker is not None and self.chance.random() < 0.3:
            worker["stopped"] = True
            if self.chance.random() < 0.5:
                self.workers.remove(worker)

    # ------------------------------------------------------------ what must hold

    async def look(self) -> None:
        for key in KEYS:
            shown = await self.call("ownership.get", key=key)
            if shown is None:
                continue
            seen = (shown["epoch"], shown["revision"])
            assert seen[0] >= self.highest[key][0], f"the epoch of {key} went back"
            assert seen[1] >= self.highest[key][1], f"the revision of {key} went back"
            self.highest[key] = seen
            items = [item["id"] for item in shown["data"].get("items", ())]
            assert len(items) == len(set(items)), "an item twice"
            assert set(self.acknowledged[key]) <= set(items), "an acknowledged write is lost"

    async def settle(self) -> None:
        """No more faults: whoever lives goes on with what is left, until nothing is."""
        self.faults = False
        await self.boot()
        self.workers = []
        await self.hire()
        (worker,) = self.workers
        for _ in range(60):
            for _ in range(10):
                self.now += 1.0
                self.desk.now = self.now
                await self._beat(worker)
                await self.desk.monitor.round()
            await self.recover()
            for key, (guard, recovery_id) in list(worker["owns"].items()):
                await self.call("recovery.complete", recovery_id=recovery_id, guard=guard, outcome="done")
                await self.call("ownership.release", key=key, guard=guard, state="idle")
            listed = await self.call("ownership.list")
            if listed is not None and all(row["state"] in ("idle", "done", "failed") for row in listed["records"]):
                rows = (await self.call("recovery.list") or {})["recoveries"]
                if all(row["state"] in ("done", "abandoned") for row in rows):
                    return
        raise AssertionError(f"never settled: {listed}")


async def live(seed: int) -> int:
    world = World(seed)
    world.faults = False
    await world.boot()
    world.faults = True
    for _ in range(STEPS):
        try:
            await world.step()
        except Crash:
            world.faults = False
            await world.boot()
            world.faults = True
        world.faults = False
        await world.look()
        world.faults = True
    await world.settle()
    await world.look()
    return sum(len(items) for items in world.acknowledged.values())


@pytest.mark.parametrize("block", range(4))
def test_no_seed_breaks_a_law(block: int) -> None:
    written = 0
    for seed in range(block * 100, block * 100 + 100):
        try:
            written += trio.run(live, seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert written > 100 * 5  # the worlds were alive
    assert TIMES.expire_s > 8  # a beat each fourth second is in time
