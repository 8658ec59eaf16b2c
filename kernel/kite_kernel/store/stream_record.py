"""One record of a stream's log as bytes, and what a reader makes of bytes that may have been torn.

    offset  0  magic      4   finds the next record behind a damaged one
            4  crc32      4   over everything behind it
            8  size       4   bytes of id and data together
           12  id size    1   255: no id
           13  zero       3
           16  seq        8
           24  time       8   milliseconds, wall clock
           32  safe seq   8   the last seq that was known to be on disk when this one was written
           40  id, data

`safe seq` tells a torn tail from damage: behind a torn record nothing intact can claim that the torn one was safe.

Source: spec 40-streams §2 (Durable).
"""

import struct
import zlib
from typing import Final

import attrs

HEADER: Final = struct.Struct("<4sIIB3xQQQ")
MAGIC: Final = b"\x1eKR\x01"
NO_ID: Final = 255
RECORD_MAX_BYTES: Final = 268_435_456
"""Larger than any message that can be configured; a size beyond it is noise, not a record."""

_CRC_FROM: Final = 8


@attrs.frozen
class Record:
    """One message as the log holds it. `size_bytes` is the whole record's."""

    seq: int
    time_ms: int
    safe_seq: int
    message_id: bytes | None
    data: bytes
    size_bytes: int


def encode_record(*, seq: int, time_ms: int, safe_seq: int, message_id: bytes | None, data: bytes) -> bytes:
    """Make the bytes of one record."""
    body = data if message_id is None else message_id + data
    id_size = NO_ID if message_id is None else len(message_id)
    header = HEADER.pack(MAGIC, 0, len(body), id_size, seq, time_ms, safe_seq)
    crc = zlib.crc32(body, zlib.crc32(header[_CRC_FROM:]))
    return header[:4] + crc.to_bytes(4, "little") + header[_CRC_FROM:] + body


def record_size(header: bytes | memoryview, offset: int = 0) -> int | None:
    """Return the whole size of the record whose header stands at `offset`; None when none stands there."""
    if len(header) - offset < HEADER.size:
        return None
    magic, _, size, *_ = HEADER.unpack_from(header, offset)
    return HEADER.size + int(size) if magic == MAGIC and size <= RECORD_MAX_BYTES else None


def decode_record(buffer: bytes, offset: int) -> Record | None:
    """Read and prove the record at `offset`; None when it isn't whole or not what was written."""
    size = record_size(buffer, offset)
    if size is None or offset + size > len(buffer):
        return None
    _, crc, body_size, id_size, seq, time_ms, safe_seq = HEADER.unpack_from(buffer, offset)
    start = offset + HEADER.size
    end = offset + size
    if zlib.crc32(memoryview(buffer)[offset + _CRC_FROM : end]) != crc:
        return None
    if id_size == NO_ID:
        return Record(seq, time_ms, safe_seq, None, buffer[start:end], size)
    if id_size > body_size:
        return None
    return Record(seq, time_ms, safe_seq, buffer[start : start + id_size], buffer[start + id_size : end], size)


def find_claim(buffer: bytes, offset: int, seq: int) -> bool:
    """Tell whether an intact record behind `offset` claims that `seq` was safe: then its loss is damage, no tear."""
    while (offset := buffer.find(MAGIC, offset + 1)) >= 0:
        record = decode_record(buffer, offset)
        if record is not None and record.safe_seq >= seq:
            return True
    return False
