"""One segment file of a stream's log: its head, and the reading of it from end to end.

The head says which epoch and which first seq, so that a file that strayed in is never read as this stream's.

Source: spec 40-streams §2 (Durable), cases F-29.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import attrs

from kite_kernel.store.files import Files
from kite_kernel.store.stream_index import SPARSE_BYTES, SegmentIndex, sorted_ids
from kite_kernel.store.stream_record import Record, decode_record, find_claim, record_size

HEAD: Final = struct.Struct("<8s32sQI4x")
_MAGIC: Final = b"KITESEG1"
READ_BYTES: Final = 262_144


class LogDamaged(Exception):
    """The log holds bytes that no torn write explains: acknowledged messages may be lost. A person must look."""


def encode_head(epoch: str, first: int) -> bytes:
    """Make the head of a segment that begins with number `first`."""
    name = epoch.encode().ljust(32, b"\0")
    return HEAD.pack(_MAGIC, name, first, zlib.crc32(_MAGIC + name + first.to_bytes(8, "little")))


def decode_head(raw: bytes) -> tuple[str, int] | None:
    """Read (epoch, first); None when it is no whole head."""
    if len(raw) < HEAD.size:
        return None
    magic, name, first, crc = HEAD.unpack_from(raw)
    if magic != _MAGIC or zlib.crc32(magic + name + first.to_bytes(8, "little")) != crc:
        return None
    return name.rstrip(b"\0").decode("utf-8", "replace"), first


def segment_name(first: int) -> str:
    """Name the file of the segment that begins with number `first`."""
    return f"{first:020d}.log"


def read_records(files: Files, path: str, offset: int, end: int) -> Iterator[tuple[int, Record | None]]:
    """Read the records of a file from `offset` to `end` in bounded pieces, as (offset, record).

    A record that doesn't prove itself is given as None, and nothing after it. Errors: OSError.
    """
    buffer, base, at = b"", offset, 0
    while base + at < end:
        size = record_size(buffer, at)
        if size is None or at + size > len(buffer):  # not whole in the buffer: read on from here
            base, at = base + at, 0
            buffer = files.read(path, base, min(READ_BYTES, end - base))
            size = record_size(buffer)
            if size is not None and len(buffer) < size <= end - base:
                buffer = files.read(path, base, size)
        record = decode_record(buffer, at)
        yield base + at, record
        if record is None:
            return
        at += record.size_bytes


@attrs.define
class Scan:
    """What a segment turned out to hold. `cut_bytes` at its end are torn, up to `end` all is proven."""

    first: int
    last: int
    end: int
    cut_bytes: int
    oldest_ms: int
    newest_ms: int
    places: list[tuple[int, int]]
    ids: dict[bytes, int]

    def index(self) -> SegmentIndex:
        """Make the index of the proven part."""
        hashes, seqs = sorted_ids(self.ids)
        places = tuple(self.places) or ((self.first, HEAD.size),)
        return SegmentIndex(self.first, self.last, self.end, self.oldest_ms, self.newest_ms, places, hashes, seqs)


def new_scan(first: int) -> Scan:
    """Start with an empty segment."""
    return Scan(first, first - 1, HEAD.size, 0, 0, 0, [], {})


def note_record(scan: Scan, offset: int, record_seq: int, time_ms: int, message_id: bytes | None, size: int) -> None:
    """Add one proven record to what is known of its segment."""
    if not scan.places or offset - scan.places[-1][1] >= SPARSE_BYTES:
        scan.places.append((record_seq, offset))
    if message_id is not None:
        scan.ids.setdefault(message_id, record_seq)
    scan.oldest_ms = scan.oldest_ms or time_ms
    scan.newest_ms = max(scan.newest_ms, time_ms)
    scan.last = record_seq
    scan.end = offset + size


def scan_segment(files: Files, path: str, first: int) -> Scan:
    """Read a segment from end to end and tell how much of it stands.

    Errors: LogDamaged when what is broken had been safe; OSError.
    """
    size_bytes = files.size_bytes(path)
    scan = new_scan(first)
    for offset, record in read_records(files, path, HEAD.size, size_bytes):
        if record is None or record.seq != scan.last + 1:
            rest = files.read(path, offset, size_bytes - offset)
            if find_claim(rest, 0, scan.last + 1):
                raise LogDamaged(f"{path}: record {scan.last + 1} at byte {offset} was safe and is broken")
            break
        note_record(scan, offset, record.seq, record.time_ms, record.message_id, record.size_bytes)
    scan.cut_bytes = size_bytes - scan.end
    return scan
