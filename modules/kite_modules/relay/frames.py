"""What a browser sends, read strictly, and what it is answered. Pure.

A frame that is let through is put into a frame of the relay's own connection, so whatever the kernel would refuse as a
whole (depth, numbers, text that is none) is refused here, under the browser's own id. Source: spec 05 §9, 10 §5.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import attrs
import msgspec

from kite_modules import _contract

ID_BYTES_MAX: Final = _contract.MAX_ID_BYTES
DEPTH_MAX: Final = _contract.MAX_DEPTH - 2  # the frame around it, and the batch it may stand in
_NO: Final = msgspec.Raw(b"")
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS: Final = re.compile(r"[^\[\]{}]+")
_DIGITS: Final = re.compile(rf"[0-9.eE+\-]{{{_contract.MAX_NUMBER_DIGITS + 1},}}")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class _Envelope(msgspec.Struct):
    jsonrpc: Any = None
    method: Any = None
    id: msgspec.Raw = _NO
    params: msgspec.Raw = _NO
    meta: msgspec.Raw = _NO


_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_members: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


@attrs.frozen
class Request:
    """One request or (id None) notification; `id` and `params` are JSON text, exactly as they came."""

    id: str | None
    method: str
    params: str
    meta: dict[str, Any]

    def value(self) -> Any:
        """Return the params as a value."""
        return msgspec.json.decode(self.params)


@attrs.frozen
class Bad:
    """No request: the code and reason of its answer, and its id where one could be read."""

    code: int
    reason: str
    id: str = "null"


@attrs.frozen
class Answered:
    """An answer to the relay: it never asks, so it is dropped."""


def read(text: str) -> Request | Bad | Answered | list[Request | Bad | Answered]:
    """Read one text message; a list for a batch."""
    bare = _STRINGS.sub("", text)
    depth = deepest = 0
    for char in _BRACKETS.sub("", bare):
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    if deepest > DEPTH_MAX:
        return Bad(_contract.E_INVALID_REQUEST, "too_deep")
    if _DIGITS.search(bare):
        return Bad(_contract.E_PARSE_ERROR, "number_too_long")
    try:
        if _SURROGATE.search(text):
            json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8")
        if not text.lstrip().startswith("["):
            return _one(text)
        members = _members(text)
    except UnicodeEncodeError:
        return Bad(_contract.E_PARSE_ERROR, "lone_surrogate")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Bad(_contract.E_PARSE_ERROR, "not_json")
    if not members:
        return Bad(_contract.E_INVALID_REQUEST, "empty_batch")
    if len(members) > _contract.MAX_BATCH:
        return Bad(_contract.E_INVALID_REQUEST, "batch_too_long")
    return [_one(bytes(member).decode("utf-8")) for member in members]


def _one(text: str) -> Request | Bad | Answered:
    try:
        frame = _envelope(text)
    except msgspec.ValidationError:
        return Bad(_contract.E_INVALID_REQUEST, "not_request")
    except (msgspec.DecodeError, RecursionError):
        return Bad(_contract.E_PARSE_ERROR, "not_json")
    rpc_id = bytes(frame.id).decode("utf-8") or None
    if rpc_id is not None and (len(rpc_id) > ID_BYTES_MAX or rpc_id[0] in "[{tf"):
        return Bad(_contract.E_INVALID_REQUEST, "not_request")
    shown = rpc_id or "null"
    if frame.jsonrpc == "2.0" and frame.method is None and rpc_id is not None:
        return Answered()
    params = bytes(frame.params).decode("utf-8") or "{}"
    if frame.jsonrpc != "2.0" or not isinstance(frame.method, str) or params[0] not in "[{":
        return Bad(_contract.E_INVALID_REQUEST, "not_request", shown)
    try:
        msgspec.json.decode(params)  # also what is nested in it must be numbers and text that every reader holds
        meta = msgspec.json.decode(frame.meta) if frame.meta else {}
    except (msgspec.DecodeError, RecursionError):
        return Bad(_contract.E_PARSE_ERROR, "not_finite", shown)
    if not isinstance(meta, dict):
        return Bad(_contract.E_INVALID_REQUEST, "not_request", shown)
    return Request(rpc_id, frame.method, params, meta)


def encode(value: Any) -> str:
    """Return a value as JSON text; `msgspec.Raw` stands as it is."""
    return msgspec.json.encode(value).decode("utf-8")


def result(rpc_id: str, value: Any) -> str:
    """Answer with a result (a value, or `msgspec.Raw`)."""
    return f'{{"jsonrpc":"2.0","id":{rpc_id},"result":{encode(value)}}}'


def error(rpc_id: str, code: int, message: str, data: Any = None) -> str:
    """Answer with an error."""
    body = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return f'{{"jsonrpc":"2.0","id":{rpc_id},"error":{encode(body)}}}'


def refusal(rpc_id: str, code: int, reason: str, message: str = "", **more: Any) -> str:
    """Answer with an error of the relay's own: nothing was sent on."""
    text = message or _contract.ERROR_TEXT[code]
    return error(rpc_id, code, text, {"reason": reason, "outcome": "not_sent", **more})


def notice(method: str, params: Any) -> str:
    """Tell something that is not answered."""
    return f'{{"jsonrpc":"2.0","method":{encode(method)},"params":{encode(params)}}}'
