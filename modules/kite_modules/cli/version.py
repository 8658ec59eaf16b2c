"""`kite version`."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from kite_modules.cli.fail import OK, say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    try:
        version = metadata.version("kite-kernel")
    except metadata.PackageNotFoundError:  # run from a bare checkout
        version = "unknown"
    if args.json:
        say_json({"version": version, "python": platform.python_version(), "platform": platform.platform()})
    else:
        say(f"kite {version} (Python {platform.python_version()})")
    return OK
