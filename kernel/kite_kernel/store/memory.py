"""A fact store in memory: the reference that the other engines are held against, and the tests' fast one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import trio

from .port import Answer, Committed, Conflict, Fact, Unavailable, Unknown


class MemoryStore:
    """Keeps records in a dict. `fault(operation)` may return Unknown or Unavailable, to be had instead of an answer."""

    def __init__(self, fault: Callable[[str], Unknown | Unavailable | None] | None = None) -> None:
        self._records: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._revision = 0
        self._changed = trio.Event()
        self.epoch_floor = 0
        self._fault = fault or (lambda _operation: None)

    def note_epoch(self, epoch: int) -> None:
        """See FactStore: this store's life is its own."""

    async def _step(self, operation: str) -> Unknown | Unavailable | None:
        await trio.lowlevel.checkpoint()
        return self._fault(operation)

    def _put(self, bucket: str, key: str, value: bytes) -> Committed:
        self._revision += 1
        self._records[bucket, key] = (self._revision, value)
        self._changed.set()
        self._changed = trio.Event()
        return Committed(self._revision)

    async def create(self, bucket: str, key: str, value: bytes) -> Answer:
        """See FactStore."""
        fault = await self._step("create")
        if isinstance(fault, Unavailable):
            return fault
        if (bucket, key) in self._records:
            return fault or Conflict(self._records[bucket, key][0])
        return self._put(bucket, key, value) if fault is None else fault

    async def get(self, bucket: str, key: str) -> Fact | Unavailable | None:
        """See FactStore."""
        fault = await self._step("get")
        if isinstance(fault, Unavailable):
            return fault
        found = self._records.get((bucket, key))
        return None if found is None else Fact(bucket, key, found[1], found[0])

    async def update(self, bucket: str, key: str, value: bytes, expected_revision: int) -> Answer:
        """See FactStore."""
        fault = await self._step("update")
        if isinstance(fault, Unavailable):
            return fault
        found = self._records.get((bucket, key))
        if found is None or found[0] != expected_revision:
            return Conflict(None if found is None else found[0])
        committed = self._put(bucket, key, value)
        return committed if fault is None else fault

    async def delete(self, bucket: str, key: str, expected_revision: int) -> Answer:
        """See FactStore."""
        fault = await self._step("delete")
        if isinstance(fault, Unavailable):
            return fault
        found = self._records.get((bucket, key))
        if found is None or found[0] != expected_revision:
            return Conflict(None if found is None else found[0])
        del self._records[bucket, key]
        self._revision += 1
        return Committed(self._revision) if fault is None else fault

    async def list(self, bucket: str, prefix: str = "") -> tuple[Fact, ...] | Unavailable:
        """See FactStore."""
        fault = await self._step("list")
        if isinstance(fault, Unavailable):
            return fault
        return tuple(
            Fact(bucket, key, value, revision)
            for (where, key), (revision, value) in sorted(self._records.items())
            if where == bucket and key.startswith(prefix)
        )

    async def watch(self, bucket: str, from_revision: int = 0) -> AsyncIterator[Fact]:
        """See FactStore."""
        seen = from_revision
        while True:
            changed = self._changed
            rows = [
                Fact(bucket, key, value, revision)
                for (where, key), (revision, value) in self._records.items()
                if where == bucket and revision > seen
            ]
            for row in sorted(rows, key=lambda fact: fact.revision):
                seen = row.revision
                yield row
            await changed.wait()
