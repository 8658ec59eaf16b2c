"""A handler's type hints become its checks and its JSON Schema.

Params are checked on the way in by msgspec (attrs classes, dataclasses, structs, typed dicts, unions, literals, bounds
by `Annotated`); what does not fit is −32602 with the parameter's name. Source: spec 30-clients §2.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, Final

import attrs
import msgspec

from kite_modules.sdk.errors import KiteError

_FIELD = re.compile(r"`\$\.?([^`]*)`\s*$")
_NAMED = re.compile(r"field `([^`]*)`")
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class BadParams(KiteError):
    """Params that don't fit: `field` names the parameter, `why` says what was expected."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field
        self.why = why


@attrs.frozen
class Signature:
    """What one handler takes and gives, read from its hints once.

    `injected` maps parameters that the SDK fills in (by their annotation) to that annotation.
    """

    names: tuple[str, ...]
    positional_only: tuple[str, ...]
    model: type[msgspec.Struct]
    open_ended: bool
    injected: dict[str, type]
    params_schema: dict[str, Any]
    result_schema: dict[str, Any] | None
    doc: str

    def read(self, raw: msgspec.Raw | msgspec.UnsetType) -> dict[str, Any]:
        """Return the checked arguments by name. Raises: BadParams."""
        data: bytes = b"{}" if isinstance(raw, msgspec.UnsetType) else bytes(raw)
        if data.lstrip()[:1] == b"[":
            data = self._by_position(data)
        try:
            model = msgspec.json.decode(data, type=self.model)
            extra = self._extra(data) if self.open_ended else {}
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
            raise _told(error) from None
        known = {name: getattr(model, name) for name in self.names}
        return {**{name: value for name, value in known.items() if value is not msgspec.UNSET}, **extra}

    def _by_position(self, data: bytes) -> bytes:
        try:
            values = msgspec.json.decode(data, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            raise _told(error) from None
        if len(values) > len(self.names):
            raise BadParams("params", f"takes {len(self.names)} parameters, not {len(values)}")
        return msgspec.json.encode(dict(zip(self.names, values, strict=False)))

    def _extra(self, data: bytes) -> dict[str, Any]:
        everything: dict[str, Any] = msgspec.json.decode(data)
        return {key: value for key, value in everything.items() if key not in self.names}


def _told(error: Exception) -> BadParams:
    """Turn a library's complaint into the parameter's name and the reason."""
    text = str(error)
    path, named = _FIELD.search(text), _NAMED.search(text)
    inside = path.group(1) if path else ""
    field = re.split(r"[.\[]", inside)[0] if inside else (named.group(1) if named else "params")
    return BadParams(field or "params", text.replace("Object missing", "missing").replace("Object contains", "has an"))


def signature_of(function: Callable[..., Any], *, injectable: tuple[type, ...] = ()) -> Signature:
    """Read a handler. Raises: TypeError that names the parameter whose type can't come off a wire; NameError for hints
    that can't be resolved yet."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    positional_only: list[str] = []
    injected: dict[str, type] = {}
    open_ended = False
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if isinstance(hint, type) and hint in injectable:
            injected[parameter.name] = hint
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{_where(function)}: *{parameter.name} can't be called by name; take a list instead")
        else:
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                positional_only.append(parameter.name)
            fields.append(_field(function, parameter, hint))
    required = [field for field in fields if field[2] is msgspec.NODEFAULT]
    optional = [field for field in fields if field[2] is not msgspec.NODEFAULT]
    names = tuple(name for name, _, _ in fields)
    model = msgspec.defstruct(
        _identifier(function),
        [*[(name, hint) for name, hint, _ in required], *optional],
        kw_only=True,
        forbid_unknown_fields=not open_ended,
    )
    return Signature(
        names=names,
        positional_only=tuple(positional_only),
        model=model,
        open_ended=open_ended,
        injected=injected,
        params_schema=_with_defaults(_inline(msgspec.json.schema(model)), function),
        result_schema=_result_schema(hints.get("return", Any)),
        doc=inspect.cleandoc(function.__doc__ or ""),
    )


def _where(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _identifier(function: Callable[..., Any]) -> str:
    return re.sub(r"\W", "_", getattr(function, "__name__", "handler"))


def _field(function: Callable[..., Any], parameter: inspect.Parameter, hint: Any) -> tuple[str, Any, Any]:
    """Return one struct field. A default stays the author's own: an absent member is left out of the call."""
    try:
        msgspec.json.schema(hint)
    except (TypeError, NotImplementedError, RecursionError) as error:
        raise TypeError(
            f"{_where(function)}: parameter {parameter.name!r} has a type that no JSON fits: {error}"
        ) from None
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, hint, msgspec.NODEFAULT
    return parameter.name, hint | msgspec.UnsetType, msgspec.UNSET


def _result_schema(hint: Any) -> dict[str, Any] | None:
    origin = typing.get_origin(hint)
    if origin in (AsyncIterator, AsyncGenerator, Iterator, Generator):
        hint = typing.get_args(hint)[0]
    if hint is Any:
        return None
    try:
        return _inline(msgspec.json.schema(hint))
    except (TypeError, NotImplementedError, RecursionError):
        return None  # the result is encoded as it is; only its description is missing


def _with_defaults(schema: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Show the author's defaults, where JSON can say them."""
    for parameter in inspect.signature(function).parameters.values():
        shown = schema.get("properties", {}).get(parameter.name)
        if shown is not None and parameter.default is not inspect.Parameter.empty:
            with suppress(TypeError, ValueError):
                shown["default"] = msgspec.to_builtins(parameter.default)
    return schema


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the top model in the place of its reference, so that a reader sees the properties at first sight."""
    definitions = schema.get("$defs", {})
    reference = schema.get("$ref", "")
    name = reference.rpartition("/")[2]
    if name not in definitions:
        return schema
    rest = {key: value for key, value in definitions.items() if key != name}
    top = {key: value for key, value in definitions[name].items() if key != "title"}
    return {**top, "$defs": rest} if rest else top
