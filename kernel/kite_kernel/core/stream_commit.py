"""Publishes on their way to the disk: a number each, one fsync for all that wait, and what becomes of them if it fails.

A durable stream gives a number when a publish arrives, but nobody sees it before the log holds it. While one group is
being written the next one gathers here; a failed group and everything behind it are taken back, and their numbers are
given out again: nobody has seen them.

Laws
- Groups are taken one at a time; `committed` or `failed` answers each before the next is taken.
- What waits is bounded in messages and bytes; beyond it a publish is refused, never queued.

Source: spec 40-streams §2 (Durable), 00-decisions §23-24.
"""

from collections.abc import Callable
from typing import Final

import attrs

from kite_kernel._contract import STREAM_WAITING

WAITING_BYTES: Final = 33_554_432
"""Bytes of them: two of the largest messages that may be configured."""

GROUP_BYTES: Final = 4_194_304
"""Bytes written by one group: the fsync's price is shared, and nobody waits for a write of seconds."""


@attrs.frozen
class StoreFailed:
    """Why a publish isn't safe. `reason` as in −32008, `outcome` as a retry needs it: `not_sent` or `unknown`."""

    reason: str
    outcome: str
    why: str


Answer = Callable[[int | StoreFailed], None]
"""Told once what became of a publish: the number it is stored under, or why not."""


@attrs.define
class Waiting:
    """One publish that isn't safe yet; `answers` are its publisher's and those of its repeats."""

    seq: int
    data: str
    raw: bytes
    message_id: str | None
    answers: list[Answer]


class CommitQueue:
    """The publishes of one durable stream that the log doesn't hold yet."""

    def __init__(self, seq: int) -> None:
        """Go on after number `seq`, the last one that is safe."""
        self.durable_seq = seq
        self.bytes = 0
        self._next = seq + 1
        self._waiting: list[Waiting] = []
        self.group: list[Waiting] = []
        self._ids: dict[str, Waiting] = {}

    def __len__(self) -> int:
        """Count what waits and what is being written."""
        return len(self._waiting) + len(self.group)

    @property
    def is_full(self) -> bool:
        """Whether the next publish would be refused."""
        return len(self) >= STREAM_WAITING or self.bytes >= WAITING_BYTES

    def find(self, message_id: str) -> Waiting | None:
        """Return the publish with this id that is still on its way."""
        return self._ids.get(message_id)

    def add(self, data: str, message_id: str | None, answer: Answer, *, in_batch: bool = False) -> Waiting | None:
        """Give a publish its number and let it wait; None when the queue is full.

        Args: `in_batch`: it stands in a read batch whose end the publisher is made to wait at; never refused.
        """
        if self.is_full and not in_batch:
            return None
        waiting = Waiting(self._next, data, data.encode(), message_id, [answer])
        self._next += 1
        self._waiting.append(waiting)
        self.bytes += len(waiting.raw)
        if message_id is not None:
            self._ids[message_id] = waiting
        return waiting

    def take(self, bytes_max: int = GROUP_BYTES) -> list[Waiting]:
        """Take the next group to write: all that waits, up to `bytes_max` and at least one; [] when nothing does.

        Must not be called before the last group was answered.
        """
        if self.group:
            raise RuntimeError("the last group is still being written")
        size = count = 0
        for waiting in self._waiting:
            if count and size + len(waiting.raw) > bytes_max:
                break
            size += len(waiting.raw)
            count += 1
        self.group, self._waiting = self._waiting[:count], self._waiting[count:]
        return self.group

    def committed(self) -> list[Waiting]:
        """Note that the group is safe, and return it in order."""
        group, self.group = self.group, []
        if group:
            self.durable_seq = group[-1].seq
        self._let_go(group)
        return group

    def failed(self) -> list[Waiting]:
        """Take back the group and all behind it: their numbers are free again. Returns them in order."""
        lost = self.group + self._waiting
        self.group, self._waiting = [], []
        self._next = self.durable_seq + 1
        self._let_go(lost)
        return lost

    def _let_go(self, gone: list[Waiting]) -> None:
        for waiting in gone:
            self.bytes -= len(waiting.raw)
            if waiting.message_id is not None:
                self._ids.pop(waiting.message_id, None)
