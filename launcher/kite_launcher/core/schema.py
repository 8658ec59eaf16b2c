"""A JSON Schema of kite.toml, made from the rows that the check itself uses, for editors.

It says what a schema can: names, types, ranges, choices. What needs the rest of the file or the machine (circles,
accounts, other files) only `kite check` can say. Source: spec 50 §5, 00 §33.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kite_launcher._contract import CONFIG
from kite_launcher.core.units import words_size

_DURATION: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
_SIZE: Final = r"^[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB|TiB)$"
_RATE: Final = r"^[0-9]+/([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
_REFERENCE: Final = r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"


def json_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) of a whole kite.toml."""
    properties: dict[str, Any] = {}
    for section, rows in CONFIG.items():
        name, _, star = section.partition(".")
        if not star:
            properties[name] = _section(rows, closed=f"{name}.*" not in CONFIG)
            continue
        each = _section(rows, closed=True)
        table = properties.setdefault(name, {"type": "object"})
        table["additionalProperties"] = each
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kite.toml",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _section(rows: Mapping[str, Any], *, closed: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "object", "properties": {name: _row(row) for name, row in rows.items()}}
    if closed:
        out["additionalProperties"] = False
    return out


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one key's schema with its meaning and default."""
    out = _type(row)
    if row.get("or_false"):
        out = {"anyOf": [out, {"const": False}]}
    if row.get("or_table"):
        out = {"anyOf": [out, _table(row)]}
    if "doc" in row:
        out["description"] = row["doc"]
    if "default" in row:
        out["default"] = row["default"]
    return out


def _type(row: Mapping[str, Any]) -> dict[str, Any]:
    match row["type"]:
        case "str":
            if "pattern" in row:
                return _text(f"^({row['pattern']})$", row["expected"])
            return {"enum": list(row["choices"])} if "choices" in row else {"type": "string"}
        case "bool":
            return {"anyOf": [{"type": "boolean"}, _whole_reference()]}
        case "int" | "number" as kind:
            limits = {"minimum": row.get("min"), "maximum": row.get("max")}
            name = "integer" if kind == "int" else "number"
            number = {"type": name, **{key: value for key, value in limits.items() if value is not None}}
            return {"anyOf": [number, _whole_reference()]}
        case "duration":
            return _text(_DURATION, "a duration such as 500ms, 5s, 2m")
        case "size":
            span = f", {words_size(row['min'])} to {words_size(row['max'])}" if "min" in row and "max" in row else ""
            return _text(_SIZE, f"a size such as 64KiB{span}")
        case "rate":
            return _text(_RATE, "a rate such as 10/1h")
        case "strlist":
            return {"type": "array", "items": {"type": "string"}}
        case "command":
            return {"type": "array", "items": {"type": "string"}, "minItems": 1}
        case "env":
            file = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}
            return {"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, file]}}
        case "table":
            return _table(row)
        case _:
            return {}


def _table(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = row.get("keys")
    if keys is None:
        return {"type": "object"}
    inner = {name: _type(key if isinstance(key, Mapping) else {"type": key}) for name, key in keys.items()}
    out: dict[str, Any] = {"type": "object", "properties": inner, "additionalProperties": False}
    if row.get("one_of"):
        out.update(minProperties=1, maxProperties=1)
    if row.get("all_of"):
        out["required"] = list(row["all_of"])
    return out


def _text(pattern: str, title: str) -> dict[str, Any]:
    return {"type": "string", "title": title, "anyOf": [{"pattern": pattern}, {"pattern": _REFERENCE}]}


def _whole_reference() -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{_REFERENCE}$"}
