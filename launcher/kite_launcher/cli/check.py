"""`check`: every mistake of kite.toml at once, nothing started, nothing written.

Source: spec 05 §3, §6; cases S-38 … S-45.
"""

from __future__ import annotations

import json
import os
from typing import NoReturn

from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import CONFIG, OK, PERMISSION, Failure, say
from kite_launcher.cli.instance import FILE, Instance
from kite_launcher.core.spec import InstanceSpec, Mistake
from kite_launcher.edge.config_file import Unreadable, load_file


def run(line: Line, instance: Instance) -> int:
    """Check the file and say that it is good, or raise the Failure that lists what is not."""
    if line.args.schema:
        from kite_launcher.core.schema import json_schema

        say(json.dumps(json_schema(), indent=1, ensure_ascii=False))
        return OK
    spec = load(instance, check=True)
    count = len(spec.modules)
    if line.as_json:
        say(json.dumps({"schema": 1, "instance": spec.name, "config": spec.path, "modules": list(spec.modules)}))
    else:
        say(f"{shown_name(spec.path)}: good, {count} module{'' if count == 1 else 's'}")
    return OK


def load(instance: Instance, *, check: bool = False) -> InstanceSpec:
    """Return the instance's spec, or raise Failure 78 (77 when only modes or owners are in the way)."""
    if instance.config is None:
        raise Failure(CONFIG, f"no {FILE} is known for {instance.state_dir}", "name one with --config")
    found = load_file(instance.config, check=check)
    if isinstance(found, Unreadable):
        raise Failure(found.exit_code, found.why, "name another with --config")
    if found.spec is None:
        refuse(instance.config, found.mistakes)
    return found.spec


def refuse(config: str, mistakes: tuple[Mistake, ...]) -> NoReturn:
    """Raise the Failure that tells every mistake, a line each."""
    code = PERMISSION if all(mistake.fault == "permission" for mistake in mistakes) else CONFIG
    name = shown_name(config)
    count = f"{len(mistakes)} mistake{'' if len(mistakes) == 1 else 's'} in {config}"
    raise Failure(code, count, "", lines=tuple(mistake.line(name) for mistake in mistakes))


def shown_name(config: str) -> str:
    """Return the file's own name as it stands before LINE:COLUMN, printable whatever it holds."""
    name = os.path.basename(config)
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in name)
