"""Reading a log back: from a known place, in bounded pieces, never a segment at once.

Source: spec 40-streams §1-2; a log of a gigabyte is read without ever being held.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import attrs

from kite_kernel.store.stream_segment import HEAD, LogDamaged, read_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kite_kernel.store.files import Files
    from kite_kernel.store.stream_index import SegmentIndex
    from kite_kernel.store.stream_segment import Scan


@attrs.frozen
class Place:
    """Where to begin: the segment that begins with `first`, at `offset`, and where its proven part ends."""

    first: int
    offset: int
    end: int


def place_of(sealed: Sequence[SegmentIndex], active: Scan | None, seq: int) -> Place | None:
    """Find a known record at or before number `seq`; None when no segment holds it."""
    if active is not None and seq >= active.first:
        places = tuple(active.places)  # a copy: the committer adds to it in another thread
        at = bisect_right(places, (seq, active.end)) - 1
        return Place(active.first, places[max(at, 0)][1] if places else HEAD.size, active.end)
    at = bisect_right([index.first for index in sealed], seq) - 1
    if at < 0 or seq > sealed[at].last:
        return None
    return Place(sealed[at].first, sealed[at].place_of(seq), sealed[at].size_bytes)


def read_messages(
    files: Files, path: str, place: Place, after: int, *, upto: int, bytes_max: int
) -> list[tuple[int, bytes]] | None:
    """Read (seq, data) after number `after` within one segment, about `bytes_max` of it and at least one.

    Returns None when the file has gone meanwhile. Errors: OSError; LogDamaged.
    """
    found: list[tuple[int, bytes]] = []
    size = 0
    try:
        for at, record in read_records(files, path, place.offset, place.end):
            if record is None:
                raise LogDamaged(f"{path}: the record at byte {at} is broken")
            if record.seq <= after:
                continue
            if record.seq > upto or (found and size + len(record.data) > bytes_max):
                break
            found.append((record.seq, record.data))
            size += len(record.data)
    except FileNotFoundError:
        return None
    return found


def id_at(files: Files, path: str, index: SegmentIndex, seq: int) -> bytes | None:
    """Return the id of the message with number `seq`."""
    for _, record in read_records(files, path, index.place_of(seq), index.size_bytes):
        if record is None or record.seq >= seq:
            return record.message_id if record is not None and record.seq == seq else None
    return None
