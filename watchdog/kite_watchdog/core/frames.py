"""JSON-RPC text frames as values: what the kernel says, and what the watchdog answers.

Only the envelope is decoded here; `params`, `result` and `data` stay bytes until somebody who knows a bound wants
them. A frame that is no JSON-RPC is a `Garbage` value, never an exception. Source: spec 10-wire §5-7.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs
import msgspec

TEXT_MAX: Final = 500  # characters of a foreign text that go into an event or a log line
DATA_BYTES_MAX: Final = 65_536  # bytes of event data or params that are looked into


class _Envelope(msgspec.Struct):
    jsonrpc: str
    id: int | float | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _EventParams(msgspec.Struct):
    event: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    source: str = ""


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


@attrs.frozen
class Answer:
    """One answer to a call: `result` bytes, or an error code with its words.

    `error` None = good. `reason` and `outcome` come from `error.data` where the kernel made the error; `lost` is True
    where no answer came at all (not sent, wire gone, nobody answered in time).
    """

    result: bytes = b""
    error: int | None = None
    message: str = ""
    reason: str = ""
    outcome: str = ""
    data: Any = None
    lost: bool = False

    def value(self) -> Any:
        """Decode the result; None when it is no JSON, or larger than anything that is expected."""
        return decode(self.result, bytes_max=16_777_216)


@attrs.frozen
class Reply:
    """An answer with the id of its call."""

    id: int | float | str | None
    answer: Answer


@attrs.frozen
class Event:
    """An event: its name, who said it, and its data where they are an object of a sane size, else {}."""

    name: str
    source: str
    data: dict[str, Any]


@attrs.frozen
class Call:
    """A call or notice to the watchdog; params where they are an object, else {}."""

    id: int | float | str | None
    method: str
    params: dict[str, Any]
    notice: bool = False


@attrs.frozen
class Garbage:
    """A frame that says nothing."""

    why: str


_envelope: Final = msgspec.json.Decoder(_Envelope)
_event: Final = msgspec.json.Decoder(_EventParams)
_error: Final = msgspec.json.Decoder(_Error)


def decode(raw: bytes, *, bytes_max: int = DATA_BYTES_MAX) -> Any:
    """Decode bytes of JSON; None for anything too large, too deep or no JSON."""
    if not raw or len(raw) > bytes_max:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _object(raw: bytes) -> dict[str, Any]:
    value = decode(raw)
    return value if isinstance(value, dict) else {}


def _error_answer(raw: bytes) -> Answer:
    """Read an error object. Raises: what msgspec raises where it is none."""
    row = _error.decode(raw)
    data = decode(bytes(row.data))
    members = data if isinstance(data, dict) else {}
    reason, outcome = members.get("reason"), members.get("outcome")
    return Answer(
        error=row.code,
        message=plain(row.message),
        reason=reason if isinstance(reason, str) else "",
        outcome=outcome if isinstance(outcome, str) else "",
        data=data,
    )


def _read(text: str) -> Reply | Event | Call | Garbage:
    envelope = _envelope.decode(text)
    if envelope.jsonrpc != "2.0":
        return Garbage("not JSON-RPC 2.0")
    known = None if envelope.id is msgspec.UNSET else envelope.id
    if envelope.method is None:
        result, error = bytes(envelope.result), bytes(envelope.error)
        if envelope.id is msgspec.UNSET or bool(result) == bool(error):
            return Garbage("neither a call nor an answer")
        return Reply(known, _error_answer(error) if error else Answer(result=result))
    params = bytes(envelope.params)
    if envelope.method == "event" and envelope.id is msgspec.UNSET:
        event = _event.decode(params)
        return Event(event.event, event.source, _object(bytes(event.data)))
    return Call(known, envelope.method, _object(params), notice=envelope.id is msgspec.UNSET)


def parse(text: str) -> Reply | Event | Call | Garbage:
    """Read one text frame; never raises. Batches are not asked for, so one is garbage."""
    try:
        return _read(text)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return Garbage(plain(str(error)))


def kind(frame: Reply | Event | Call | Garbage) -> Literal["answer", "request", "event", "notice", "bad"]:
    """Name what a frame is taken for."""
    match frame:
        case Reply():
            return "answer"
        case Event():
            return "event"
        case Call():
            return "notice" if frame.notice else "request"
        case Garbage():
            return "bad"


def plain(text: str, limit: int = TEXT_MAX) -> str:
    """Make a foreign text fit for a log line: printable, one line, bounded."""
    clipped = text[:limit]
    out = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in clipped)
    return out + "…" if len(text) > limit else out


def request(id: int, method: str, params: object, *, timeout_s: float | None = None, wait: bool = True) -> str:
    """Build one call; `timeout_s` becomes the kernel's deadline, `wait` False refuses to be held in a debounce."""
    frame: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    meta: dict[str, Any] = {}
    if timeout_s is not None:
        meta["timeout"] = timeout_s
    if not wait:
        meta["wait"] = False
    if meta:
        frame["meta"] = meta
    return msgspec.json.encode(frame).decode()


def notice(method: str, params: object) -> str:
    """Build one notification."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params}).decode()


def publish(event: str, data: object) -> str:
    """Build the notification that publishes an event."""
    return notice("event.publish", {"event": event, "data": data})


def reply(id: int | float | str | None, result: object) -> str:
    """Build a good answer."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "result": result}).decode()


def refusal(id: int | float | str | None, code: int, message: str, data: object) -> str:
    """Build an error answer."""
    error = {"code": code, "message": message, "data": data}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "error": error}).decode()
