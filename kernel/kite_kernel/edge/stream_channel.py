"""One stream at work: the pure stream and its wires, who is waited for, and who is cut.

`VolatileChannel` keeps its messages in memory; a publish is done when `publish` returns. Its durable brother is
`stream_durable`. Source: spec 40-streams §2, 00 §22.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from kite_kernel.core.stream import Stream, StreamConfig

if TYPE_CHECKING:
    from kite_kernel.core.stream_commit import Answer
    from kite_kernel.edge.stream_wires import PubWire, SubWire
    from kite_kernel.store.stream_numbers import StreamNumbers

_log = structlog.get_logger()

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
