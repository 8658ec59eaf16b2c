"""The table of commands: names, what each takes, an example each; and how a command line becomes one of them.

One parser is made, for the one command that was asked for, so that starting is cheap. What is refused is refused
with the nearest valid name and without repeating values: one of them may be a secret typed in the wrong place.
Source: spec 05 §3; case S-46.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, NoReturn

from kite_launcher.cli.fail import USAGE, Failure
from kite_launcher.cli.instance import Asked


class Command(NamedTuple):
    """One command: what it does in a few words, an example, its own arguments, and the room that does it."""

    says: str
    example: str
    room: str
    arguments: Callable[[argparse.ArgumentParser], None]
    instance: bool = True


def _none(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help='machine-readable, with "schema": 1')


def _names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a module, or one replica NAME@n")
    _json(parser)


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    _json(parser)


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background; return when all is ready")
    parser.add_argument("--wait", type=seconds, default=60.0, metavar="S", help="with -d: at most this long (60)")


def _check(parser: argparse.ArgumentParser) -> None:
    _json(parser)
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of kite.toml, for editors")


def _down(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, default=None, metavar="S", help="kill what is left after this long")
    _json(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    _json(parser)
    parser.add_argument("--watch", "-w", action="store_true", help="stay and show every change")


def _reload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", "-n", action="store_true", help="show the plan, do nothing")
    _json(parser)


def _wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--state", default="ready", metavar="STATE", help="ready (default) or a state of `status`")
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help="at most this long (60)")
    _json(parser)


def _logs(parser: argparse.ArgumentParser) -> None:
    from kite_launcher.cli import logs

    logs.add_arguments(parser)


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the module's name")
    parser.add_argument("--dir", default=".", metavar="DIR", help="where its folder is made (here)")


def _service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["install", "uninstall", "show"], metavar="install|uninstall|show")
    parser.add_argument("--system", action="store_true", help="a system unit instead of the user's own (needs root)")


def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", metavar="FILE", help="Procfile, process-compose, supervisord or pm2 file")
    parser.add_argument("--output", "-o", default="kite.toml", metavar="FILE", help="what is written (kite.toml)")
    parser.add_argument("--stdout", action="store_true", help="print it instead of writing a file")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish", "names"], metavar="bash|zsh|fish")


COMMANDS: Final[dict[str, Command]] = {
    "up": Command("start the instance and stay in front", "kite-launch up -d", "up", _up),
    "down": Command("stop the instance; nothing of it is left", "kite-launch down --timeout 20", "orders", _down),
    "status": Command("what runs and how it is", "kite-launch status --json", "status", _status),
    "start": Command("start modules", "kite-launch start backup", "orders", _names),
    "stop": Command("stop modules, and keep them stopped", "kite-launch stop backup", "orders", _names),
    "restart": Command("stop and start modules", "kite-launch restart backup", "orders", _names),
    "reload": Command("read kite.toml again, touch only what changed", "kite-launch reload -n", "orders", _reload),
    "logs": Command("what modules printed", "kite-launch logs backup -f", "logs", _logs),
    "check": Command("check kite.toml, start nothing", "kite-launch check", "check", _check),
    "wait": Command("wait until modules are ready", "kite-launch wait backup --timeout 10", "orders", _wait),
    "why": Command("how a module came to be as it is", "kite-launch why backup", "why", _name),
    "token": Command("print a fresh token for a module", "kite-launch token backup", "orders", _name),
    "new": Command("write a module and its test from a template", "kite-launch new hello", "new", _new, False),
    "doctor": Command("find the usual faults and the way out", "kite-launch doctor", "doctor", _json),
    "service": Command("run the instance by systemd or launchd", "kite-launch service install", "service", _service),
    "init": Command("write a kite.toml, from another tool's file", "kite-launch init Procfile", "adopt", _init, False),
    "completion": Command(
        "print completion for a shell", "kite-launch completion bash", "completion", _completion, False
    ),
    "upgrade": Command("a new launcher takes over what runs", "kite-launch upgrade", "orders", _json),
    "version": Command("print the version", "kite-launch version", "version", _json, False),
}
# Options that take a value and may stand before the command.
_VALUED: Final = frozenset({"--state-dir", "--config", "--wait"})
_PLAIN: Final = frozenset({"-d", "--detach", "--json", "-h", "--help", "--version"})


class Line(NamedTuple):
    """One understood command line."""

    command: str
    args: argparse.Namespace
    asked: Asked
    as_json: bool


class _Parser(argparse.ArgumentParser):
    """argparse that refuses by exit 64 and one line, and prints help to stdout as ever."""

    def error(self, message: str) -> NoReturn:
        raise Failure(USAGE, message, f"see `{self.prog} --help`")


def seconds(text: str) -> float:
    """Read a number of seconds from the command line."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("expected a number of seconds") from None
    if not 0 <= value <= 1e9:
        raise argparse.ArgumentTypeError("expected a number of seconds, 0 or more")
    return value


def parse(argv: Sequence[str]) -> Line:
    """Understand a command line (without the program's name), or raise Failure 64. May print help and exit 0."""
    name, rest = _split(argv)
    if name is None and any(word in ("-h", "--help") for word in rest):
        print(overview(), flush=True)
        raise SystemExit(0)
    if name is None and "--version" in rest:
        name, rest = "version", [word for word in rest if word != "--version"]
    name = name or "up"
    name = "status" if name == "ps" else name
    if name == "help":
        print(overview(), flush=True)
        raise SystemExit(0)
    if name not in COMMANDS:
        raise Failure(USAGE, f"no command {name!r}" + _meant(name, COMMANDS), "see `kite-launch --help`")
    command = COMMANDS[name]
    parser = _Parser(
        prog=f"kite-launch {name}",
        description=command.says,
        epilog=f"example: {command.example}",
        allow_abbrev=False,
    )
    command.arguments(parser)
    if command.instance:
        parser.add_argument("--config", metavar="FILE", help="the instance's kite.toml")
        parser.add_argument("--state-dir", metavar="DIR", help="the instance's state directory")
    args, unknown = parser.parse_known_args(rest)
    if unknown:
        _refuse_unknown(parser, name, unknown)
    asked = Asked(getattr(args, "state_dir", None), getattr(args, "config", None))
    return Line(name, args, asked, bool(getattr(args, "json", False)))


def wants_json(argv: Sequence[str]) -> bool:
    """True when a line that could not be understood asked for JSON."""
    return "--json" in argv


def _split(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the command's name (None: none given) and everything else in order."""
    index = 0
    while index < len(argv):
        word = argv[index]
        if word in _VALUED:
            index += 2
            continue
        if word.startswith("-") and word.partition("=")[0] not in (*_VALUED, *_PLAIN):
            break  # what follows an unknown option may be its value
        if not word.startswith("-"):
            return word, [*argv[:index], *argv[index + 1 :]]
        index += 1
    return None, list(argv)


def _refuse_unknown(parser: argparse.ArgumentParser, name: str, unknown: Sequence[str]) -> NoReturn:
    """Say which option is not known; never its value, never what followed it."""
    options = [word.partition("=")[0] for word in unknown if word.startswith("-") and word != "--"]
    if not options:
        raise Failure(USAGE, f"{name}: one argument too many", f"see `kite-launch {name} --help`")
    known = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    meant = _meant(options[0], known)
    raise Failure(USAGE, f"{name}: no option {options[0]!r}{meant}", f"see `kite-launch {name} --help`")


def _meant(wrong: str, valid: Sequence[str] | dict[str, Command]) -> str:
    from kite_launcher.core.names import nearest

    near = nearest(wrong, valid)
    return f", did you mean {near!r}?" if near is not None else ""


def overview() -> str:
    """Return the help of the whole program: each command with what it does."""
    rows = [f"  {name:<11} {command.says}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: kite-launch [COMMAND] [--config FILE] [--state-dir DIR] …",
            "",
            "Starts, keeps and stops the processes of one instance. Without a command: up.",
            "",
            *rows,
            "",
            "The instance is found by --state-dir, --config, KITE_STATE_DIR, KITE_CONFIG,",
            "or by kite.toml in this folder or one above it.",
            "`kite-launch COMMAND --help` tells more; example: kite-launch up -d",
        ]
    )
