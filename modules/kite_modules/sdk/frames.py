"""Text messages of the wire, read and written: never an exception for what a peer sent.

Only the envelope is decoded; params, results and data stay bytes until somebody wants them. Held by the vectors
`framing`. Source: spec 10-wire §5-7, 05-surface §9.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Kind = Literal["answer", "request", "event", "notice", "bad"]
RpcId = int | float | str | None
_ABSENT: Final = msgspec.UNSET


class WireError(msgspec.Struct, frozen=True):
    """The `error` member of an answer."""

    code: int
    message: str = ""
    data: msgspec.Raw | msgspec.UnsetType = _ABSENT


class Frame(msgspec.Struct):
    """One text message that is no event: the envelope read, everything inside it left as bytes."""

    jsonrpc: Literal["2.0"]
    id: RpcId | msgspec.UnsetType = _ABSENT
    method: str | msgspec.UnsetType = _ABSENT
    params: msgspec.Raw | msgspec.UnsetType = _ABSENT
    result: msgspec.Raw | msgspec.UnsetType = _ABSENT
    error: WireError | msgspec.UnsetType = _ABSENT
    meta: msgspec.Raw | msgspec.UnsetType = _ABSENT

    @property
    def kind(self) -> Kind:
        """What this message is."""
        if self.method is _ABSENT:
            answered = (self.result is not _ABSENT) + (self.error is not _ABSENT)
            return "answer" if answered == 1 and self.id is not _ABSENT else "bad"
        if self.id is not _ABSENT:
            return "request"
        return "event" if self.method == "event" else "notice"


class EventParams(msgspec.Struct, frozen=True):
    """The `params` of an event."""

    event: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    source: str = ""
    time: Any = None


_frames: Final = msgspec.json.Decoder(Frame)
_events: Final = msgspec.json.Decoder(EventParams)
_values: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode
_REFUSED: Final = (msgspec.DecodeError, msgspec.ValidationError, RecursionError, ValueError)


def read_frame(text: str) -> Frame | EventParams | None:
    """Read one text message; None for what is no valid message (dropped and counted by the caller)."""
    try:
        frame = _frames.decode(text)
        kind = frame.kind
        if kind == "event":
            return _events.decode(frame.params) if isinstance(frame.params, msgspec.Raw) else None
    except _REFUSED:
        return None
    return None if kind == "bad" else frame


def classify(text: str) -> Kind:
    """Say what one text message is taken for."""
    frame = read_frame(text)
    if frame is None:
        return "bad"
    return "event" if isinstance(frame, EventParams) else frame.kind


def value_of(raw: msgspec.Raw | msgspec.UnsetType, default: Any = None) -> Any:
    """Decode a raw member. Raises: ValueError for what no reader can hold (1e400)."""
    if isinstance(raw, msgspec.UnsetType):
        return default
    try:
        return _values.decode(raw)
    except _REFUSED as error:
        raise ValueError(str(error)) from None


def object_of(raw: msgspec.Raw | msgspec.UnsetType) -> dict[str, Any]:
    """Decode a raw member that should be an object; anything else is an empty one."""
    try:
        value = value_of(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def encode(value: Any) -> str:
    """Encode any value that msgspec knows (attrs, dataclasses, structs, dates). Raises: TypeError for others."""
    return _encode(value).decode("utf-8")


def request(rpc_id: int | str, method: str, params: str, meta: dict[str, Any] | None = None) -> str:
    """Return a request frame; `params` is JSON already."""
    tail = f',"meta":{encode(meta)}' if meta else ""
    return f'{{"jsonrpc":"2.0","id":{encode(rpc_id)},"method":{encode(method)},"params":{params}{tail}}}'


def notification(method: str, params: str) -> str:
    """Return a notification frame; `params` is JSON already."""
    return f'{{"jsonrpc":"2.0","method":{encode(method)},"params":{params}}}'


def result(rpc_id: RpcId, value: str) -> str:
    """Return an answer with a result; `value` is JSON already."""
    return f'{{"jsonrpc":"2.0","id":{encode(rpc_id)},"result":{value}}}'


def error(rpc_id: RpcId, code: int, message: str, data: Any = None) -> str:
    """Return an answer with an error."""
    body: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return f'{{"jsonrpc":"2.0","id":{encode(rpc_id)},"error":{encode(body)}}}'
