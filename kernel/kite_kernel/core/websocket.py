"""The server's half of RFC 6455 as a function of bytes: feed what arrived, get messages and what to do about them.

Laws:
- What comes out depends on the bytes alone, never on how the network cut them.
- A frame is judged by its header: one that declares too much is refused before any of it is held.
- Text is proved to be UTF-8 as it arrives, so a bad prefix fails before its message ends.
- After a `Fault` or a `Closed` nothing more is accepted: whatever follows on the wire is swallowed.
- What is held is bounded by `max_message_bytes` plus one control frame, whatever the peer sends.

Never does I/O, never answers by itself: pongs and close frames are made here and sent by the caller.
Source: spec 00 §4, §8a, 10-wire §1; RFC 6455 (sections are named where they decide).
"""

from __future__ import annotations

import codecs
from typing import Final, TypeAlias

import attrs

from kite_kernel._contract import MAX_FRAGMENTS, MAX_REASON_BYTES
from kite_kernel.core.mask import unmask

_FIN: Final = 0x80
_RSV: Final = 0x70
_MASKED: Final = 0x80
_CONTINUATION: Final = 0x0
_TEXT: Final = 0x1
_BINARY: Final = 0x2
_CLOSE: Final = 0x8
_PING: Final = 0x9
_PONG: Final = 0xA
_KNOWN_CONTROL: Final = frozenset({_CLOSE, _PING, _PONG})
_MAX_CONTROL_BYTES: Final = 125  # RFC 6455 5.5
_NAMED_CLOSE_CODES: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})

_from_bytes = int.from_bytes
_SHORT_TEXT_HEADER: Final = [bytes((_FIN | _TEXT, size)) for size in range(_MAX_CONTROL_BYTES + 1)]


@attrs.frozen
class Ping:
    """The peer asks for a pong with this payload (at most 125 bytes)."""

    payload: bytes


@attrs.frozen
class Pong:
    """The peer answered a ping, or sent a pong unasked."""

    payload: bytes


@attrs.frozen
class Closed:
    """The peer said goodbye. `code` is None where its frame held none; `reason` is whole text."""

    code: int | None
    reason: str


@attrs.frozen
class Fault:
    """The peer broke the protocol: close with `code` (1002, 1003, 1007, 1009) and `reason`, then cut. Peer's fault."""

    code: int
    reason: str


Event: TypeAlias = "bytes | Ping | Pong | Closed | Fault"


class _Refused(Exception):
    """Carries a Fault from the depth of the parser to `feed`; never leaves this file."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.fault = Fault(code, reason)


class Codec:
    """Turns the bytes of one client into text messages and control events, in the order in which they arrived.

    Args:
        max_message_bytes: bytes (not characters) that one message may have, over all its fragments. May be assigned
            at any time (a larger one after authentication); it judges the headers that are read from then on.
        max_fragments: frames that one message may consist of; empty continuation frames cost a peer nothing.
    """

    __slots__ = (
        "_decoder",
        "_fragments",
        "_frame_ends_message",
        "_head",
        "_in_message",
        "_left",
        "_mask",
        "_max_fragments",
        "_message",
        "finished",
        "max_message_bytes",
    )

    def __init__(self, *, max_message_bytes: int, max_fragments: int = MAX_FRAGMENTS) -> None:
        self.max_message_bytes = max_message_bytes
        self.finished = False  # a Fault or a Closed was given: nothing more comes out
        self._max_fragments = max_fragments
        self._head = b""  # the beginning of a frame of which too little has arrived to begin with it
        self._in_message = False
        self._message = bytearray()  # what is unmasked of a message that is not whole yet
        self._fragments = 0
        self._left = 0  # bytes of the current data frame that have not arrived
        self._mask = b""  # of that frame, turned to the next byte
        self._frame_ends_message = False
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished message or frame is held, in bytes."""
        return len(self._message) + len(self._head)

    def feed(self, data: bytes) -> list[Event]:
        """Take what arrived and return what it completes.

        Args: any cut of the stream, empty too. Returns: messages as `bytes`, proved UTF-8, and control events; a
        Fault or Closed is the last one ever. Errors: none, everything a peer can do wrong is a Fault.
        """
        events: list[Event] = []
        if self.finished:
            return events
        if self._head:
            data = self._head + data
            self._head = b""
        try:
            position = self._take_payload(data, 0, events) if self._left else 0
            self._parse(data, position, events)
        except _Refused as refused:
            self._finish()
            events.append(refused.fault)
        return events

    def _parse(self, data: bytes, position: int, events: list[Event]) -> None:
        """Read frames from `position` on; what is left over of the last one is held in `_head` or `_message`."""
        size = len(data)
        while position < size and not self.finished:
            # The hot path: a whole, final, masked text frame outside a message. Nothing is stored for it.
            if data[position] == 0x81 and not self._in_message and size - position >= 8:
                length = data[position + 1] - _MASKED
                at = position + 2
                if length == 126:
                    length = data[position + 2] << 8 | data[position + 3]
                    at = position + 4
                    if length < 126:
                        raise _Refused(1002, "length is not minimal")
                if 0 <= length != 127:
                    if length > self.max_message_bytes:
                        raise self._too_big()
                    begin = at + 4
                    end = begin + length
                    if end <= size:
                        payload = unmask(data[begin:end], data[at:begin])
                        if not payload.isascii():
                            _prove_text(payload)
                        events.append(payload)
                        position = end
                        continue
            ahead = self._parse_frame(data, position, events)
            if ahead < 0:
                self._head = data[position:]
                return
            position = ahead

    def _parse_frame(self, data: bytes, position: int, events: list[Event]) -> int:
        """Read any frame that begins at `position`; return where the next begins, or -1 where too little is there."""
        available = len(data) - position
        first = data[position]
        opcode = first & 0x0F
        self._judge_first_byte(first, opcode)
        if available < 2:
            return -1
        second = data[position + 1]
        if second < _MASKED:
            raise _Refused(1002, "client frames must be masked")
        length = second - _MASKED
        if opcode >= _CLOSE and length > _MAX_CONTROL_BYTES:
            raise _Refused(1002, "control frame is longer than 125 bytes")
        at = position + 2
        if length >= 126:
            wide = 2 if length == 126 else 8
            if available < 2 + wide:
                return -1
            length = _from_bytes(data[at : at + wide], "big")
            if length < (126 if wide == 2 else 65536) or length >> 63:
                raise _Refused(1002, "length is not minimal" if not length >> 63 else "length has its top bit set")
            at += wide
        if opcode < _CLOSE and len(self._message) + length > self.max_message_bytes:
            raise self._too_big()
        begin = at + 4
        if begin > position + available:
            return -1
        if opcode >= _CLOSE:
            end = begin + length
            if end > position + available:
                return -1
            self._control(opcode, unmask(data[begin:end], data[at:begin]), events)
            return end
        self._fragments += 1
        if self._fragments > self._max_fragments:
            raise _Refused(1009, f"message of more than {self._max_fragments} frames")
        self._in_message = True
        self._frame_ends_message = first >= _FIN
        self._left = length
        self._mask = data[at:begin]
        return self._take_payload(data, begin, events)

    def _judge_first_byte(self, first: int, opcode: int) -> None:
        """Refuse what RFC 6455 5.2, 5.4 and 5.5 forbid and what the first byte of a frame shows."""
        if first & _RSV:
            raise _Refused(1002, "reserved bits are set, no extension was agreed on")
        if opcode >= _CLOSE:
            if opcode not in _KNOWN_CONTROL:
                raise _Refused(1002, f"unknown opcode {opcode}")
            if first < _FIN:
                raise _Refused(1002, "control frame is fragmented")
        elif opcode == _CONTINUATION:
            if not self._in_message:
                raise _Refused(1002, "continuation without a message")
        elif opcode > _BINARY:
            raise _Refused(1002, f"unknown opcode {opcode}")
        elif self._in_message:
            raise _Refused(1002, "new message inside an unfinished one")
        elif opcode == _BINARY:
            raise _Refused(1003, "text frames only")

    def _take_payload(self, data: bytes, position: int, events: list[Event]) -> int:
        """Unmask what is there of the current data frame; complete frame and message where it ends."""
        piece = data[position : position + self._left]
        taken = len(piece)
        ends = taken == self._left and self._frame_ends_message
        plain = unmask(piece, self._mask)
        self._prove_piece(plain, ends)
        self._message += plain
        self._left -= taken
        if self._left:
            turn = taken & 3
            self._mask = self._mask[turn:] + self._mask[:turn]
        elif ends:
            events.append(bytes(self._message))
            self._message = bytearray()
            self._fragments = 0
            self._in_message = False
        return position + taken

    def _prove_piece(self, plain: bytes, ends: bool) -> None:
        """Judge the next piece of a message's text, `ends` with its last one."""
        try:
            self._decoder.decode(plain, ends)
        except UnicodeDecodeError:
            raise _Refused(1007, "text is not UTF-8") from None
        # Of all bad beginnings the decoder waits for the third byte of one: a surrogate, ED A0..BF.
        begun: bytes = self._decoder.getstate()[0]
        if len(begun) == 2 and begun[0] == 0xED and begun[1] >= 0xA0:
            raise _Refused(1007, "text is not UTF-8")

    def _control(self, opcode: int, payload: bytes, events: list[Event]) -> None:
        """Append the event of one whole control frame (they may stand between the frames of a message)."""
        if opcode == _PING:
            events.append(Ping(payload))
        elif opcode == _PONG:
            events.append(Pong(payload))
        else:
            events.append(_read_close(payload))
            self._finish()

    def _too_big(self) -> _Refused:
        return _Refused(1009, f"message is larger than {self.max_message_bytes} bytes")

    def _finish(self) -> None:
        """Let go of everything that is held: nothing more comes out."""
        self.finished = True
        self._message = bytearray()
        self._head = b""
        self._left = 0


def _prove_text(payload: bytes) -> None:
    try:
        str(payload, "utf-8")
    except UnicodeDecodeError:
        raise _Refused(1007, "text is not UTF-8") from None


def _read_close(payload: bytes) -> Closed:
    """Read a close frame's payload as RFC 6455 5.5.1 and 7.4 have it."""
    if not payload:
        return Closed(None, "")
    if len(payload) == 1:
        raise _Refused(1002, "close frame of one byte")
    code = payload[0] << 8 | payload[1]
    if code not in _NAMED_CLOSE_CODES and not 3000 <= code <= 4999:
        raise _Refused(1002, f"close code {code} is never sent")
    try:
        return Closed(code, str(payload[2:], "utf-8"))
    except UnicodeDecodeError:
        raise _Refused(1007, "close reason is not UTF-8") from None


def text_header(size: int) -> bytes:
    """Return the header of a whole text message of `size` bytes, for callers that join it with its payload."""
    if size <= 125:
        return _SHORT_TEXT_HEADER[size]
    if size < 65536:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


def text_frame(payload: bytes) -> bytes:
    """Return a whole text message as one unmasked frame. `payload` is taken as UTF-8 without a look."""
    return text_header(len(payload)) + payload


def ping_frame(payload: bytes = b"") -> bytes:
    """Return a ping; `payload` is at most 125 bytes."""
    return _control_frame(_PING, payload)


def pong_frame(payload: bytes) -> bytes:
    """Return the answer to a ping with this payload."""
    return _control_frame(_PONG, payload)


def close_frame(code: int | None = 1000, reason: str = "") -> bytes:
    """Return a close frame. `reason` is clipped to 123 bytes of whole characters; `code` None makes an empty one."""
    if code is None:
        return _control_frame(_CLOSE, b"")
    return _control_frame(_CLOSE, code.to_bytes(2, "big") + clip_reason(reason))


def clip_reason(reason: str) -> bytes:
    """Return as much of `reason` as a close frame carries, never half a character, lone surrogates replaced."""
    raw = reason.encode("utf-8", "replace")
    return raw if len(raw) <= MAX_REASON_BYTES else raw[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode("utf-8")


def _control_frame(opcode: int, payload: bytes) -> bytes:
    if len(payload) > _MAX_CONTROL_BYTES:
        raise ValueError(f"control frame of {len(payload)} bytes: a bug of the caller, 125 is the most")
    return bytes((_FIN | opcode, len(payload))) + payload
