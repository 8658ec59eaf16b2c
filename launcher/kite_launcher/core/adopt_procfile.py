"""A Procfile (foreman, honcho, Heroku) as programs: `name: command` a line."""

from __future__ import annotations

import re
from typing import Final

from kite_launcher.core.adopted import Adopted, NotAdopted, Program, command_of

_LINE: Final = re.compile(r"([A-Za-z0-9_-]+)[ \t]*:[ \t]*(.+)")
# foreman gives each kind of process a hundred ports of its own, from here on.
_FIRST_PORT: Final = 5000
_PORT_STEP: Final = 100


def read_procfile(text: str, *, has_env_file: bool) -> Adopted | NotAdopted:
    """Read a Procfile; `has_env_file` says whether a `.env` lies beside it, which these tools read by themselves."""
    adopted = Adopted()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            return NotAdopted(f"line {number}: expected `name: command`")
        name, command = match.groups()
        if any(program.name == name for program in adopted.programs):
            return NotAdopted(f"line {number}: {name!r} stands there twice")
        program = Program(name, command_of(command))
        if name == "release":
            program.keys.update(restart="never", ready={"exit": 0})
            adopted.notes.append("release ran before each deployment; here it runs at each start")
        if re.search(r"\$\{?PORT\b", command):
            program.keys["env"] = {"PORT": str(_FIRST_PORT + _PORT_STEP * len(adopted.programs))}
        if has_env_file:
            program.keys["env_file"] = ".env"
        adopted.programs.append(program)
    if not adopted.programs:
        return NotAdopted("no line `name: command` in it")
    return adopted
