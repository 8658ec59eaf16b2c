"""One stream at work: the pure stream, its wires, and for a durable one the log behind it.

A volatile publish is done when `publish` returns. A durable one waits for its group: one task takes what has gathered,
a worker thread writes and syncs it, and only then do numbers, subscribers and answers hear of it.

Source: spec 40-streams §2, 00 §22-24.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import structlog
import trio

from kite_kernel.core.stream import Stream, StreamConfig, message_frame
from kite_kernel.core.stream_commit import GROUP_BYTES, CommitQueue, StoreFailed
from kite_kernel.store.files import reason_of
from kite_kernel.store.stream_log import Entry, LogFailed, StreamLog
from kite_kernel.store.stream_segment import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.stream_commit import Answer, Waiting
    from kite_kernel.edge.stream_wires import PubWire, SubWire
    from kite_kernel.store.stream_numbers import StreamNumbers

_log = structlog.get_logger()

LOG_CHUNK_BYTES: Final = 196_608
"""Read from the log at once for a subscriber who is far behind; no more of it is ever held for one."""

PROBE_S: Final = 1.0
"""After a failed write the disk is asked this often whether it takes anything again."""

PAUSE_S: Final = 0.25
"""A subscriber with a full queue that takes nothing for this long is cut.

Until then publishers are not read from. A hub that is faster than every reader would cut them all: a burst of 64 MB
is here in 0.1 s, and no reader that has to parse it keeps up with that.
"""

PATIENCE_S: Final = 3.0
"""All such pauses of one stream together; used up, a full queue means the cut at once."""

PATIENCE_LEAST_S: Final = 0.001
"""Less than this is none: a clock may not even show it."""

PATIENCE_REFILL: Final = 0.1
"""Of the time that passes: slow readers cost a publisher no more than a tenth of it in the long run."""

RETAIN_S: Final = 60.0
"""Retention by age is looked after this often while nothing is published."""


class Channel:
    """What all streams share; `VolatileChannel` and `DurableChannel` differ in how a publish becomes safe."""

    def __init__(self, stream: Stream[SubWire], nursery: trio.Nursery, *, is_configured: bool) -> None:
        self.stream = stream
        self.config: StreamConfig = stream.config
        self.nursery = nursery
        self.is_configured = is_configured
        self.publishers: set[PubWire] = set()
        self.published = 0
        self.rate = 0.0
        self.used_at = trio.current_time()
        self.ring_bytes_max: int | None = None
        self._counted = 0
        self._touched: set[PubWire] = set()
        self._lagging: set[SubWire] = set()
        self._eased = trio.Event()
        self._patience_s = PATIENCE_S
        self._patience_at = self.used_at

    # ---- publishing

    def publish(self, data: str, message_id: str | None, answer: Answer, *, in_batch: bool = True) -> None:
        """Take one message; `answer` hears once, now or later, what became of it."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Whether a publisher should be read from no further."""
        return False

    async def wait_room(self) -> None:
        """Wait until it should be."""
        await trio.lowlevel.checkpoint()

    # ---- sending

    def flush(self, *, patient: bool = False) -> None:
        """Send to every subscriber what it hasn't got, judge the slow, let the oldest frames go. Never waits.

        Args: `patient`: the caller awaits `ease` next.
        """
        stream = self.stream
        patient = patient and self._left_s() >= PATIENCE_LEAST_S
        for subscriber in tuple(stream.subscribers):
            subscriber.hand.flush(patient=patient)
        floor = min((wire.at.cursor + 1 for wire in self._lagging), default=None)
        stream.frames.trim(self.ring_bytes_max, floor=floor)
        stream.frames.forget_joined()

    # ---- the moment that a full queue gets

    def spare(self, wire: SubWire) -> None:
        """A subscriber's queue is full; `ease` waits for it."""
        self._lagging.add(wire)

    def is_spared(self, wire: SubWire) -> bool:
        """Whether it is being waited for."""
        return wire in self._lagging

    def eased(self, wire: SubWire) -> None:
        """It has taken enough, or has gone."""
        self._lagging.discard(wire)
        if not self._lagging:
            self._eased.set()

    def _left_s(self) -> float:
        """Return what is left of the patience, filled up with time."""
        now = trio.current_time()
        self._patience_s = min(PATIENCE_S, self._patience_s + PATIENCE_REFILL * (now - self._patience_at))
        self._patience_at = now
        return self._patience_s

    async def ease(self) -> None:
        """Give those with a full queue a moment, then cut the ones who don't take it. Cancel: safe."""
        while self._lagging:
            began_at = trio.current_time()
            self._eased = trio.Event()
            with trio.move_on_after(min(PAUSE_S, self._left_s())):
                await self._eased.wait()
            now = trio.current_time()
            self._patience_s -= now - began_at
            is_over = self._left_s() < PATIENCE_LEAST_S
            for wire in tuple(self._lagging):
                if is_over or now - wire.took_at >= PAUSE_S:
                    wire.cut_slow()

    def touch_publisher(self, wire: PubWire) -> None:
        """Note that answers for this publisher are ready."""
        self._touched.add(wire)

    def flush_publishers(self) -> None:
        """Send the answers that are ready."""
        touched, self._touched = self._touched, set()
        for wire in touched:
            wire.wire.flush()

    def on_slow(self, wire: SubWire) -> None:
        """Say who was too slow, and how far behind."""
        _log.info(
            "[kernel] slow stream subscriber cut",
            key="slow_consumer",
            stream=self.stream.name,
            address=wire.addr,
            behind=self.stream.seq - wire.at.cursor,
        )

    @property
    def is_unused(self) -> bool:
        """Whether nobody is connected to it."""
        return not self.stream.subscribers and not self.publishers

    def count(self, elapsed_s: float) -> None:
        """Work out the rate since the last call."""
        fresh, self._counted = self.published - self._counted, self.published
        self.rate = fresh / elapsed_s if elapsed_s > 0 else 0.0

    # ---- a log, where there is one

    reads_log = False

    async def read_log(self, after: int) -> tuple[bytes, int] | None:
        """Read the frames after number `after` from the log. None: they are no longer kept."""
        raise NotImplementedError

    def trouble(self) -> str | None:
        """Return what is wrong with the store, for /readyz."""
        return None

    def disk_numbers(self) -> dict[str, object]:
        """Say what is on disk, for those who ask for numbers."""
        return {"durable": False}

    async def finish(self) -> None:
        """Make everything safe and let go. Cancel: shielded by the caller."""

    def close_all(self, code: int, reason: str, frames: bytes = b"") -> None:
        """Close every wire of this stream."""
        for subscriber in tuple(self.stream.subscribers):
            subscriber.hand.end(code, reason, frames)
        for publisher in tuple(self.publishers):
            publisher.end(code, reason, frames)


class VolatileChannel(Channel):
    """A stream in memory; its numbers go on over restarts."""

    def __init__(
        self, stream: Stream[SubWire], nursery: trio.Nursery, *, is_configured: bool, numbers: StreamNumbers
    ) -> None:
        super().__init__(stream, nursery, is_configured=is_configured)
        self._numbers = numbers

    def publish(self, data: str, message_id: str | None, answer: Answer, *, in_batch: bool = True) -> None:
        """See Channel. Answers at once."""
        del in_batch
        stream = self.stream
        if message_id is not None:
            known = stream.known(message_id)
            if known is not None:
                answer(known)
                return
        if self._numbers.needs_block(stream.name, stream.seq + 1):
            self._reserve(stream.seq + 1)
        seq = stream.publish(data)
        self.published += 1
        if message_id is not None:
            stream.remember(message_id, seq)
        answer(seq)

    def _reserve(self, seq: int) -> None:
        try:
            self._numbers.reserve(self.stream.name, seq)
        except OSError as error:
            _log.warning(
                "[kernel] the numbers of a stream can't be written down",
                key="stream_numbers",
                stream=self.stream.name,
                why=error.strerror,
            )


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
