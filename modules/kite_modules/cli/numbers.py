"""Numbers on the command line."""

from __future__ import annotations

import argparse


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86400 * 30:
        raise argparse.ArgumentTypeError("expected a number of seconds greater than 0")
    return value


def count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text[:18]) > 0 and len(text) < 19):
        raise argparse.ArgumentTypeError("expected a whole number from 1 on")
    return int(text)
