"""`version`: which Kite this is."""

from __future__ import annotations

import json
import platform

from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import OK, say
from kite_launcher.cli.instance import Instance


def run(line: Line, instance: Instance) -> int:
    """Print the installed version and the Python that runs it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("kite-kernel")
    except PackageNotFoundError:
        own = "unknown"
    if line.as_json:
        say(json.dumps({"schema": 1, "version": own, "python": platform.python_version()}))
    else:
        say(f"kite-launch {own} (Python {platform.python_version()})")
    return OK
