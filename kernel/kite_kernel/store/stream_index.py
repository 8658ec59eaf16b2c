"""What is known of a sealed segment without reading it: its numbers, every so many bytes a place, and its ids.

Kept beside the segment as `<first>.idx`: one line of JSON, then two arrays of 8-byte numbers, the hashes of its ids in
rising order and their seqs. The arrays are mapped, not loaded: a log of many million ids costs the page cache, not the
process. It is a cache: when it is missing or doesn't prove itself, the segment is read again and it is made anew.

Source: spec 40-streams §2, 05-surface §9 (ids over restarts).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

SPARSE_BYTES: Final = 65_536
"""Between two known places: a reader skips less than this."""

_SCHEMA: Final = 1


def hash_id(message_id: bytes) -> int:
    """Return 64 bits of an id. Equal hashes are only a hint: the record says."""
    return int.from_bytes(hashlib.blake2b(message_id, digest_size=8).digest(), "little")


@attrs.frozen
class SegmentIndex:
    """The index of one sealed segment. `places` are (seq, offset) in rising order."""

    first: int
    last: int
    size_bytes: int
    oldest_ms: int
    newest_ms: int
    places: tuple[tuple[int, int], ...]
    hashes: Sequence[int] = attrs.field(repr=False)
    seqs: Sequence[int] = attrs.field(repr=False)

    def seqs_of(self, hashed: int) -> Iterator[int]:
        """Name the seqs whose id has this hash."""
        at = bisect_left(self.hashes, hashed)
        while at < len(self.hashes) and self.hashes[at] == hashed:
            yield self.seqs[at]
            at += 1

    def place_of(self, seq: int) -> int:
        """Return the offset of a known record at or before `seq`."""
        at = bisect_left(self.places, (seq + 1, 0)) - 1
        return self.places[max(at, 0)][1]


def sorted_ids(ids: dict[bytes, int]) -> tuple[array[int], array[int]]:
    """Make the two arrays of an index."""
    pairs = sorted((hash_id(message_id), seq) for message_id, seq in ids.items())
    return array("Q", (pair[0] for pair in pairs)), array("Q", (pair[1] for pair in pairs))


def encode_index(index: SegmentIndex) -> bytes:
    """Make the file's bytes. The head is padded so that the arrays stand on a multiple of eight."""
    arrays = array("Q", index.hashes).tobytes() + array("Q", index.seqs).tobytes()
    head: dict[str, Any] = {
        "schema": _SCHEMA,
        "first": index.first,
        "last": index.last,
        "size_bytes": index.size_bytes,
        "oldest_ms": index.oldest_ms,
        "newest_ms": index.newest_ms,
        "places": index.places,
        "ids": len(index.hashes),
        "crc": zlib.crc32(arrays),
    }
    line = json.dumps(head, separators=(",", ":")).encode()
    line += b" " * (-(len(line) + 9) % 8)
    return b"%08x%b\n" % (zlib.crc32(line), line) + arrays


def decode_index(view: memoryview) -> SegmentIndex | None:
    """Read an index; None when it doesn't prove itself."""
    end = bytes(view[:1_048_576]).find(b"\n")
    if end < 8:
        return None
    line = bytes(view[8:end])
    if bytes(view[:8]) != b"%08x" % zlib.crc32(line):
        return None
    try:
        head = json.loads(line)
        count = head["ids"]
        arrays = view[end + 1 :]
        if head["schema"] != _SCHEMA or len(arrays) != 16 * count or zlib.crc32(arrays) != head["crc"]:
            return None
        numbers = arrays.cast("Q")
        return SegmentIndex(
            first=head["first"],
            last=head["last"],
            size_bytes=head["size_bytes"],
            oldest_ms=head["oldest_ms"],
            newest_ms=head["newest_ms"],
            places=tuple((seq, offset) for seq, offset in head["places"]),
            hashes=numbers[:count],
            seqs=numbers[count:],
        )
    except (ValueError, KeyError, TypeError):
        return None
