"""Idempotency keys: a repeated call or publish with one key counts once, and gets the first one's answer.

Per caller and method (or event), 5 minutes, 10,000 keys each, in memory; above a bound the oldest go. What was
certainly never sent is forgotten, so that a repeat really tries again; what may have happened is remembered, whatever
its end. Source: spec 00 §20, 05-surface §9, cases W-25, X-18, X-41.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from kite_kernel._contract import IDEMPOTENCY_KEYS, IDEMPOTENCY_S, RETAINED_BYTES

if TYPE_CHECKING:
    from kite_kernel.core.peer import Call

Key = tuple[str, str, str]
"""(caller, method or event, key)."""

_MAX_BYTES: Final = RETAINED_BYTES  # all remembered answers together; they live in memory as retained values do
_ENTRY_BYTES: Final = 300  # what an entry costs beside its answer
_MAX_BOOKS: Final = 10_000


class Entry:
    """What is known about one key: in flight (with who else waits), or its answer from `"result"` or `"error"` on."""

    __slots__ = ("at", "tail", "waiters")

    def __init__(self, at: float) -> None:
        self.at = at
        self.tail: bytes | None = None
        self.waiters: list[Call] = []


class Once:
    """The remembered keys, in books of (caller, method)."""

    __slots__ = ("_books", "_bytes")

    def __init__(self) -> None:
        self._books: OrderedDict[tuple[str, str], OrderedDict[str, Entry]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return sum(len(book) for book in self._books.values())

    def find(self, key: Key, *, now: float) -> Entry | None:
        """Return what is known about a key that is not older than 5 minutes."""
        book = self._books.get(key[:2])
        entry = book.get(key[2]) if book is not None else None
        if entry is not None and entry.tail is not None and now - entry.at > IDEMPOTENCY_S:
            self.forget(key)
            return None
        return entry

    def begin(self, key: Key, *, now: float) -> Entry:
        """Remember that a key is on its way; the oldest go where there are too many."""
        book = self._books.get(key[:2])
        if book is None:
            book = self._books[key[:2]] = OrderedDict()
        self._books.move_to_end(key[:2])
        entry = book[key[2]] = Entry(now)
        self._bytes += _ENTRY_BYTES
        if len(book) > IDEMPOTENCY_KEYS:
            self._drop_oldest(key[:2])
        while self._bytes > _MAX_BYTES or len(self._books) > _MAX_BOOKS:
            self._drop_oldest(next(iter(self._books)))
        return entry

    def settle(self, key: Key, tail: bytes) -> list[Call]:
        """Remember the answer. Returns: who else waited for it."""
        book = self._books.get(key[:2])
        entry = book.get(key[2]) if book is not None else None
        if entry is None or entry.tail is not None:
            return []
        entry.tail = tail
        self._bytes += len(tail)
        waiters, entry.waiters = entry.waiters, []
        return waiters

    def forget(self, key: Key) -> list[Call]:
        """Let a repeat try again. Returns: who else waited."""
        book = self._books.get(key[:2])
        entry = book.pop(key[2], None) if book is not None else None
        if entry is None:
            return []
        self._bytes -= _ENTRY_BYTES + len(entry.tail or b"")
        if not book:
            del self._books[key[:2]]
        return entry.waiters

    def forget_caller(self, caller: str) -> None:
        """A caller is offline: its keys are freed."""
        for name in [name for name in self._books if name[0] == caller]:
            for entry in self._books.pop(name).values():
                self._bytes -= _ENTRY_BYTES + len(entry.tail or b"")

    def _drop_oldest(self, name: tuple[str, str]) -> None:
        book = self._books[name]
        _, entry = book.popitem(last=False)
        self._bytes -= _ENTRY_BYTES + len(entry.tail or b"")
        if not book:
            del self._books[name]
