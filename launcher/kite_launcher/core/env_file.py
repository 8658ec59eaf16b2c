"""The text of an env_file as variables: `KEY=value` a line, as docker and systemd read them.

Blank lines and lines that begin with `#` count for nothing; `export ` before a key is allowed; a value in single
quotes stands as it is, one in double quotes may hold \\n \\t \\" \\\\ ; an unquoted one ends before ` #`. Nothing is
expanded: what a program should see stands there.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

_LINE: Final = re.compile(r"(?:export[ \t]+)?([^=\s]+)[ \t]*=[ \t]*(.*)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}


@attrs.frozen
class EnvFault:
    """One line of an env_file that is none: its number from 1 and what was expected."""

    line: int
    why: str


def parse_env(text: str) -> tuple[dict[str, str], list[EnvFault]]:
    """Return the variables (the last of equal names counts) and every line that could not be read."""
    values: dict[str, str] = {}
    faults: list[EnvFault] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            faults.append(EnvFault(number, "expected KEY=value"))
            continue
        value = _value(match.group(2))
        if value is None:
            faults.append(EnvFault(number, "expected a closing quote"))
        elif "\0" in line:
            faults.append(EnvFault(number, "expected a line without NUL characters"))
        else:
            values[match.group(1)] = value
    return values, faults


def _value(text: str) -> str | None:
    if text.startswith("'"):
        match = re.fullmatch(r"'([^']*)'(?:[ \t]+#.*|[ \t]*)", text)
        return match.group(1) if match else None
    if text.startswith('"'):
        match = re.fullmatch(r'"((?:[^"\\]|\\.)*)"(?:[ \t]+#.*|[ \t]*)', text)
        if match is None:
            return None
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group()), match.group(1))
    return re.sub(r"(?:^|[ \t]+)#.*", "", text).rstrip()
