"""`kite call MODULE.METHOD [JSON]`: one call, its result on stdout, its error as one line.

Source: spec 05-surface §3.
"""

from __future__ import annotations

import argparse

import msgspec

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import OK, USAGE, Failure, complain, say
from kite_modules.cli.numbers import seconds
from kite_modules.cli.values import pretty, read_value
from kite_modules.sdk.client import Kite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("method", metavar="MODULE.METHOD")
    parser.add_argument("params", nargs="*", metavar="JSON", help="an object or array, - for stdin, or name=text pairs")
    parser.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help="deadline of the call (30)")
    parser.add_argument("--key", metavar="KEY", help="idempotency key: the same call with the same key counts once")
    parser.add_argument("--no-wait", action="store_true", help="refuse at once when the module is away just now")


def run(args: argparse.Namespace) -> int:
    """Make the call."""
    name, dot, method = args.method.partition(".")
    if not (name and dot and method):
        raise Failure(USAGE, "a method is named MODULE.METHOD", "for example greeter.greet; see `kite methods`")
    params = read_value(args.params, what="params", structured=True)

    async def command(kite: Kite) -> int:
        raw: msgspec.Raw = await kite.call(
            args.method,
            params,
            timeout=args.timeout,
            key=args.key,
            wait=not args.no_wait,
            on_progress=lambda value: complain(msgspec.json.encode(value).decode()),
            result=msgspec.Raw,
        )
        say(f'{{"schema":1,"result":{bytes(raw).decode()}}}' if args.json else pretty(bytes(raw)))
        return OK

    return run_connected(args, command)
