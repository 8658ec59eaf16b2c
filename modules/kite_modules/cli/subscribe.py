"""`kite sub PATTERN… [--count N]`: print events as they come, one line each. Source: spec 05-surface §3."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import trio

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import NO, OK, USAGE, Failure, complain, say
from kite_modules.cli.numbers import count, seconds
from kite_modules.sdk.client import Kite
from kite_modules.sdk.events import Event, check_pattern


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "patterns", nargs="+", metavar="PATTERN", help="* stands for one segment, a last > for the rest"
    )
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Declare when to end."""
    parser.add_argument("--count", "-n", type=count, metavar="N", help="end after N events")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="end after S seconds (exit 1 if --count is not met)"
    )


def run(args: argparse.Namespace) -> int:
    """Print until enough have come, or for ever."""
    for pattern in args.patterns:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise Failure(USAGE, f"sub: {error}", "for example 'orders.>'") from None
    return run_connected(args, lambda kite: follow(kite, args, args.patterns))


async def follow(kite: Kite, args: argparse.Namespace, patterns: list[str]) -> int:
    """Print events of these patterns by the command's limits; returns the exit code."""
    seen = 0
    with trio.move_on_after(args.timeout if args.timeout is not None else float("inf")):
        async with kite.subscribe(*patterns) as events:
            async for event in events:
                show(event, as_json=args.json)
                seen += 1
                if args.count is not None and seen >= args.count:
                    return OK
    return OK if args.count is None else NO


def show(event: Event, *, as_json: bool) -> None:
    """Print one event."""
    if event.lost:
        complain(f"kite: {event.lost} events before this one were lost: too slow a reader")
    data = json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))
    if as_json:
        head: dict[str, Any] = {"schema": 1, "event": event.name, "source": event.source, "time": event.time}
        say(f'{json.dumps(head, ensure_ascii=False)[:-1]}, "data": {data}}}')
    else:
        stamp = event.time if isinstance(event.time, str) else time.strftime("%H:%M:%S")
        say(f"{stamp} {event.source} {event.name} {data}")
