"""`new NAME`: a module with its test from a template, and its section in kite.toml where there is one.

Nothing that is there is overwritten. Source: spec 05 §3, spec 50 §4.
"""

from __future__ import annotations

import keyword
import os
import re
import unicodedata
from importlib import resources
from pathlib import Path
from typing import Final

from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import NO, OK, USAGE, Failure, say
from kite_launcher.cli.instance import Instance, find_upward
from kite_launcher.core.check_rows import FileFault
from kite_launcher.core.load import load_text
from kite_launcher.core.names import module_name_fault
from kite_launcher.edge.config_file import facts, read_plain

_FILES: Final = {"module.py.txt": "{ident}.py", "test_module.py.txt": "test_{ident}.py"}


def run(line: Line, instance: Instance) -> int:
    """Write NAME/NAME.py and its test, add [module.NAME], and say what to try next."""
    name = unicodedata.normalize("NFC", line.args.name)
    fault = module_name_fault(name)
    if fault is not None:
        raise Failure(USAGE, f"new: {fault}")
    ident = identifier(name)
    folder = Path(line.args.dir) / name
    files = {folder / path.format(ident=ident): _text(source, name, ident) for source, path in _FILES.items()}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise Failure(NO, f"{there[0]} is there already", "choose another name, or another --dir")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            say(f"{path}: written")
    except OSError as error:
        raise Failure(
            NO, f"can't write {error.filename or folder}: {(error.strerror or str(error)).lower()}"
        ) from error
    module = os.path.abspath(folder / f"{ident}.py")
    say(_register(name, module))
    say(f"try: python -m pytest {folder}   ·   kite check   ·   kite reload   ·   kite call {name}.greet")
    return OK


def identifier(name: str) -> str:
    """Return a name that Python can import: what is no letter or digit becomes `_`."""
    ident = re.sub(r"\W", "_", name)
    if not ident.isidentifier() or keyword.iskeyword(ident):
        ident = f"module_{ident}"
    return ident


def _text(source: str, name: str, ident: str) -> str:
    text = resources.files("kite_launcher").joinpath("template", source).read_text(encoding="utf-8")
    return text.replace("@NAME@", name).replace("@IDENT@", ident)


def section(name: str, module: str) -> str:
    """Return the section that runs the module; `module` is its file's path, from kite.toml."""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    path = module.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'[module.{key}]\nmodule = "{path}"\n'


def _register(name: str, module: str) -> str:
    """Add the section to the kite.toml at hand if the file is good and stays good; else say what to add."""
    config = find_upward(os.getcwd())
    if config is None:
        return f"no kite.toml here; in one, this runs it:\n\n{section(name, module)}"
    text = section(name, os.path.relpath(module, os.path.dirname(config)))
    by_hand = f"add to {config}:\n\n{text}"
    content = read_plain(config)
    if isinstance(content, FileFault):
        return by_hand
    try:
        old = content.decode("utf-8")
    except UnicodeDecodeError:
        return by_hand
    ending = "\r\n" if "\r\n" in old else "\n"
    gap = "" if not old or old.endswith(f"{ending}{ending}") else ending if old.endswith("\n") else ending * 2
    new = old + gap + text.replace("\n", ending)
    known = facts(check=False)
    if any(load_text(each, path=config, facts=known).spec is None for each in (old, new)):
        return by_hand
    try:
        with open(config, "ab") as file:
            file.write(new[len(old) :].encode())
    except OSError:
        return by_hand
    return f"{config}: [module.{name}] added"
