"""`kite pub EVENT [JSON]`: publish one event, say to how many it went. Source: spec 05-surface §3."""

from __future__ import annotations

import argparse

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import OK, say, say_json
from kite_modules.cli.numbers import seconds
from kite_modules.cli.values import read_value
from kite_modules.sdk.client import Kite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("event", metavar="EVENT")
    parser.add_argument("data", nargs="*", metavar="JSON", help="any JSON, - for stdin, or name=text pairs")
    parser.add_argument("--retain", action="store_true", help="keep it for who subscribes later")
    parser.add_argument("--key", metavar="KEY", help="idempotency key: the same event with the same key counts once")
    parser.add_argument("--timeout", type=seconds, default=30.0, metavar="S")


def run(args: argparse.Namespace) -> int:
    """Publish."""
    data = read_value(args.data, what="data", structured=False)

    async def command(kite: Kite) -> int:
        delivered = await kite.publish(
            args.event, data, away="wait", key=args.key, retain=args.retain, timeout=args.timeout
        )
        if args.json:
            say_json({"event": args.event, "delivered": delivered})
        else:
            say(f"delivered to {delivered}")
        return OK

    return run_connected(args, command)
