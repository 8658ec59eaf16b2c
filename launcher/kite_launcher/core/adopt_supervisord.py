"""A supervisord.conf as programs. Source: supervisor's documentation of [program:x], [group:x], [supervisord]."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from kite_launcher.core.adopted import Adopted, NotAdopted, Program, literal

_RESTART: Final = {"true": "always", "false": "never", "unexpected": "on-failure"}
_SIGNALS: Final = ("TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2")
# Kite keeps all output by itself, always stops the whole group, and needs none of supervisor's own sockets.
_SILENT: Final = frozenset(
    {
        "command",
        "process_name",
        "numprocs",
        "numprocs_start",
        "priority",
        "autostart",
        "autorestart",
        "startsecs",
        "startretries",
        "exitcodes",
        "stopsignal",
        "stopwaitsecs",
        "stopasgroup",
        "killasgroup",
        "user",
        "directory",
        "umask",
        "environment",
        "redirect_stderr",
        "serverurl",
    }
)
_OWN: Final = ("supervisord", "supervisorctl", "unix_http_server", "inet_http_server")


def read_supervisord(text: str, *, here: str) -> Adopted | NotAdopted:
    """Read a supervisord.conf; `here` is the folder it lies in (`%(here)s`)."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",), comment_prefixes=(";", "#"), strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        return NotAdopted(f"not an ini file: {' '.join(str(error).split())[:200]}")
    adopted = Adopted()
    own = dict(parser.items("supervisord")) if parser.has_section("supervisord") else {}
    members = _groups(parser, adopted)
    priorities: dict[str, int] = {}
    for section in parser.sections():
        kind, _, name = section.partition(":")
        if kind != "program":
            if kind not in ("group", "rpcinterface", *_OWN):
                adopted.notes.append(f"[{section}]")
            continue
        program = _program(name.strip(), dict(parser.items(section)), own, here, adopted)
        if isinstance(program, NotAdopted):
            return program
        if program.name in members:
            program.keys["group"] = members[program.name]
        adopted.programs.append(program)
        if parser.get(section, "priority", fallback="").strip().isdigit():
            priorities[program.name] = parser.getint(section, "priority")
    if not adopted.programs:
        return NotAdopted("no [program:NAME] in it")
    _order(adopted, priorities)
    return adopted


def _groups(parser: configparser.RawConfigParser, adopted: Adopted) -> dict[str, str]:
    members: dict[str, str] = {}
    for section in parser.sections():
        kind, _, name = section.partition(":")
        if kind == "group":
            adopted.groups.append(name.strip())
            for program in parser.get(section, "programs", fallback="").split(","):
                members[program.strip()] = name.strip()
    return members


def _program(
    name: str, row: Mapping[str, str], own: Mapping[str, str], here: str, adopted: Adopted
) -> Program | NotAdopted:
    values = {"program_name": name, "group_name": name, "here": here, "process_num": "0", "host_node_name": ""}
    try:
        command = _command(row.get("command", ""), values)
        environment = {**_environment(own.get("environment", "")), **_environment(row.get("environment", ""))}
        umask = row.get("umask", own.get("umask", ""))
        places = {"cwd": row.get("directory", ""), "user": row.get("user", ""), "umask": umask}
        texts = {key: _expand(value.strip(), values) for key, value in places.items() if value.strip()}
        env = {key: _expand(value, values) for key, value in environment.items()}
    except (ValueError, KeyError, TypeError) as error:
        return NotAdopted(f"[program:{name}]: {error}")
    if not command:
        return NotAdopted(f"[program:{name}] has no command")
    program = Program(name, command)
    keys: dict[str, Any] = program.keys
    keys["restart"] = _RESTART.get(row.get("autorestart", "unexpected").strip().lower(), "on-failure")
    keys["ready"] = {"delay": f"{_number(row, 'startsecs', 1)}s"}
    keys["max_restarts"] = _number(row, "startretries", 3)
    if row.get("autostart", "true").strip().lower() in ("false", "no", "off", "0"):
        keys["enabled"] = False
    signal = row.get("stopsignal", "TERM").strip().upper().removeprefix("SIG")
    if signal in _SIGNALS and signal != "TERM":
        keys["stop_signal"] = signal
    keys["stop_timeout"] = f"{_number(row, 'stopwaitsecs', 10)}s"
    keys.update(texts)
    if env:
        keys["env"] = env
    if _number(row, "numprocs", 1) != 1:
        keys["replicas"] = _number(row, "numprocs", 1)
        adopted.notes.append(f"{name}: process_num in its text is 0 for every replica; KITE_MODULE_ID tells them apart")
    known = (*_SILENT, *own)
    adopted.notes.extend(
        f"{name}: {key}" for key in row if key not in known and not key.startswith(("stdout_", "stderr_"))
    )
    return program


def _number(row: Mapping[str, str], key: str, default: int) -> int:
    text = row.get(key, "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else default


_REFERENCE: Final = re.compile(r"%%|%\((\w+)\)(0?\d*[sd])")


def _expand(text: str, values: Mapping[str, str]) -> str:
    """Follow supervisor's `%(name)s` for a value of kite.toml; `%(ENV_X)s` becomes `${X}`, which Kite follows."""
    out, end = "", 0
    for match in _REFERENCE.finditer(text):
        variable = (match.group(1) or "").removeprefix("ENV_")
        known = match.group(1) is None or variable == match.group(1)
        out += literal(text[end : match.start()])
        out += literal(_value(match, values)) if known else f"${{{variable}}}"
        end = match.end()
    return out + literal(text[end:])


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    name, kind = match.group(1), match.group(2)
    if name is None:
        return "%"
    if name not in values:
        raise ValueError(f"%({name}){kind} can't be carried over")
    return str(("%" + kind) % (int(values[name]) if kind[-1] == "d" else values[name]))


def _command(text: str, values: Mapping[str, str]) -> list[str]:
    """Return the argv; words that hold `%(ENV_X)s` need a shell to put the variable in at the start."""
    words = shlex.split(text)
    if not any("%(ENV_" in word for word in words):
        return [_REFERENCE.sub(lambda match: _value(match, values), word) for word in words]
    quoted = []
    for word in words:
        parts, end = "", 0
        for match in _REFERENCE.finditer(word):
            parts += shlex.quote(word[end : match.start()]) if match.start() > end else ""
            name = match.group(1) or ""
            parts += f'"${{{name[4:]}}}"' if name.startswith("ENV_") else shlex.quote(_value(match, values))
            end = match.end()
        quoted.append(parts + (shlex.quote(word[end:]) if end < len(word) or not parts else ""))
    return ["sh", "-c", "exec " + " ".join(quoted)]


def _environment(text: str) -> dict[str, str]:
    """Read `KEY="value",KEY2=value2`."""
    lexer = shlex.shlex(text, posix=True)
    lexer.wordchars += "/.+-():%@~[]{}*?$|^&!`"
    lexer.whitespace = " \t\r\n,"
    words = list(lexer)
    if len(words) % 3:
        raise ValueError("environment is not a list of KEY=value")
    if any(words[index + 1] != "=" for index in range(0, len(words), 3)):
        raise ValueError("environment is not a list of KEY=value")
    return {words[index]: words[index + 2] for index in range(0, len(words), 3)}


def _order(adopted: Adopted, priorities: Mapping[str, int]) -> None:
    """Carry priorities over as order: a program starts after those of the next lower number."""
    levels = sorted(set(priorities.values()))
    for program in adopted.programs:
        level = priorities.get(program.name)
        below = [value for value in levels if level is not None and value < level]
        if below:
            program.keys["after"] = [name for name, value in priorities.items() if value == below[-1]]
