"""`kite events [-f]`: every event of the instance as it happens. Source: spec 80 §4."""

from __future__ import annotations

import argparse

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import OK
from kite_modules.cli.subscribe import add_limits, follow

GLANCE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("-f", "--follow", action="store_true", help="stay until Ctrl+C (else: 5 seconds)")
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Print every event."""
    if not args.follow and args.timeout is None and args.count is None:
        args.timeout = GLANCE_S
        run_connected(args, lambda kite: follow(kite, args, [">"]))
        return OK
    return run_connected(args, lambda kite: follow(kite, args, [">"]))
