"""The chain of the audit trail: how a row is sealed, and how a whole trail is judged. Pure.

A row is one line, `{"seq":…,"at":…,"event":…,"source":…,"data":…,"prev":HASH,"hash":HASH}`; `hash` is SHA-256 over the
line's own bytes before `,"hash"`, `prev` the row before's. Laws: any changed byte, removed, added or moved row breaks
the chain at a row that can be named; the head, kept elsewhere, tells the row that must stand last.
Source: spec 80 §3, case X-35.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

import attrs

GENESIS: Final = "0" * 64
OWN_EVENTS: Final = "audit."
DAMAGED: Final = "audit.damaged"
"""The trail was found broken when it was opened; from such a row on it is never whole again."""
LINE_BYTES_MAX: Final = 65536
_SEAL: Final = re.compile(rb',"hash":"([0-9a-f]{64})"}')
_SEAL_BYTES: Final = 75


@attrs.frozen
class Head:
    """The last row of a trail: its number and its hash. A trail without rows: 0 and GENESIS."""

    seq: int = 0
    hash: str = GENESIS


@attrs.frozen
class Row:
    """One row that proves itself."""

    seq: int
    prev: str
    hash: str
    value: dict[str, Any]


@attrs.frozen
class Verdict:
    """What a trail turned out to be. `row` is the first bad one, None when all is whole; `head` where it ends."""

    rows: int
    head: Head
    row: int | None = None
    why: str = ""
    torn_bytes: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing was changed, removed, added or moved."""
        return self.row is None


def seal(before: Head, *, at: str, event: str, source: str, data: Any) -> tuple[bytes, Head]:
    """Make the next row's line, with its newline, and the head after it."""
    row = {"seq": before.seq + 1, "at": at, "event": event, "source": source, "data": data, "prev": before.hash}
    body = json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode()[:-1]
    digest = hashlib.sha256(body).hexdigest()
    return body + b',"hash":"' + digest.encode() + b'"}\n', Head(before.seq + 1, digest)


def read_row(line: bytes) -> Row | None:
    """Read a line without its newline; None when it is not what was once sealed."""
    found = _SEAL.fullmatch(line[-_SEAL_BYTES:])
    body = line[:-_SEAL_BYTES]
    if found is None or hashlib.sha256(body).hexdigest().encode() != found.group(1):
        return None
    try:
        value = json.loads(line)
        return Row(int(value["seq"]), str(value["prev"]), found.group(1).decode(), value)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def judge(lines: Iterable[bytes], head: Head | None) -> Verdict:
    """Judge a trail from its first line on. `head` is the one kept elsewhere, read before the lines; None: it is gone.

    Lines end with a newline; one at the end without it is a row that was being written and nobody was told of.
    Returns: a verdict that names the first bad row and, where the chain is whole, the head that it ends with.
    """
    here = Head()
    for line in lines:
        number = here.seq + 1
        if not line.endswith(b"\n"):
            return _at_the_end(here, head, torn_bytes=len(line))
        row = read_row(line[:-1])
        if row is None:
            return Verdict(here.seq, here, number, "its bytes were changed")
        if row.seq != number:
            why = f"it is missing here: row {row.seq} stands in its place (removed or moved)"
            return Verdict(here.seq, here, number, why)
        if row.prev != here.hash:
            # the row before proves itself and is another than the one that this row was written after
            return Verdict(here.seq, here, max(1, here.seq), "it was replaced: the next row was written after another")
        if row.value.get("event") == DAMAGED:
            found = row.value.get("data")
            first = found.get("row") if isinstance(found, dict) else None
            bad = first if isinstance(first, int) and first > 0 else number
            return Verdict(number, Head(number, row.hash), bad, f"row {number} says: the trail was found damaged here")
        here = Head(number, row.hash)
        if head is not None and head.seq == number and head.hash != row.hash:
            return Verdict(number, here, number, "it was replaced: the head kept elsewhere tells another hash")
    return _at_the_end(here, head, torn_bytes=0)


def _at_the_end(here: Head, head: Head | None, *, torn_bytes: int) -> Verdict:
    if head is None:
        if not here.seq:
            return Verdict(0, here, torn_bytes=torn_bytes)
        why = "the head that is kept elsewhere is gone: rows after this one may have been cut off"
        return Verdict(here.seq, here, here.seq, why, torn_bytes)
    if head.seq > here.seq:
        last = f" to {head.seq}" if head.seq > here.seq + 1 else ""
        return Verdict(here.seq, here, here.seq + 1, f"the tail is cut: row {here.seq + 1}{last} missing", torn_bytes)
    return Verdict(here.seq, here, torn_bytes=torn_bytes)
