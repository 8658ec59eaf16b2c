"""Programs that another tool's file describes, as values, and the kite.toml that runs them the same way.

Readers (`adopt_*.py`) make `Adopted`; `render` writes it. What has no counterpart becomes a note, never a guess.
Source: spec 05 §3 (`init`).
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from kite_launcher.core.names import NAME_MAX_BYTES, RESERVED, STOCK, same_name

# What only a shell understands; a line without it is split into words and run directly.
_SHELL: Final = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]|^\s*\w+=")
# A program that says nothing of itself counts as ready when it has stayed up this long.
DEFAULT_READY: Final[Mapping[str, Any]] = {"delay": "1s"}


@attrs.define
class Program:
    """One program: its name in the other file, its argv, and the keys of its [module.NAME]."""

    name: str
    command: list[str]
    keys: dict[str, Any] = attrs.Factory(dict)


@attrs.define
class Adopted:
    """All programs of a file, the groups it names, and what could not be carried over."""

    programs: list[Program] = attrs.Factory(list)
    groups: list[str] = attrs.Factory(list)
    notes: list[str] = attrs.Factory(list)


@attrs.frozen
class NotAdopted:
    """The file can't be understood, and why."""

    why: str


def command_of(line: str, shell: str = "sh") -> list[str]:
    """Return the argv of a command line: its words, or a shell when only a shell understands it."""
    if _SHELL.search(line) is None:
        try:
            words = shlex.split(line)
        except ValueError:
            words = []
        if words:
            return words
    return [shell, "-c", line]


def literal(text: str) -> str:
    """Return `text` so that kite.toml gives it back unchanged: a dollar sign is written twice."""
    return text.replace("$", "$$")


def render(adopted: Adopted, source: str) -> str:
    """Return a kite.toml that runs the programs; `source` is the other file's name, for the first comment."""
    import tomlkit

    names = _valid_names([program.name for program in adopted.programs])
    document = tomlkit.document()
    document.add(tomlkit.comment(f"Made by `kite init` from {_line(source)}."))
    for note in adopted.notes:
        document.add(tomlkit.comment(f"Not carried over: {_line(note)}"))
    modules = tomlkit.table(is_super_table=True)
    for program in adopted.programs:
        table = tomlkit.table()
        table.add("command", program.command)
        for key, value in program.keys.items():
            value = [names.get(name, name) for name in value] if key in ("after", "requires") else value
            table.add(key, _inline(value))
        if "ready" not in program.keys:
            table.add("ready", _inline(DEFAULT_READY))
        modules.add(names[program.name], table)
    document.add("module", modules)
    if adopted.groups:
        groups = tomlkit.table(is_super_table=True)
        for group in adopted.groups:
            groups.add(group, tomlkit.table())
        document.add("group", groups)
    return str(tomlkit.dumps(document))


def _inline(value: Any) -> Any:
    import tomlkit

    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table()
    for key, item in value.items():
        table.add(key, item)
    return table


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _valid_names(names: Iterable[str]) -> dict[str, str]:
    """Return a valid module name for each name, different from all the others."""
    out: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        text = unicodedata.normalize("NFC", re.sub(r"[^\w-]+", "-", name)).strip("-") or "module"
        text = "".join(
            char for char in text if unicodedata.category(char)[0] in "LM" or char.isdecimal() or char in "_-"
        )
        text = text.encode()[: NAME_MAX_BYTES - 8].decode("utf-8", "ignore") or "module"
        if text.casefold() in (*RESERVED, *STOCK):
            text += "-app"
        chosen, number = text, 1
        while same_name(chosen) in taken:
            number += 1
            chosen = f"{text}-{number}"
        taken.add(same_name(chosen))
        out[name] = chosen
    return out
