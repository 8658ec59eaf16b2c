"""The JSON door: a text message becomes an `Envelope` or a `BadFrame`, and nothing invalid ever passes on.

Laws:
- Only the envelope is decoded; `params`, `result`, `error`, `meta` and `id` keep their exact bytes.
- Whatever passes is valid JSON all the way down: depth, digits, surrogates and duplicate members are judged here.
- The common frame (compact, no strange members) is proved free of duplicates by its length alone.

The bytes that come in are valid UTF-8 already (core/websocket.py proves it). Source: spec 00 §18-19, 05-surface §9.
"""

from __future__ import annotations

import re
from typing import Final

import attrs
import msgspec

from kite_kernel._contract import (
    E_INVALID_REQUEST,
    E_PARSE_ERROR,
    MAX_BATCH,
    MAX_DEPTH,
    MAX_ID_BYTES,
    MAX_NUMBER_DIGITS,
)

ABSENT: Final = msgspec.Raw(b"")
"""The value of a member that the frame does not have."""


class Envelope(msgspec.Struct, gc=False):
    """One JSON-RPC 2.0 object: request, notification or answer, its values as bytes."""

    jsonrpc: str = ""
    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    meta: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _Loose(msgspec.Struct, gc=False):
    """Just the id of an object that is no valid request, to answer it by name."""

    id: msgspec.Raw = ABSENT


@attrs.frozen
class BadFrame:
    """The frame is refused. `id` is the JSON text of the id to answer, b"null" where none could be read."""

    code: int
    reason: str
    id: bytes = b"null"
    detail: str = ""


_decode: Final = msgspec.json.Decoder(Envelope).decode
_decode_loose: Final = msgspec.json.Decoder(_Loose).decode
_decode_any: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_batch: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

# Length of a compact frame without its values, by the members that it has.
_CALL: Final = len('{"jsonrpc":"2.0","id":,"method":"","params":}')
_BARE_CALL: Final = len('{"jsonrpc":"2.0","id":,"method":""}')
_NOTE: Final = len('{"jsonrpc":"2.0","method":"","params":}')
_BARE_NOTE: Final = len('{"jsonrpc":"2.0","method":""}')
_RESULT: Final = len('{"jsonrpc":"2.0","id":,"result":}')

_NUMBERISH: Final = frozenset(b"0123456789.eE+-")
_AS_DIGIT: Final = bytes(0x30 if byte in _NUMBERISH else 0x20 for byte in range(256))
_LONG_RUN: Final = b"0" * (MAX_NUMBER_DIGITS + 1)
# Possessive, and an unfinished string runs to the end: each byte is looked at once, whatever the quotes do.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_TOKEN: Final = re.compile(_STRING.pattern + rb"|[\[\]{},]", re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_AS_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_SMALLEST_TOO_DEEP: Final = 2 * MAX_DEPTH + 2  # a valid frame deeper than the limit is at least this long


def parse(payload: bytes) -> Envelope | BadFrame:
    """Read one object. Returns: a BadFrame for whatever is no valid JSON-RPC 2.0 object; never raises."""
    size = len(payload)
    if size >= _SMALLEST_TOO_DEEP and payload.count(b"{") + payload.count(b"[") > MAX_DEPTH and is_too_deep(payload):
        return BadFrame(E_INVALID_REQUEST, "too_deep")
    try:
        frame = _decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _explain(payload)
    if size > MAX_NUMBER_DIGITS and has_long_number(payload):
        return BadFrame(E_PARSE_ERROR, "number_too_long")
    if frame.jsonrpc != "2.0" or len(frame.id) > MAX_ID_BYTES:
        return _refuse(payload, "id_too_long" if len(frame.id) > MAX_ID_BYTES else "not_request")
    method = frame.method
    if method is None:
        if size != _RESULT + len(frame.id) + len(frame.result) or not frame.result:
            return _judge_answer(payload, frame)
        return frame
    size -= len(method)
    if frame.id:
        size -= len(frame.id)
        size -= _CALL + len(frame.params) if frame.params else _BARE_CALL
    else:
        size -= _NOTE + len(frame.params) if frame.params else _BARE_NOTE
    if size:
        return _judge_request(payload, frame)
    return frame if _sound(frame) else _refuse(payload, "not_request")


def _sound(frame: Envelope) -> bool:
    """Tell whether id and params have types that JSON-RPC allows."""
    ident, params = frame.id, frame.params
    return (not ident or bytes(ident)[0] not in b"{[tf") and (not params or bytes(params)[0] in b"{[")


def _judge_request(payload: bytes, frame: Envelope) -> Envelope | BadFrame:
    """Prove a request with blanks, meta or unknown members: no member twice, the right types."""
    if has_duplicate_members(payload):
        return BadFrame(E_INVALID_REQUEST, "duplicate_member")
    if not _sound(frame) or (frame.meta and bytes(frame.meta)[0] != 0x7B):
        return _refuse(payload, "not_request")
    if frame.result or frame.error:
        return _refuse(payload, "not_request")
    return frame


def _judge_answer(payload: bytes, frame: Envelope) -> Envelope | BadFrame:
    """Prove an object without a method. One with an id and no method is an answer, good or bad."""
    if has_duplicate_members(payload):
        return BadFrame(E_INVALID_REQUEST, "duplicate_member")
    if not frame.id or not (frame.result or frame.error or _only_answers(payload)):
        return _refuse(payload, "not_request")
    return frame


def _only_answers(payload: bytes) -> bool:
    """Tell whether an object without method, result and error has nothing but an id: an answer with neither."""
    try:
        return set(msgspec.json.decode(payload)) <= {"jsonrpc", "id"}
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False


def _refuse(payload: bytes, reason: str) -> BadFrame:
    """Make -32600, with the id where a sound one can be read."""
    try:
        ident = bytes(_decode_loose(payload).id)
    except (msgspec.DecodeError, RecursionError):
        ident = b""
    if not ident or ident[0] in b"{[tf" or len(ident) > MAX_ID_BYTES:
        ident = b"null"
    return BadFrame(E_INVALID_REQUEST, reason, ident)


def _explain(payload: bytes) -> BadFrame:
    """Find out why the decoder refused: no JSON at all (-32700), too deep, or JSON that is no request (-32600)."""
    if is_too_deep(payload):
        return BadFrame(E_INVALID_REQUEST, "too_deep")
    try:
        _decode_any(payload)
    except (msgspec.DecodeError, RecursionError):
        return BadFrame(E_PARSE_ERROR, _why_no_json(payload))
    if has_long_number(payload):
        return BadFrame(E_PARSE_ERROR, "number_too_long")
    if has_duplicate_members(payload):
        return BadFrame(E_INVALID_REQUEST, "duplicate_member")
    return _refuse(payload, "not_request")


def _why_no_json(payload: bytes) -> str:
    bare = _STRING.sub(b'""', payload)
    if b"NaN" in bare or b"Infinity" in bare:
        return "not_finite"
    if re.search(rb"\\u[dD][89a-fA-F]", payload):
        try:
            str(_STRING.sub(_shorten_surrogates, payload), "utf-8")
            _decode_any(_STRING.sub(b'""', payload))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return "not_json"
        return "lone_surrogate"
    return "not_json"


def _shorten_surrogates(match: re.Match[bytes]) -> bytes:
    return re.sub(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", b"", match[0])


def is_too_deep(payload: bytes) -> bool:
    """Tell whether brackets outside strings nest deeper than 64, the envelope's own counted.

    Each pass takes away the innermost pairs, so that what is left after 64 passes lay deeper: linear steps in C, where
    a loop over brackets would let a frame of a mebibyte hold the hub for half a second.
    """
    bare = _STRING.sub(b"", payload) if b'"' in payload else payload
    pairs = bare.translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        fewer = pairs.replace(b"[]", b"")
        if len(fewer) == len(pairs):
            break
        pairs = fewer
    return b"[]" in pairs or pairs.count(b"[") > MAX_DEPTH


def has_long_number(payload: bytes) -> bool:
    """Tell whether a number of more than 400 characters stands outside strings.

    A run of 401 covers a byte of every stride of 400, so only those bytes are looked at first.
    """
    for at in range(MAX_NUMBER_DIGITS, len(payload), MAX_NUMBER_DIGITS):
        if payload[at] in _NUMBERISH:
            around = payload[at - MAX_NUMBER_DIGITS : at + MAX_NUMBER_DIGITS + 1]
            if _LONG_RUN in around.translate(_AS_DIGIT):
                bare = _STRING.sub(b'""', payload)
                return _LONG_RUN in bare.translate(_AS_DIGIT)
    return False


def has_duplicate_members(payload: bytes) -> bool:
    """Tell whether a member of the envelope stands there twice, in whatever spelling. Twins further in don't count."""
    depth = 0
    seen: set[str] = set()
    expects_name = False
    for token in _TOKEN.finditer(payload):
        text = token[0]
        if text[0] == 0x22:
            if depth == 1 and expects_name:
                name = msgspec.json.decode(text, type=str)
                if name in seen:
                    return True
                seen.add(name)
                expects_name = False
        elif text in (b"{", b"["):
            depth += 1
            expects_name = depth == 1 and text == b"{"
        elif text in (b"}", b"]"):
            depth -= 1
        elif text == b"," and depth == 1:
            expects_name = True
    return False


def is_batch(payload: bytes) -> bool:
    """Tell whether the first character that is no blank opens an array."""
    return payload.lstrip(b" \t\r\n")[:1] == b"["


def split_batch(payload: bytes) -> list[bytes] | BadFrame:
    """Read a batch into the bytes of its members, each to be parsed by itself.

    Returns: a BadFrame for an array that is no JSON, too deep, empty or longer than 1000. Never raises.
    """
    if payload.count(b"{") + payload.count(b"[") > MAX_DEPTH and is_too_deep(payload):
        return BadFrame(E_INVALID_REQUEST, "too_deep")
    try:
        members = _decode_batch(payload)
    except (msgspec.DecodeError, RecursionError):
        return BadFrame(E_PARSE_ERROR, _why_no_json(payload))
    if has_long_number(payload):
        return BadFrame(E_PARSE_ERROR, "number_too_long")
    if not members:
        return BadFrame(E_INVALID_REQUEST, "empty_batch")
    if len(members) > MAX_BATCH:
        return BadFrame(E_INVALID_REQUEST, "batch_too_long", detail=f"at most {MAX_BATCH} members")
    return [bytes(member) for member in members]


def spot_id(payload: bytes) -> bytes | None:
    """Find the kernel's id in a frame that is no valid JSON: the plain number of the first `"id":`, else None."""
    match = _SPOT_ID.search(payload)
    return match[1] if match else None


_SPOT_ID: Final = re.compile(rb'"id"\s*:\s*([1-9][0-9]{0,18})\s*[,}]')
