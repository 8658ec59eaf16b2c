"""The entry of `kite`: hands the launcher's commands to the launcher, does its own, never shows a traceback.

Nothing heavy is imported before the command is known. Source: spec 05-surface §3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kite_modules.cli.commands import LAUNCHER, OWN, overview, parse, split, unknown_command
from kite_modules.cli.fail import NO, OK, Failure, bug, let_go_of_stdout, say, tell


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and leave with its exit code (never returns normally)."""
    code = run(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        let_go_of_stdout()
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run one command and return its exit code; what it refuses or breaks on is told."""
    as_json = "--json" in argv
    try:
        name, rest = split(argv)
        if name in LAUNCHER:
            _become_launcher(argv)
        if name is None or name == "help":
            return _without_command(rest)
        if name not in OWN:
            raise unknown_command(name)
        room, args = parse(name, rest)
        return int(room.run(args))
    except Failure as failure:
        return tell(failure, as_json=as_json)
    except BrokenPipeError:
        let_go_of_stdout()
        return OK
    except KeyboardInterrupt:
        return NO
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else OK
    except Exception as error:
        return bug(error)


def _without_command(rest: list[str]) -> int:
    if "--version" in rest:
        return run(["version", *[word for word in rest if word != "--version"]])
    unknown = [word for word in rest if word.startswith("-") and word not in ("-h", "--help", "--json")]
    if unknown:
        raise Failure(64, f"no option {unknown[0].partition('=')[0]!r} without a command", "see `kite --help`")
    say(overview())
    return OK


def _become_launcher(argv: list[str]) -> NoReturn:
    """Replace this process by `kite-launch` with the same words; for a module's own folder its instance's is meant."""
    directory = os.environ.get("KITE_STATE_DIR")
    if directory:
        from kite_modules.cli.instance import instance_of_module_dir

        os.environ["KITE_STATE_DIR"] = instance_of_module_dir(os.path.abspath(directory))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "kite_launcher", *argv])


if __name__ == "__main__":
    main()
