"""`kite methods [MODULE]`: what modules offer, read from their registration. Source: spec 30-clients §2."""

from __future__ import annotations

import argparse
from typing import Any

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import NO, OK, Failure, say, say_json
from kite_modules.sdk.client import Kite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("module", nargs="?", metavar="MODULE", help="only this one")


def run(args: argparse.Namespace) -> int:
    """List methods."""

    async def command(kite: Kite) -> int:
        rows = (await kite.call("registry.list_modules"))["modules"]
        if args.module is not None:
            rows = [row for row in rows if row["module_id"] == args.module]
            if not rows:
                raise Failure(NO, f"no module {args.module!r} is connected", "see `kite status`")
        found = [_method(row, method) for row in rows for method in row["methods"]]
        if args.json:
            say_json({"methods": found})
            return OK
        for method in found:
            doc = method["doc"].partition("\n")[0]
            say(f"{method['name']}({_signature(method['params'])})" + (f"  {doc}" if doc else ""))
        return OK

    return run_connected(args, command)


def _method(row: dict[str, Any], method: Any) -> dict[str, Any]:
    told = method if isinstance(method, dict) else {"name": method}
    return {
        "name": f"{row['module_id']}.{told.get('name', '')}",
        "state": row["state"],
        "params": told.get("params"),
        "result": told.get("result"),
        "doc": str(told.get("doc") or ""),
    }


def _signature(schema: Any) -> str:
    """Show a params schema as an author would write it."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return "…"
    required = schema.get("required", [])
    return ", ".join(
        f"{name}: {_type(shown)}" + ("" if name in required else f" = {shown.get('default', '…')!r}")
        for name, shown in schema["properties"].items()
        if isinstance(shown, dict)
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(_type(each) for each in schema["anyOf"] if isinstance(each, dict))
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"[{_type(schema['items'])}]"
    return str(schema.get("type", "any"))
