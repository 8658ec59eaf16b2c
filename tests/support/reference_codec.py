"""A second reader of client frames, written to be obvious and not fast: the oracle for the kernel's own codec.

It sees the whole stream at once and says what must come out of it. It shares nothing with the codec but the events.
"""

from __future__ import annotations

from kite_kernel.core.websocket import Closed, Event, Fault, Ping, Pong

NAMED_CODES = {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014}


class _Bad(Exception):
    """The stream is at fault with this close code."""


class _Short(Exception):
    """The stream ends here."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            raise _Short
        self.at += count
        return piece

    def rest(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        self.at += len(piece)
        return piece


def could_become_utf8(raw: bytes) -> bool:
    """Tell whether some continuation of `raw` is UTF-8, by trying: a cut character has at most three bytes."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        tail = raw[error.start :]
        if len(tail) > 3 or not is_utf8(raw[: error.start]):
            return False
        seconds = range(0x80, 0xC0)
        candidates = (tail + bytes((two,)) + b"\x80" * (2 if len(tail) < 2 else 1) for two in seconds)
        return any(is_utf8(candidate[:size]) for candidate in candidates for size in range(len(tail) + 1, 5))
    return True


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_stream(data: bytes, *, limit: int, max_fragments: int) -> list[Event]:
    """Return every event of the whole stream, ended by its first Fault or Closed."""
    events: list[Event] = []
    reader = _Reader(data)
    parts: list[bytes] | None = None
    try:
        while True:
            first = reader.take(1)[0]
            parts = _read_frame(reader, first, parts, events, limit, max_fragments)
            if events and isinstance(events[-1], Closed):
                return events
    except _Short:
        return events
    except _Bad as bad:
        events.append(Fault(bad.args[0], ""))
        return events


def _read_frame(
    reader: _Reader, first: int, parts: list[bytes] | None, events: list[Event], limit: int, max_fragments: int
) -> list[bytes] | None:
    fin, rsv, opcode = first >> 7, first & 0x70, first & 15
    if rsv or opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
        raise _Bad(1002)
    if opcode >= 8 and not fin:
        raise _Bad(1002)
    if (opcode == 0) != (parts is not None) and opcode < 8:
        raise _Bad(1002)
    if opcode == 2:
        raise _Bad(1003)
    second = reader.take(1)[0]
    if not second & 0x80:
        raise _Bad(1002)
    size = second & 0x7F
    if opcode >= 8 and size > 125:
        raise _Bad(1002)
    if size == 126:
        size = int.from_bytes(reader.take(2), "big")
        if size < 126:
            raise _Bad(1002)
    elif size == 127:
        size = int.from_bytes(reader.take(8), "big")
        if size < 65536 or size >= 2**63:
            raise _Bad(1002)
    if opcode < 8 and size + sum(map(len, parts or [])) > limit:
        raise _Bad(1009)
    mask = reader.take(4)
    if opcode >= 8:
        payload = reader.take(size)
        _control(opcode, bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)), events)
        return parts
    parts = [] if parts is None else parts
    if len(parts) + 1 > max_fragments:
        raise _Bad(1009)
    payload = reader.rest(size)
    parts.append(bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)))
    text = b"".join(parts)
    if not could_become_utf8(text):
        raise _Bad(1007)
    if len(payload) < size:
        raise _Short
    if not fin:
        return parts
    if not is_utf8(text):
        raise _Bad(1007)
    events.append(text)
    return None


def _control(opcode: int, payload: bytes, events: list[Event]) -> None:
    if opcode == 9:
        events.append(Ping(payload))
    elif opcode == 10:
        events.append(Pong(payload))
    elif not payload:
        events.append(Closed(None, ""))
    else:
        code = int.from_bytes(payload[:2], "big")
        if len(payload) < 2 or not (code in NAMED_CODES or 3000 <= code < 5000):
            raise _Bad(1002)
        if not is_utf8(payload[2:]):
            raise _Bad(1007)
        events.append(Closed(code, payload[2:].decode()))
