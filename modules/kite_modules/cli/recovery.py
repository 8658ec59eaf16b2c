"""`kite recovery`: what was interrupted, who has it, and when the next try is due. Source: spec 70 §3."""

from __future__ import annotations

import argparse
from typing import Any

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import OK, say, say_json
from kite_modules.cli.ownership import table
from kite_modules.sdk.client import Kite

STATES = ("pending", "leased", "claimed", "done", "abandoned")
OPEN = STATES[:3]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--state", choices=STATES, help="only recoveries in this state (default: the open ones)")
    parser.add_argument("--all", action="store_true", help="the ended ones, too")


def run(args: argparse.Namespace) -> int:
    """Show recoveries."""

    async def command(kite: Kite) -> int:
        found = await kite.call("recovery.list", {"state": args.state} if args.state else {})
        rows = [row for row in found["recoveries"] if args.all or args.state or row["state"] in OPEN]
        if args.json:
            say_json({"recoveries": rows})
            return OK
        heads = ("KEY", "STATE", "CAUSE", "TRIES", "NEXT", "DISPATCHER", "WHY")
        say("\n".join(table(heads, [_line(row) for row in rows])) if rows else "nothing waits to be recovered")
        return OK

    return run_connected(args, command)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    due = row["due_in_s"]
    when = "–" if due is None else "now" if due == 0 else f"in {due:.0f} s"
    return (
        row["key"],
        row["state"],
        row["cause"],
        str(row["attempts"]),
        when,
        row["dispatcher"] or "–",
        row["why"] or "",
    )
