"""Outgoing JSON-RPC as bytes: answers, errors, notices and events, each made in one place.

`id` is always the JSON text of an id, exactly as its owner wrote it. Source: spec 10-wire §5-7, 05-surface §7, §9.
"""

from __future__ import annotations

import datetime
from typing import Any, Final, overload

import msgspec

from kite_kernel._contract import CLOSE, CLOSE_TO_LEGACY, E_CLOSING, ERROR_TEXT, VERDICTS

encode: Final = msgspec.json.Encoder().encode
"""Any plain value to compact JSON bytes."""


def result(ident: bytes, value: bytes) -> bytes:
    """Make an answer from JSON bytes."""
    return b'{"jsonrpc":"2.0","id":' + ident + b',"result":' + value + b"}"


def error(ident: bytes, code: int, reason: str, outcome: str = "not_sent", message: str = "", **data: Any) -> bytes:
    """Make an error of the kernel's own; `data` always has `reason` and `outcome` (05 §7)."""
    body = {"reason": reason, "outcome": outcome, **data}
    head = {"code": code, "message": message or ERROR_TEXT[code], "data": body}
    return b'{"jsonrpc":"2.0","id":' + ident + b',"error":' + encode(head) + b"}"


def notice(name: str, params: dict[str, Any]) -> bytes:
    """Make a notification of the kernel to one peer."""
    return b'{"jsonrpc":"2.0","method":' + encode(name) + b',"params":' + encode(params) + b"}"


def event(name: bytes, data: bytes, source: bytes, time: float) -> bytes:
    """Make an event; `name`, `data` and `source` are JSON text, `time` is seconds since 1970."""
    return b"".join(
        (
            b'{"jsonrpc":"2.0","method":"event","params":{"event":',
            name,
            b',"data":',
            data,
            b',"source":',
            source,
            b',"time":%.6f}}' % time,
        )
    )


def closing_error(ident: bytes, code: int, protocol: int) -> bytes:
    """Make the error that goes before a 400x close (05 §9)."""
    return error(ident, E_CLOSING, CLOSE[code].name, close=wire_code(code, protocol))


def bye(code: int, protocol: int, why: str, retry_after_s: float | None = None) -> bytes:
    """Make the notice that goes right before a close (10-wire §7)."""
    params: dict[str, Any] = {"code": wire_code(code, protocol), "verdict": VERDICTS[CLOSE[code].strategy], "why": why}
    if retry_after_s is not None:
        params["retry_after_s"] = round(retry_after_s, 3)
    return notice("bye", params)


@overload
def iso(utc: float) -> str: ...
@overload
def iso(utc: None) -> None: ...
@overload
def iso(utc: float | None) -> str | None: ...
def iso(utc: float | None) -> str | None:
    """Return seconds since 1970 as an ISO 8601 stamp with zone; None for None."""
    if utc is None:
        return None
    return datetime.datetime.fromtimestamp(utc, tz=datetime.UTC).isoformat(timespec="milliseconds")


def wire_code(code: int, protocol: int) -> int:
    """Return the number that a client of this protocol version knows (10-wire §3)."""
    return CLOSE_TO_LEGACY.get(code, code) if protocol == 1 else code
