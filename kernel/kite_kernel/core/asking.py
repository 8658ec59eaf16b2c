"""How the kernel's own methods are asked: `Ask` in, JSON bytes, `Refused` or `LATER` out.

A method that must wait for a store keeps the `Ask`, returns LATER, and calls `ask.answer(…)` once, whenever it knows.
Params are checked against kernel/contract/methods.toml before a method sees them. Source: spec 05-surface §7, §9.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import msgspec

from kite_kernel._contract import E_INVALID_PARAMS, METHODS
from kite_kernel.core.text import error, result

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.peer import Peer


class Later(enum.Enum):
    """The answer comes by `Ask.answer`."""

    LATER = "later"


LATER: Final = Later.LATER


class Refused:
    """An expected refusal: an error code, its reason, its outcome and whatever else `data` shall hold."""

    __slots__ = ("code", "data", "message", "outcome", "reason")

    def __init__(self, code: int, reason: str, *, outcome: str = "not_sent", message: str = "", **data: Any) -> None:
        self.code = code
        self.reason = reason
        self.outcome = outcome
        self.message = message
        self.data = data


Answer: TypeAlias = "bytes | Refused | Later"
Handler: TypeAlias = "Callable[[Ask], Answer]"


@attrs.define
class Ask:
    """One request to the kernel. `params` is checked against the contract; `raw` is their text, b"" where absent."""

    peer: Peer
    method: str
    params: dict[str, Any]
    now: float
    id: bytes  # b"" for a notification
    raw: bytes
    reply: Callable[[bytes], None]  # takes a whole JSON-RPC answer; does nothing for a notification
    after: list[Callable[[], None]] = attrs.field(factory=list)  # run once the answer stands in the queue

    def answer(self, outcome: bytes | Refused) -> None:
        """Answer now. Call it once."""
        self.reply(answer_text(self.id, outcome))


def answer_text(ident: bytes, outcome: bytes | Refused) -> bytes:
    """Make the whole answer from a result's JSON bytes or a refusal."""
    if isinstance(outcome, Refused):
        return error(ident, outcome.code, outcome.reason, outcome.outcome, outcome.message, **outcome.data)
    return result(ident, outcome)


def read_params(method: str, raw: bytes) -> dict[str, Any] | Refused:
    """Check params against the contract. By position they are taken in the contract's order.

    Returns: Refused -32602 whose `field` names the first member that is wrong.
    """
    fields = METHODS[method].params
    try:
        value = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, RecursionError, ValueError):
        return Refused(E_INVALID_PARAMS, "invalid_params", field="params")
    if isinstance(value, list):
        if len(value) > len(fields):
            return Refused(E_INVALID_PARAMS, "invalid_params", field="params")
        value = dict(zip(fields, value, strict=False))
    for name, kind in fields.items():
        if name not in value:
            if not kind.endswith("?"):
                return Refused(E_INVALID_PARAMS, "invalid_params", field=name)
        elif value[name] is None and kind.endswith("?"):
            if kind != "any?":
                del value[name]
        elif not _FITS[kind.rstrip("?")](value[name]):
            return Refused(E_INVALID_PARAMS, "invalid_params", field=name)
    return value


_FITS: Final[dict[str, Callable[[Any], bool]]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "any": lambda value: True,
}
