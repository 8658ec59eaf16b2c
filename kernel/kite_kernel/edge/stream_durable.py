"""A durable stream at work: publishes wait for their group, and nobody hears of a message before the log holds it.

One task takes what has gathered, a worker thread writes and syncs it, and only then do numbers, subscribers and answers
hear of it. A failing disk is said to whoever publishes, asked again by itself, and loses nothing that was answered.

Source: spec 40-streams §2 (Durable), 00 §23-24, cases F-26, F-27.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import structlog
import trio

from kite_kernel.core.stream import Stream, message_frame
from kite_kernel.core.stream_commit import GROUP_BYTES, CommitQueue, StoreFailed
from kite_kernel.edge.stream_channel import Channel
from kite_kernel.store.files import reason_of
from kite_kernel.store.stream_log import Entry, LogFailed, StreamLog
from kite_kernel.store.stream_segment import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.stream_commit import Answer, Waiting
    from kite_kernel.edge.stream_wires import SubWire

_log = structlog.get_logger()

LOG_CHUNK_BYTES: Final = 196_608
"""Read from the log at once for a subscriber who is far behind; no more of it is ever held for one."""

PROBE_S: Final = 1.0
"""After a failed write the disk is asked this often whether it takes anything again."""

RETAIN_S: Final = 60.0
"""Retention by age is looked after this often while nothing is published."""


class DurableChannel(Channel):
    """A stream on disk. `run` is its committer; without it nothing is ever safe."""

    def __init__(
        self,
        stream: Stream[SubWire],
        nursery: trio.Nursery,
        *,
        log: StreamLog,
        now_ms: Callable[[], int],
        settle: Callable[[], None],
        readers: trio.CapacityLimiter,
    ) -> None:
        super().__init__(stream, nursery, is_configured=True)
        self.log = log
        self.queue = CommitQueue(log.last_seq)
        self._now_ms = now_ms
        self._settle = settle
        self._readers = readers
        self._wake = trio.Event()
        self._room = trio.Event()
        self._failing: str | None = None
        self.torn_bytes = log.recovery.cut_bytes
        self._finishing = False
        self.finished = trio.Event()

    reads_log = True

    @property
    def is_full(self) -> bool:
        """See Channel."""
        return self.queue.is_full

    async def wait_room(self) -> None:
        """See Channel."""
        await self._room.wait()

    def trouble(self) -> str | None:
        """See Channel."""
        return None if self._failing is None else f"stream {self.stream.name}: store {self._failing}"

    def publish(self, data: str, message_id: str | None, answer: Answer, *, in_batch: bool = True) -> None:
        """See Channel. Answers when the log holds it."""
        if self._finishing:
            answer(StoreFailed("unavailable", "not_sent", "the kernel is stopping"))
            return
        if message_id is not None and self._is_repeat(message_id, answer):
            return
        if self.queue.add(data, message_id, answer, in_batch=in_batch) is None:
            answer(StoreFailed("queue_full", "not_sent", "too many publishes wait for the disk"))
            return
        self._wake.set()

    def _is_repeat(self, message_id: str, answer: Answer) -> bool:
        """Answer a message that is stored, or on its way, already."""
        waiting = self.queue.find(message_id)
        if waiting is not None:
            waiting.answers.append(answer)
            return True
        known = self.stream.known(message_id)
        if known is None:
            try:
                known = self.log.find(message_id.encode())
            except OSError as error:
                answer(StoreFailed(reason_of(error), "not_sent", str(error)))
                return True
        if known is not None:
            answer(known)
        return known is not None

    def disk_numbers(self) -> dict[str, object]:
        """See Channel."""
        log = self.log
        oldest_s = max(0.0, (self._now_ms() - log.oldest_ms) / 1000) if log.oldest_ms else None
        return {
            "durable": True,
            "disk_bytes": log.disk_bytes,
            "oldest_age_s": oldest_s,
            "waiting": len(self.queue),
            "torn_bytes": self.torn_bytes,
        }

    # ---- committing

    async def run(self) -> None:
        """Commit group after group until `finish`. Cancel: between groups."""
        try:
            while not (self._finishing and not len(self.queue)):
                group = self.queue.take(min(GROUP_BYTES, self.log.segment_bytes))
                if group:
                    await self._commit(group)
                    continue
                self._wake = trio.Event()
                with trio.move_on_after(PROBE_S if self._failing else RETAIN_S) as patience:
                    await self._wake.wait()
                if patience.cancelled_caught:
                    await self._look_after()
        finally:
            self.finished.set()

    async def _commit(self, group: list[Waiting]) -> None:
        entries = [Entry(w.seq, w.raw, None if w.message_id is None else w.message_id.encode()) for w in group]
        try:
            await trio.to_thread.run_sync(self._write, entries, self._now_ms())
        except LogFailed as failed:
            self._on_failure(failed)
        except Exception as bug:  # one stream's fault must not end the kernel; what was written is proven again
            self.log.distrust()
            self._on_failure(LogFailed("unavailable", "unknown", f"a fault of the kernel: {type(bug).__name__}"))
        else:
            self._on_safe()
        self._room.set()
        self._room = trio.Event()
        self.flush(patient=True)
        self.flush_publishers()
        self._settle()
        await self.ease()

    def _write(self, entries: list[Entry], now_ms: int) -> None:
        """Write a group, in a worker thread; let go of what retention no longer wants."""
        self.log.append(entries, now_ms=now_ms)
        try:
            self.log.retain(now_ms=now_ms)
        except OSError:
            return  # what should have gone is there a little longer; the group is safe

    def _on_safe(self) -> None:
        if self._failing is not None:
            _log.info("[kernel] stream store works again", key="store_back", stream=self.stream.name)
            self._failing = None
        stream = self.stream
        for waiting in self.queue.committed():
            stream.frames.append(message_frame(waiting.seq, waiting.data))
            if waiting.message_id is not None:
                stream.remember(waiting.message_id, waiting.seq)
            for answer in waiting.answers:
                answer(waiting.seq)
            self.published += 1
        stream.logged_first = self.log.first_seq

    def _on_failure(self, failed: LogFailed) -> None:
        if self._failing != failed.reason:
            _log.error(
                "[kernel] stream store failed",
                key="store_failed",
                stream=self.stream.name,
                reason=failed.reason,
                why=failed.why,
            )
        self._failing = failed.reason
        group_size = len(self.queue.group)
        for at, waiting in enumerate(self.queue.failed()):
            outcome = failed.outcome if at < group_size else "not_sent"
            for answer in waiting.answers:
                answer(StoreFailed(failed.reason, outcome, failed.why))

    async def _look_after(self) -> None:
        """While nothing is published: retention by age, and whether a failed disk takes anything again."""
        try:
            if self._failing is not None:
                await trio.to_thread.run_sync(self.log.probe)
                _log.info("[kernel] stream store works again", key="store_back", stream=self.stream.name)
                self._failing = None
            elif self.config.keep_age_s is not None:
                await trio.to_thread.run_sync(functools.partial(self.log.retain, now_ms=self._now_ms()))
                self.stream.logged_first = self.log.first_seq
        except (OSError, LogFailed):
            return

    async def finish(self) -> None:
        """Commit what waits, then close the log."""
        self._finishing = True
        self._wake.set()
        await self.finished.wait()
        await trio.to_thread.run_sync(self.log.close)

    # ---- reading back

    async def read_log(self, after: int) -> tuple[bytes, int] | None:
        """See Channel. About LOG_CHUNK_BYTES at a time, in a worker thread."""
        return await trio.to_thread.run_sync(self._read, after, self.stream.seq, limiter=self._readers)

    def _read(self, after: int, upto: int) -> tuple[bytes, int] | None:
        try:
            found = self.log.read(after, upto=upto, bytes_max=LOG_CHUNK_BYTES)
        except (OSError, LogDamaged) as error:
            _log.error(
                "[kernel] stream log can't be read", key="store_damaged", stream=self.stream.name, why=str(error)
            )
            return None
        if not found:
            return None
        return b"".join(message_frame(seq, data.decode()) for seq, data in found), found[-1][0]
