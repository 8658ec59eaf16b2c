"""`kite ownership [PREFIX]`: who owns what, in which epoch, and which replicas live. Source: spec 70 §3."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import OK, say, say_json
from kite_modules.sdk.client import Kite

STATES = ("idle", "running", "interrupted", "done", "failed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only keys that begin with this text")
    parser.add_argument("--state", choices=STATES, help="only keys in this state")


def run(args: argparse.Namespace) -> int:
    """Show owners and replicas."""

    async def command(kite: Kite) -> int:
        wish: dict[str, Any] = {"prefix": args.prefix}
        if args.state:
            wish["state"] = args.state
        found = await kite.call("ownership.list", wish)
        replicas = (await kite.call("replica.list"))["replicas"]
        if args.json:
            say_json({"records": found["records"], "more": found["more"], "replicas": replicas})
            return OK
        say("\n".join(table(("KEY", "STATE", "EPOCH", "OWNER", "SINCE"), [_record(row) for row in found["records"]])))
        if found["more"]:
            say("… and more: name a PREFIX")
        alive = [row for row in replicas if row["state"] in ("active", "suspect")]
        heads = ("REPLICA", "MODULE", "STATE", "TASKS", "LAST BEAT")
        say("\n".join(["", *table(heads, [_replica(row) for row in alive])]))
        return OK

    return run_connected(args, command)


def _record(row: dict[str, Any]) -> tuple[str, ...]:
    owner = row["owner"] or {"replica_id": "–", "since": ""}
    return row["key"], row["state"], str(row["epoch"]), owner["replica_id"], owner["since"][:19]


def _replica(row: dict[str, Any]) -> tuple[str, ...]:
    age = row["beat_age_s"]
    beat = "–" if age is None else f"{age:.1f} s ago"
    return row["replica_id"], row["module_id"], row["state"], str(row["tasks"]), beat


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return lines of a table with columns as wide as they need."""
    if not rows:
        return [f"no {heads[0].lower()}s"]
    widths = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    lines = [heads, *rows]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
