"""The embedded fact store: SQLite in one worker thread, waiting steps carried out together with one sync.

Steps that arrive while a batch is on the disk form the next one, so the cost of a sync is shared by all who wait.
Cancellation: a cancelled write may have happened. Source: spec 00 §23-24, 70 §1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import attrs
import trio

from .port import Answer, Fact, Unavailable
from .sqlite_copy import Copied
from .sqlite_file import Result, SqliteFile, Step

BATCH_MAX: Final = 256  # steps in one transaction
QUEUE_MAX: Final = 4096  # steps that may wait; beyond it the store says that it is overloaded


@attrs.define(eq=False)
class _Waiting:
    step: Step
    done: trio.Event = attrs.field(factory=trio.Event)
    result: Result = None


class SqliteStore:
    """A FactStore. `run` must run in the kernel's nursery; it ends, and with it the file, when it is cancelled."""

    def __init__(self, file: SqliteFile, *, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._arrived = trio.Event()
        self._changed = trio.Event()
        self._disk = trio.Lock()  # one thread at a time uses the file
        self.batches = 0
        self.steps = 0
        self.refused = 0

    @property
    def fault(self) -> Unavailable | None:
        """Why facts are refused just now; None = all is well."""
        return self._file.fault

    def note_epoch(self, epoch: int) -> None:
        """Remember the highest epoch given out, in the second place too."""
        self._file.epoch_high = max(self._file.epoch_high, epoch)

    @property
    def epoch_floor(self) -> int:
        """The epoch that a new key begins at: 0, or where an older store that was begun anew had come to."""
        return self._file.epoch_floor

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the file and serve until cancelled."""
        await trio.to_thread.run_sync(self._file.open)
        task_status.started()
        try:
            while True:
                while not self._queue:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
                await self._carry_out(batch)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                async with self._disk:
                    await trio.to_thread.run_sync(self._file.close)
            for waiting in self._queue:
                waiting.result = Unavailable("unavailable", "the kernel stops")
                waiting.done.set()

    async def _carry_out(self, batch: list[_Waiting]) -> None:
        steps = [waiting.step for waiting in batch]
        # Shielded: a thread can't be cancelled, and its answers must reach those who wait.
        with trio.CancelScope(shield=True):
            async with self._disk:
                now = self._clock()
                results = await trio.to_thread.run_sync(lambda: self._file.execute(steps, now=now))
        self.batches += 1
        self.steps += len(batch)
        for waiting, result in zip(batch, results, strict=True):
            waiting.result = result
            waiting.done.set()
        if any(step.writes for step in steps):
            self._changed.set()
            self._changed = trio.Event()

    async def copy(self, target: Path) -> Copied | Unavailable:
        """Copy all that stands into a new file; steps wait meanwhile. Cancel: safe, the copy may still appear."""
        async with self._disk:
            # not abandoned when cancelled: the thread goes on to use the file, and the lock has to outlast it
            return await trio.to_thread.run_sync(self._file.copy, target)

    async def _ask(self, step: Step) -> Result:
        if len(self._queue) >= QUEUE_MAX:
            self.refused += 1
            return Unavailable("unavailable", f"more than {QUEUE_MAX} steps wait for the disk")
        waiting = _Waiting(step)
        self._queue.append(waiting)
        self._arrived.set()
        await waiting.done.wait()
        return waiting.result

    async def _write(self, step: Step) -> Answer:
        result = await self._ask(step)
        if result is None or isinstance(result, Fact | tuple):
            raise AssertionError("a write is answered by an answer")
        return result

    async def create(self, bucket: str, key: str, value: bytes) -> Answer:
        """See FactStore."""
        return await self._write(Step("create", bucket, key, value))

    async def update(self, bucket: str, key: str, value: bytes, expected_revision: int) -> Answer:
        """See FactStore."""
        return await self._write(Step("update", bucket, key, value, expected_revision))

    async def delete(self, bucket: str, key: str, expected_revision: int) -> Answer:
        """See FactStore."""
        return await self._write(Step("delete", bucket, key, revision=expected_revision))

    async def get(self, bucket: str, key: str) -> Fact | Unavailable | None:
        """See FactStore."""
        result = await self._ask(Step("get", bucket, key))
        if result is None or isinstance(result, Fact | Unavailable):
            return result
        raise AssertionError("a get is answered by a record")

    async def list(self, bucket: str, prefix: str = "") -> tuple[Fact, ...] | Unavailable:
        """See FactStore."""
        result = await self._ask(Step("list", bucket, prefix))
        return result if isinstance(result, tuple | Unavailable) else Unavailable("unavailable", "no list")

    async def watch(self, bucket: str, from_revision: int = 0) -> AsyncIterator[Fact]:
        """See FactStore."""
        seen = from_revision
        while True:
            changed = self._changed
            rows = await self._ask(Step("since", bucket, revision=seen))
            for row in rows if isinstance(rows, tuple) else ():
                seen = row.revision
                yield row
            if not rows or isinstance(rows, Unavailable):
                await changed.wait()
