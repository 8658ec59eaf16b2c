"""The seam of the fact store: single records, each with a revision, changed by compare-and-swap alone.

Laws of every engine: a revision of a record only rises; a write that is Committed is on stable storage before its
answer; Unknown means that the write may have happened (repeat it, or read back and compare); Unavailable means
that nothing happened. No rule above this seam needs two records at once. Source: spec 70 §1, 00 §23-25.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import attrs


@attrs.frozen
class Committed:
    """On stable storage, at this revision."""

    revision: int


@attrs.frozen
class Conflict:
    """Another revision stands there (None: no record); nothing was changed."""

    revision: int | None


@attrs.frozen
class Unknown:
    """The write may or may not have happened."""

    why: str


@attrs.frozen
class Unavailable:
    """Nothing happened. reason: unavailable | read_only | full | damaged (the contract's words of -32008)."""

    reason: str
    why: str


Answer = Committed | Conflict | Unknown | Unavailable


@attrs.frozen
class Fact:
    """One record as it stands."""

    bucket: str
    key: str
    value: bytes
    revision: int


class FactStore(Protocol):
    """One engine. Every call may wait (disk, network) and may be cancelled: a cancelled write may have happened."""

    @property
    def epoch_floor(self) -> int:
        """The epoch that a new key begins at: 0, or where an older store that was begun anew had come to."""
        ...

    def note_epoch(self, epoch: int) -> None:
        """Remember the highest epoch given out beyond this store's own life."""
        ...

    async def create(self, bucket: str, key: str, value: bytes) -> Answer:
        """Make a record that must not exist."""
        ...

    async def get(self, bucket: str, key: str) -> Fact | Unavailable | None:
        """Return a record; a hint, never a grant: only a CAS decides."""
        ...

    async def update(self, bucket: str, key: str, value: bytes, expected_revision: int) -> Answer:
        """Replace a record that must stand at this revision."""
        ...

    async def delete(self, bucket: str, key: str, expected_revision: int) -> Answer:
        """Remove a record that must stand at this revision."""
        ...

    async def list(self, bucket: str, prefix: str = "") -> tuple[Fact, ...] | Unavailable:
        """Return the records whose key begins with this literal text, by key."""
        ...

    def watch(self, bucket: str, from_revision: int = 0) -> AsyncIterator[Fact]:
        """Yield records of a bucket as they stand or come to stand at revisions above this one."""
        ...
