"""A stream: numbers, ring, subscribers' cursors and the law of the slow one, as plain values.

A message gets the next `seq` and becomes one finished WebSocket frame; nothing encodes it again, however many
subscribers there are. A subscriber owns no copy: it is a cursor into the frames that the stream keeps, and its queue is
what lies between its cursor and the newest frame. Subscribers at the same place get the very same joined bytes.

Laws
- `seq` only grows, by one a message, from 1; a number is never given out twice in one epoch.
- A subscriber reads cursor+1, cursor+2, …: no gap and no twin, or it is told (reset, or the close 1013).
- Frames leave the ring in `trim`, which the edge calls after its flush, never in the middle of a read batch.
- A replay doesn't count against a subscriber's queue: until it has caught up once, only the ring bounds it.

Source: spec 40-streams §1-2, 05-surface §9 (Streams), 00-decisions §22.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, Generic, TypeVar

import attrs
import msgspec

from kite_kernel._contract import STREAM_IDS, STREAM_RING_BYTES
from kite_kernel.core.websocket import text_frame

CHUNK_BYTES: Final = 65_536
"""Joined bytes handed to a socket at once: few calls for a fast one, little to hold for each slow one."""

_encode = msgspec.json.Encoder().encode

Hand = TypeVar("Hand")


@attrs.frozen
class StreamConfig:
    """The settings of one stream, with the users' defaults. Times in seconds, never scaled. Source: 05-surface §6."""

    ring: int = 1000
    queue: int = 100
    queue_bytes: int = 8_388_608
    ping_interval_s: float = 1.0
    ping_timeout_s: float = 2.0
    close_timeout_s: float = 1.0
    durable: bool = False
    keep_bytes: int = 1_073_741_824
    keep_messages: int | None = None
    keep_age_s: float | None = None


class Why(Enum):
    """Why a subscriber can't go on where it asked to."""

    EVICTED = "evicted"
    AHEAD = "ahead"
    EPOCH = "epoch"


@attrs.frozen
class Join:
    """Where a new subscriber starts: its cursor, and the text of the reset that goes first, if something is lost."""

    cursor: int
    reset: bytes | None = None
    why: Why | None = None


@attrs.frozen
class Statistics:
    """What a stream has to say about itself; `first` is the oldest number that can still be replayed."""

    subscribers: int
    dropped: int
    seq: int
    epoch: str
    ring: int
    bytes: int
    first: int


def message_text(seq: int, data: str) -> bytes:
    """Make the text of one message: `{"seq":n,"data":"…"}`. Source: 40-streams §1."""
    return b'{"seq":%d,"data":%b}' % (seq, _encode(data))


def message_frame(seq: int, data: str) -> bytes:
    """Make the one frame of one message."""
    return text_frame(message_text(seq, data))


class Frames:
    """The newest frames of a stream under their numbers.

    Holds `keep` of them after each `trim` and everything that was appended since the last one before it.
    """

    __slots__ = ("_cache", "_cache_from", "_cache_to", "_frames", "bytes", "bytes_max", "keep", "oldest", "seq")

    def __init__(self, *, keep: int, seq: int = 0, bytes_max: int = STREAM_RING_BYTES) -> None:
        """Start empty after number `seq`."""
        self.keep = keep
        self.bytes_max = bytes_max
        self.seq = seq
        self.oldest = seq + 1
        self.bytes = 0
        self._frames: dict[int, bytes] = {}
        self._cache_from = self._cache_to = -1
        self._cache = b""

    def append(self, frame: bytes) -> int:
        """Keep `frame` under the next number and return that."""
        seq = self.seq + 1
        self.seq = seq
        self._frames[seq] = frame
        self.bytes += len(frame)
        self._cache_from = -1
        return seq

    def trim(self, bytes_max: int | None = None, *, floor: int | None = None) -> None:
        """Let the oldest go until count and bytes are inside their bounds; the newest always stays.

        Args: `bytes_max`: a tighter bound for now, where all streams together hold too much. `floor`: the count alone
        lets nothing go from this number on, because a subscriber is being waited for.
        """
        frames = self._frames
        most = self.bytes_max if bytes_max is None else min(bytes_max, self.bytes_max)
        last_out = self.seq - self.keep if floor is None else min(self.seq - self.keep, floor - 1)
        while self.oldest < self.seq and (self.oldest <= last_out or self.bytes > most):
            self.bytes -= len(frames.pop(self.oldest))
            self.oldest += 1

    def chunk(self, cursor: int) -> tuple[bytes, int]:
        """Join what follows `cursor`, about CHUNK_BYTES of it and at least one frame.

        Returns (bytes, the number of the last frame in them); (b"", cursor) when nothing follows. Should never be asked
        for a frame that is gone: `oldest` says so before.
        """
        if cursor >= self.seq:
            return b"", cursor
        if cursor == self._cache_from:
            return self._cache, self._cache_to
        frames = self._frames
        parts: list[bytes] = []
        size = 0
        end = cursor
        while end < self.seq and size < CHUNK_BYTES:
            end += 1
            frame = frames[end]
            parts.append(frame)
            size += len(frame)
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        self._cache_from, self._cache_to, self._cache = cursor, end, joined
        return joined, end

    def forget_joined(self) -> None:
        """Drop the shared joined bytes, which would otherwise live as long as the stream is quiet."""
        self._cache_from = -1
        self._cache = b""

    def bytes_after(self, cursor: int) -> int:
        """Sum what lies between `cursor` and the newest frame, in bytes."""
        frames = self._frames
        return sum(len(frames[seq]) for seq in range(cursor + 1, self.seq + 1))


class Subscriber(Generic[Hand]):
    """One reader of one stream: a cursor. `live` once it has caught up; only then does its queue have a bound."""

    __slots__ = ("cursor", "hand", "joined_at", "live")

    def __init__(self, cursor: int, *, joined_at: float, hand: Hand) -> None:
        """Stand after number `cursor`, since `joined_at` (monotonic seconds); `hand` is whoever sends to it."""
        self.cursor = cursor
        self.live = False
        self.joined_at = joined_at
        self.hand = hand


class Stream(Generic[Hand]):
    """Numbers, frames, ids and subscribers of one stream."""

    def __init__(self, name: str, config: StreamConfig, *, epoch: str, seq: int = 0, first: int | None = None) -> None:
        """Go on after number `seq` of `epoch`; `first` is the oldest number that a durable log can replay."""
        self.name = name
        self.config = config
        self.epoch = epoch
        self.dropped = 0
        self.frames = Frames(
            keep=max(config.ring, config.queue), seq=seq, bytes_max=max(STREAM_RING_BYTES, 2 * config.queue_bytes)
        )
        self.subscribers: set[Subscriber[Hand]] = set()
        self.logged_first = first
        self._ids: dict[str, int] = {}

    @property
    def seq(self) -> int:
        """The last number given out (of a durable stream: the last one that is safe)."""
        return self.frames.seq

    @property
    def first(self) -> int:
        """The oldest number that can be replayed; `seq + 1` when nothing can."""
        in_ring = max(self.frames.oldest, self.seq - self.config.ring + 1)
        return in_ring if self.logged_first is None else min(self.logged_first, self.seq + 1)

    def publish(self, data: str) -> int:
        """Give `data` the next number and keep its frame. Returns the number."""
        return self.frames.append(message_frame(self.frames.seq + 1, data))

    def known(self, message_id: str) -> int | None:
        """Return the number under which `message_id` is stored, if it is remembered."""
        return self._ids.get(message_id)

    def remember(self, message_id: str, seq: int) -> None:
        """Remember `message_id` at least as long as its message is kept. Source: 05-surface §9."""
        ids = self._ids
        ids[message_id] = seq
        if len(ids) > max(STREAM_IDS, self.config.ring):
            del ids[next(iter(ids))]

    def join(self, last: int | None, epoch: str | None) -> Join:
        """Decide where a subscriber starts that asks for what follows `last` of `epoch` (None: didn't say)."""
        seq = self.seq
        if last is None:
            return Join(seq)
        if epoch is not None and epoch != self.epoch:
            why = Why.EPOCH
        elif last > seq:
            why = Why.AHEAD
        elif last + 1 < self.first:
            why = Why.EVICTED
        else:
            return Join(last)
        return Join(seq, self.reset_text(why, told_epoch=epoch is not None), why)

    def reset_text(self, why: Why, *, told_epoch: bool) -> bytes:
        """Make the reset: short for those who know no epochs, else with what is lost. Source: 05-surface §9."""
        if not told_epoch:
            return b'{"reset":true,"seq":%d}' % self.seq
        return b'{"reset":true,"seq":%d,"epoch":%b,"why":"%b","first":%d}' % (
            self.seq,
            _encode(self.epoch),
            why.value.encode(),
            self.first,
        )

    def take(self, subscriber: Subscriber[Hand]) -> bytes | None:
        """Move `subscriber` on by one chunk and return its bytes.

        Returns b"" when it has everything, None when what it needs is no longer in the ring (a durable stream then
        reads its log; of a volatile one the subscriber is lost: `is_slow` says so).
        """
        cursor = subscriber.cursor
        frames = self.frames
        if cursor >= frames.seq:
            subscriber.live = True
            return b""
        if cursor + 1 < frames.oldest:
            return None
        joined, subscriber.cursor = frames.chunk(cursor)
        if subscriber.cursor >= frames.seq:
            subscriber.live = True
        return joined

    def is_lost(self, subscriber: Subscriber[Hand]) -> bool:
        """Tell whether what a subscriber needs next has left the ring."""
        return subscriber.cursor + 1 < self.frames.oldest

    def is_slow(self, subscriber: Subscriber[Hand]) -> bool:
        """Judge after the flush: more waits for it than its queue holds, or its replay was overtaken by the ring.

        A single entry larger than the queue's bytes is no reason: it is delivered alone. Source: 40-streams §2, 00 §22.
        """
        if not subscriber.live:
            return self.logged_first is None and self.is_lost(subscriber)
        lag = self.frames.seq - subscriber.cursor
        if lag > self.config.queue or self.is_lost(subscriber):
            return True
        return lag > 1 and self.frames.bytes_after(subscriber.cursor) > self.config.queue_bytes

    def drop(self, subscriber: Subscriber[Hand]) -> None:
        """Take a slow subscriber off the list and count it."""
        if subscriber in self.subscribers:
            self.subscribers.discard(subscriber)
            self.dropped += 1

    def statistics(self) -> Statistics:
        """Say the numbers of `/stats` and a few more."""
        return Statistics(
            subscribers=len(self.subscribers),
            dropped=self.dropped,
            seq=self.seq,
            epoch=self.epoch,
            ring=self.config.ring,
            bytes=self.frames.bytes,
            first=self.first,
        )

    def lags(self) -> Iterable[tuple[Subscriber[Hand], int]]:
        """Say how far behind each subscriber is, in messages."""
        seq = self.seq
        return [(subscriber, seq - subscriber.cursor) for subscriber in self.subscribers]
