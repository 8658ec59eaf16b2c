#!/usr/bin/env python3
"""Writes the tables of kernel/contract/*.toml into the four packages; with --check only compares.

Tables only, no logic: each package keeps its own decisions, the vectors in kernel/contract/vectors hold them
together. Source: spec 00 §2.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from pprint import pformat
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "kernel" / "contract"

HOUSES: dict[str, tuple[Path, frozenset[str]]] = {
    "kernel": (
        ROOT / "kernel/kite_kernel/_contract.py",
        frozenset({"close", "errors", "numbers", "methods", "events", "config"}),
    ),
    "launcher": (
        ROOT / "launcher/kite_launcher/_contract.py",
        frozenset({"close", "errors", "strategy", "events", "config"}),
    ),
    "watchdog": (ROOT / "watchdog/kite_watchdog/_contract.py", frozenset({"close", "errors", "strategy", "events"})),
    "modules": (
        ROOT / "modules/kite_modules/_contract.py",
        frozenset({"close", "errors", "strategy", "numbers", "methods", "events"}),
    ),
}

JAVASCRIPT = ROOT / "modules/kite_modules/relay/static/kite-client.js"
JS_BEGIN, JS_END = "// <contract>", "// </contract>"

HEAD = '''"""Generated from kernel/contract/*.toml by scripts/gen_contract.py. Do not edit.

Tables of the wire; what each row is for stands as its comment or `why`.
"""

from typing import Any, Final, NamedTuple

'''


def load() -> dict[str, Any]:
    """Read all contract files into one mapping by file stem."""
    return {path.stem: tomllib.loads(path.read_text("utf-8")) for path in sorted(CONTRACT.glob("*.toml"))}


def _constant(name: str, kind: str, value: object) -> str:
    return f"{name}: Final[{kind}] = {pformat(value, width=110, sort_dicts=False)}\n"


def render_close(contract: dict[str, Any]) -> str:
    rows = contract["errors"]["close"]
    out = [
        "class Close(NamedTuple):\n    code: int\n    name: str\n    strategy: str\n    kind: str\n    why: str\n\n\n"
    ]
    out.append("CLOSE: Final[dict[int, Close]] = {\n")
    columns = ("code", "name", "strategy", "kind", "why")
    out += [f"    {row['code']}: Close({', '.join(repr(row[column]) for column in columns)}),\n" for row in rows]
    out.append("}\n")
    out += [f"CLOSE_{row['name'].upper()}: Final = {row['code']}\n" for row in rows]
    out.append("# protocol 2 number -> what a protocol 1 client is sent\n")
    out.append(_constant("CLOSE_TO_LEGACY", "dict[int, int]", {r["code"]: r["legacy"] for r in rows if "legacy" in r}))
    verdicts = {"never": "never", "standard": "retry", "cooldown": "back_off"}
    out.append("# strategy -> the verdict that a `bye` says\n")
    out.append(_constant("VERDICTS", "dict[str, str]", verdicts))
    return "".join(out)


def render_errors(contract: dict[str, Any]) -> str:
    rows = contract["errors"]["error"]
    out = [f"{('E_' + row['name'].upper())}: Final = {row['code']}\n" for row in rows]
    out.append(_constant("ERROR_TEXT", "dict[int, str]", {r["code"]: r["text"] for r in rows}))
    out.append(_constant("ERROR_REASONS", "dict[int, tuple[str, ...]]", {r["code"]: tuple(r["reasons"]) for r in rows}))
    return "".join(out)


def render_strategy(contract: dict[str, Any]) -> str:
    out = [
        "class Strategy(NamedTuple):\n    initial_s: float\n    factor: float\n    max_s: float\n"
        "    max_tries: int | None  # None = unlimited\n    jitter_ratio: float\n\n\n"
    ]
    for column, kinds in contract["numbers"]["strategy"].items():
        for kind, row in kinds.items():
            tries = None if row["max_tries"] < 0 else row["max_tries"]
            values = f"{row['initial_s']}, {row['factor']}, {row['max_s']}, {tries}, {row['jitter_ratio']}"
            out.append(f"{column.upper()}_{kind.upper()}: Final = Strategy({values})  # {row['why']}\n")
    return "".join(out)


def render_numbers(contract: dict[str, Any]) -> str:
    rows = contract["numbers"]["numbers"]
    return "".join(f"{name}: Final = {row['value']!r}  # {row['unit']}: {row['why']}\n" for name, row in rows.items())


def render_methods(contract: dict[str, Any]) -> str:
    out = [
        "class Method(NamedTuple):\n    name: str\n    access: str\n    params: dict[str, str]\n"
        "    result: tuple[str, ...]\n\n\n",
        "METHODS: Final[dict[str, Method]] = {\n",
    ]
    for row in contract["methods"]["method"]:
        values = f"{row['name']!r}, {row['access']!r}, {row['params']!r}, {tuple(row['result'])!r}"
        out.append(f"    {row['name']!r}: Method({values}),\n")
    out.append("}\n")
    return "".join(out)


def render_events(contract: dict[str, Any]) -> str:
    events = contract["events"]
    says = {row["name"]: row["says"] for row in events["event"]}
    reasons = events["shutdown_reasons"]
    return (
        _constant("EVENTS", "dict[str, str]", says)
        + _constant("NOTICES", "tuple[str, ...]", tuple(row["name"] for row in events["notice"]))
        + _constant("SHUTDOWN_REASONS", "tuple[str, ...]", tuple(reasons["values"]))
        + "# after one of these a client never comes back\n"
        + _constant("SHUTDOWN_FINAL", "tuple[str, ...]", tuple(reasons["final"]))
    )


def render_config(contract: dict[str, Any]) -> str:
    sections = contract["config"]["section"]
    return (
        "# section -> key -> {type, default?, min?, max?, choices?, keys?, …}; kite.toml's one definition\n"
        + _constant("CONFIG", "dict[str, dict[str, dict[str, Any]]]", sections)
    )


RENDERERS = {
    "close": render_close,
    "errors": render_errors,
    "strategy": render_strategy,
    "numbers": render_numbers,
    "methods": render_methods,
    "events": render_events,
    "config": render_config,
}


def render(contract: dict[str, Any], tables: frozenset[str]) -> str:
    """Return the text of one `_contract.py` that holds just these tables."""
    parts = [RENDERERS[name](contract) for name in RENDERERS if name in tables]
    return HEAD + "\n\n".join(parts)


def render_javascript(contract: dict[str, Any]) -> str:
    """Return the rows that stand between the contract marks of the JavaScript client."""
    rows = contract["errors"]["close"]
    close = {row["code"]: {"name": row["name"], "strategy": row["strategy"], "kind": row["kind"]} for row in rows}
    # 4003 and 4004 share an old number: there the reason decides, so it is no table.
    legacy = {row["legacy"]: row["code"] for row in rows if row.get("legacy") not in (None, 4003)}
    columns = contract["numbers"]["strategy"]

    def policy(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "initialMs": round(row["initial_s"] * 1000),
            "factor": row["factor"],
            "maxMs": round(row["max_s"] * 1000),
            "jitterRatio": row["jitter_ratio"],
            "maxTries": None if row["max_tries"] < 0 else row["max_tries"],
        }

    def constant(name: str, value: object) -> str:
        return f"const {name} = {json.dumps(value)};\n"

    cooldown = policy(columns["remote"]["cooldown"])
    return (
        "const CLOSE = {\n"
        + "".join(f"  {code}: {json.dumps(row)},\n" for code, row in close.items())
        + "};\n"
        + constant("LEGACY", legacy)
        + constant("COOLDOWN", {"initialMs": cooldown["initialMs"], "maxTries": cooldown["maxTries"]})
        + constant("STANDARD", {column: policy(kinds["standard"]) for column, kinds in columns.items()})
        + constant("SHUTDOWN_FINAL", contract["events"]["shutdown_reasons"]["final"])
    )


def with_javascript(text: str, rows: str) -> str:
    """Return the client's text with the rows between its two marks replaced."""
    head, rest = text.split(JS_BEGIN, 1)
    mark, rest = rest.split("\n", 1)
    return f"{head}{JS_BEGIN}{mark}\n{rows}{JS_END}{rest.split(JS_END, 1)[1]}"


def main(argv: list[str]) -> int:
    contract = load()
    stale = []
    wanted = {path: render(contract, tables) for path, tables in HOUSES.values()}
    wanted[JAVASCRIPT] = with_javascript(JAVASCRIPT.read_text("utf-8"), render_javascript(contract))
    for path, text in wanted.items():
        if "--check" in argv:
            if not path.exists() or path.read_text("utf-8") != text:
                stale.append(path.relative_to(ROOT))
        else:
            path.write_text(text, "utf-8")
    for path in stale:
        print(f"{path}: not current; run scripts/gen_contract.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
