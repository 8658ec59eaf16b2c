"""The entry of `kite-launch`: understands the line, finds the instance, does the one command, never shows a traceback.

Nothing heavy is imported before the command is known. Source: spec 05 §3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kite_launcher.cli.commands import COMMANDS, Line, parse, wants_json
from kite_launcher.cli.fail import NO, Failure, bug, leave, of_machine, tell
from kite_launcher.cli.instance import Instance, find


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and leave with its exit code (never returns normally)."""
    _fill_standard_streams()
    leave(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run one command and return its exit code; what it refuses or breaks on is already told."""
    as_json = wants_json(argv)
    instance: Instance | None = None
    try:
        line = parse(argv)
        as_json = line.as_json
        instance = _instance(line)
        return _room(line, instance)
    except Failure as failure:
        return tell(failure, as_json=as_json)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        return NO
    except OSError as error:
        foreseen = of_machine(error)
        if foreseen is not None:
            return tell(foreseen, as_json=as_json)
        return bug(error, instance.state_dir if instance is not None else None)
    except Exception as error:
        return bug(error, instance.state_dir if instance is not None else None)


def _fill_standard_streams() -> None:
    """Open /dev/null where the caller closed 0, 1 or 2, so that no pipe or socket of ours gets such a number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _instance(line: Line) -> Instance:
    if not COMMANDS[line.command].instance or getattr(line.args, "schema", False):
        return Instance(None, "")
    return find(line.asked, os.environ, _here())


def _here() -> str:
    """Return the current folder; one that was deleted meanwhile has none above it either."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _room(line: Line, instance: Instance) -> int:
    """Import the one room that does the command, and let it."""
    import importlib

    name = COMMANDS[line.command].room
    if name == "logs":
        logs = importlib.import_module("kite_launcher.cli.logs")
        return int(logs.run(line.args, instance.state_dir, instance.config))
    room = importlib.import_module(f"kite_launcher.cli.{name}")
    return int(room.run(line, instance))
