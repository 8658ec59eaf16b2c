"""The table of commands of `kite`: its own, each in a room of its own, and those that are the launcher's.

One parser is made, for the one command that was asked for, so that starting is cheap. What is refused is refused with
the nearest valid name and without repeating values: one of them may be a secret. Source: spec 05-surface §3, 80 §4.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final, NamedTuple, NoReturn

from kite_modules.cli.fail import USAGE, Failure


class Command(NamedTuple):
    """One command of this house: what it does, an example, and the room (`kite_modules.cli.<room>`) that does it.

    A room has `add_arguments(parser)` and `run(args) -> int`, or `add_parser(subparsers)` and `run(args)`.
    """

    says: str
    example: str
    room: str


OWN: Final[dict[str, Command]] = {
    "call": Command("call a method of a module", 'kite call greeter.greet \'{"name":"you"}\'', "call"),
    "pub": Command("publish an event", "kite pub orders.created '{\"id\":7}'", "publish"),
    "sub": Command("print events of these patterns", "kite sub 'orders.>' --count 3", "subscribe"),
    "events": Command("print every event", "kite events -f", "events"),
    "methods": Command("what modules offer, with parameters and docs", "kite methods greeter", "methods"),
    "stream": Command("publish to, read, measure and record streams", "kite stream sub ticks --last 0", "stream"),
    "top": Command("modules live: latency, queues, calls", "kite top", "top"),
    "bench": Command("latency and throughput of this installation", "kite bench --seconds 2", "bench"),
    "chaos": Command("hurt an instance on purpose, check what must hold", "kite chaos --scratch --seconds 30", "chaos"),
    "chat": Command("talk to the chat module", "kite chat", "chat"),
    "relay": Command("users of the relay", "kite relay user list", "relay"),
    "audit": Command("check the audit trail", "kite audit verify", "audit"),
    "backup": Command("make, check and restore snapshots", "kite backup new", "backup"),
    "ownership": Command("who owns what, by epoch", "kite ownership", "ownership"),
    "recovery": Command("what waits to be recovered", "kite recovery", "recovery"),
    "version": Command("print the version", "kite version --json", "version"),
}
LAUNCHER: Final[dict[str, str]] = {
    "up": "start the instance (-d: in the background)",
    "down": "stop the instance; nothing of it is left",
    "status": "what runs and how it is",
    "ps": "the same as status",
    "start": "start modules",
    "stop": "stop modules, and keep them stopped",
    "restart": "stop and start modules",
    "reload": "read kite.toml again, touch only what changed",
    "logs": "what modules printed",
    "check": "check kite.toml, start nothing",
    "wait": "wait until modules are ready",
    "why": "how a module came to be as it is",
    "token": "print a fresh token for a module",
    "new": "write a module and its test from a template",
    "doctor": "find the usual faults and the way out",
    "service": "run the instance by systemd or launchd",
    "init": "write a kite.toml, from another tool's file",
    "completion": "print completion for a shell",
    "upgrade": "a new launcher takes over what runs",
}
_VALUED: Final = frozenset({"--state-dir", "--config"})


class Parser(argparse.ArgumentParser):
    """argparse that refuses by exit 64 and one line that repeats no value."""

    def error(self, message: str) -> NoReturn:
        """Refuse."""
        shown = message.partition(": invalid")[0] if ": invalid" in message else message
        raise Failure(USAGE, f"{self.prog.removeprefix('kite ')}: {shown}", f"see `{self.prog} --help`")


def split(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the command's name (None: none given) and everything else in order."""
    index = 0
    while index < len(argv):
        word = argv[index]
        if word in _VALUED:
            index += 2
        elif word == "--":
            break
        elif not word.startswith("-"):
            return word, [*argv[:index], *argv[index + 1 :]]
        else:
            index += 1
    return None, list(argv)


def parse(name: str, rest: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Understand one command of this house; returns its room and its arguments. Raises: Failure 64; may print help."""
    command = OWN[name]
    if find_spec(f"kite_modules.cli.{command.room}") is None:
        raise Failure(USAGE, f"{name} is not part of this installation", "see `kite --help`")
    room = import_module(f"kite_modules.cli.{command.room}")
    if hasattr(room, "add_parser"):
        parser = Parser(prog="kite", allow_abbrev=False)
        subparsers = parser.add_subparsers(dest="command", parser_class=Parser)
        room.add_parser(subparsers)
        for chosen in subparsers.choices.values():
            add_common(chosen)
        args, unknown = parser.parse_known_args([name, *rest])
    else:
        parser = Parser(
            prog=f"kite {name}", description=command.says, epilog=f"example: {command.example}", allow_abbrev=False
        )
        room.add_arguments(parser)
        add_common(parser)
        args, unknown = parser.parse_known_intermixed_args(list(rest))
    if unknown:
        _refuse_unknown(parser, name, unknown)
    return room, args


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes, where it is not there yet."""
    known = {option for action in parser._actions for option in action.option_strings}
    for option, metavar, text in (
        ("--state-dir", "DIR", "the instance's state directory"),
        ("--config", "FILE", "the instance's kite.toml"),
    ):
        if option not in known:
            parser.add_argument(option, metavar=metavar, help=text)
    if "--json" not in known:
        parser.add_argument("--json", action="store_true", help='machine-readable, with "schema": 1')


def unknown_command(name: str) -> Failure:
    """Return the refusal of a name that is no command, with the nearest that is."""
    return Failure(USAGE, f"no command {name!r}{meant(name, [*OWN, *LAUNCHER])}", "see `kite --help`")


def meant(wrong: str, valid: Iterable[str]) -> str:
    """Return `, did you mean …?` or nothing."""
    near = difflib.get_close_matches(wrong, list(valid), n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _refuse_unknown(parser: argparse.ArgumentParser, name: str, unknown: Sequence[str]) -> NoReturn:
    """Say which option is not known; never its value."""
    options = [word.partition("=")[0] for word in unknown if word.startswith("-") and word != "--"]
    hint = f"see `kite {name} --help`"
    if not options:
        raise Failure(USAGE, f"{name}: one argument too many", hint)
    if options[0] in ("--token", "--password", "--secret"):
        safe_way = (
            "nobody but you should read a secret, and everybody can read a command line: kite finds its own token"
        )
        raise Failure(USAGE, f"{name}: no option {options[0]!r}", safe_way)
    known = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    raise Failure(USAGE, f"{name}: no option {options[0]!r}{meant(options[0], known)}", hint)


def overview() -> str:
    """Return the help of the whole program."""
    own = [f"  {name:<11} {command.says}" for name, command in OWN.items() if _is_there(command)]
    launcher = [f"  {name:<11} {says}" for name, says in LAUNCHER.items()]
    return "\n".join(
        [
            "usage: kite COMMAND [--config FILE] [--state-dir DIR] [--json] …",
            "",
            "The instance:",
            *launcher,
            "",
            "What its modules say:",
            *own,
            "",
            "The instance is found by --state-dir, --config, KITE_STATE_DIR, KITE_CONFIG,",
            "or by kite.toml in this folder or one above it.",
            "`kite COMMAND --help` tells more; example: kite up -d",
        ]
    )


def _is_there(command: Command) -> bool:
    return find_spec(f"kite_modules.cli.{command.room}") is not None
