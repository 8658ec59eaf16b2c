"""What the fact rooms share: answers of a decision, exact JSON of records, and what a caller may send.

A decision never changes a record in place: it returns Write (the new record and the answer to give once it is safe),
Repeat (the answer of an earlier, equal request) or Refuse. Source: spec 70 §1-2, 05 §7 and §9, 00 §24.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import attrs
import msgspec

from kite_kernel._contract import E_CONFLICT, E_FENCED, E_INVALID_PARAMS, E_INVALID_REQUEST, E_STORE_UNAVAILABLE

Record = dict[str, Any]

RECORD_BYTES_MAX: Final = 1 << 20  # spec 05 §9: a record is at most 1 MiB, on every engine
KEY_BYTES_MAX: Final = 512  # a key is a name, not a payload
REPLICAS_MAX: Final = 10_000  # alive at once; of the ended ones as many of the newest are remembered
KEYS_MAX: Final = 1_000_000  # owned things in one store
NONCES_KEPT: Final = 32  # a caller that repeats has at most its calls in flight to repeat
EPOCH_MAX: Final = (1 << 63) - 1  # what SQLite and every client's integer can hold


@attrs.frozen
class Refuse:
    """Nothing was changed (outcome "not_sent"), or nobody can tell ("unknown").

    `data` joins reason and outcome in the error that the caller reads.
    """

    code: int
    reason: str
    message: str
    data: dict[str, Any] = attrs.field(factory=dict)
    outcome: str = "not_sent"


@attrs.frozen
class Write:
    """Put `record` in place by compare-and-swap, then give `answer`."""

    record: Record
    answer: dict[str, Any]


@attrs.frozen
class Repeat:
    """The same request was carried out before; this was its answer."""

    answer: dict[str, Any]


Decision = Write | Repeat | Refuse


def invalid(field: str, expected: str) -> Refuse:
    """Return the refusal of a wrong parameter, by its name."""
    return Refuse(E_INVALID_PARAMS, "invalid_params", f"{field}: {expected}", {"field": field})


def fenced(reason: str, current_epoch: int | None = None) -> Refuse:
    """Return the refusal of a caller that is not, or no longer, the owner."""
    data = {} if current_epoch is None else {"current_epoch": current_epoch}
    return Refuse(E_FENCED, reason, "fenced: " + reason.replace("_", " "), data)


def conflict(reason: str, **data: Any) -> Refuse:
    """Return the refusal of a step for which the record is not in the right state."""
    return Refuse(E_CONFLICT, reason, "conflict: " + reason.replace("_", " "), data)


def limited(what: str, limit: int) -> Refuse:
    """Return the refusal of one more where the bound is reached."""
    return Refuse(E_INVALID_REQUEST, "limit", f"there are {limit} {what} already", {"limit": limit})


def unavailable(reason: str, why: str, outcome: str = "not_sent") -> Refuse:
    """Return the refusal of a store that can't answer now."""
    return Refuse(E_STORE_UNAVAILABLE, reason, f"store unavailable: {why}", {}, outcome)


class Number(str):
    """A JSON number that is no machine integer, by its own text: 1.10 stays 1.10."""

    __slots__ = ()


def _encode(value: Any) -> Any:
    if isinstance(value, Number):
        return msgspec.Raw(value.encode())
    raise TypeError(f"{type(value).__name__} is no JSON")


_DECODER = msgspec.json.Decoder(float_hook=Number)


def decode(text: bytes) -> Any:
    """Return the value of a JSON text; numbers that are no 64-bit integers keep their text."""
    return _DECODER.decode(text)


def encode(value: Any) -> bytes:
    """Return the JSON text of a decoded value."""
    return msgspec.json.encode(_exact(value), enc_hook=_encode)


def _exact(value: Any) -> Any:
    # msgspec writes a str subclass as a string without asking the hook, so numbers are swapped here.
    if isinstance(value, Number):
        return msgspec.Raw(str(value).encode())
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exact(item) for item in value]
    return value


def is_integer(value: object) -> bool:
    """True for 0 … 2^63-1; never for a bool, a fraction, a text."""
    return type(value) is int and 0 <= value <= EPOCH_MAX


def check_name(field: str, value: object, *, bytes_max: int = KEY_BYTES_MAX) -> Refuse | None:
    """Refuse what can't be a key, an id or a nonce: no text, empty, too long, with control characters."""
    if not isinstance(value, str) or isinstance(value, Number):
        return invalid(field, "must be a text")
    if not value:
        return invalid(field, "must not be empty")
    if len(value) > bytes_max or len(value.encode()) > bytes_max:
        return invalid(field, f"must have at most {bytes_max} bytes")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        return invalid(field, "must not hold control characters")
    return None


@attrs.frozen
class Guard:
    """What proves that its bearer owns a key in one epoch."""

    replica_id: str
    token: str
    epoch: int


def read_guard(value: object) -> Guard | Refuse:
    """Return the guard of a write, or the refusal that names the member."""
    if not isinstance(value, dict):
        return invalid("guard", "must be an object {replica_id, token, epoch}")
    for field in ("replica_id", "token"):
        refusal = check_name(f"guard.{field}", value.get(field))
        if refusal is not None:
            return refusal
    if not is_integer(value.get("epoch")):
        return invalid("guard.epoch", "must be an integer from 0 to 2^63-1")
    return Guard(value["replica_id"], value["token"], value["epoch"])


def remembered(record: Record, method: str, nonce: str | None, bearer: str) -> dict[str, Any] | None:
    """Return the answer that this bearer's equal request had, or None."""
    if nonce is None:
        return None
    for known_method, known_nonce, known_bearer, answer in record.get("nonces", ()):
        if (known_method, known_nonce, known_bearer) == (method, nonce, bearer):
            return dict(answer)
    return None


def remember(record: Record, method: str, nonce: str | None, bearer: str, answer: dict[str, Any]) -> None:
    """Keep an answer inside the (new) record, so that it is on the disk with the step itself; the oldest go."""
    if nonce is not None:
        record["nonces"] = [*record.get("nonces", ()), [method, nonce, bearer, answer]][-NONCES_KEPT:]


def too_large(record: Record) -> Refuse | None:
    """Refuse a record over the bound that holds on every engine."""
    if len(encode(record)) > RECORD_BYTES_MAX:
        return invalid("data", f"the record would be larger than {RECORD_BYTES_MAX} bytes")
    return None
