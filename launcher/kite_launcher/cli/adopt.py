"""`init`: a kite.toml for what another tool's file describes, checked before it is written; or a first one to fill in.

Source: spec 05 §3. Nothing is guessed: what has no counterpart stands as a note in the file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import CONFIG, NO, OK, UNAVAILABLE, Failure, complain, say
from kite_launcher.cli.instance import Instance
from kite_launcher.core.adopt_compose import read_compose
from kite_launcher.core.adopt_pm2 import read_pm2
from kite_launcher.core.adopt_procfile import read_procfile
from kite_launcher.core.adopt_supervisord import read_supervisord
from kite_launcher.core.adopted import Adopted, NotAdopted, render
from kite_launcher.core.check_rows import FileFault
from kite_launcher.core.load import decode, load_text
from kite_launcher.core.spec import Mistake
from kite_launcher.edge.config_file import facts, read_plain

# Looked for in this order where no file is named.
_USUAL: Final = (
    "Procfile",
    "process-compose.yaml",
    "process-compose.yml",
    "supervisord.conf",
    "ecosystem.config.js",
    "ecosystem.config.cjs",
    "ecosystem.json",
    "ecosystem.config.json",
)
# Node needs about 50 ms for an ecosystem file; one that never ends is not waited for.
_NODE_S: Final = 10.0
FIRST: Final = """# The instance: what runs here, and how. `kite check` checks it, `kite up` starts it.
[kernel]
port = 7390                      # 0 = any free one

# [module.hello]                 # `kite new hello` writes such a module
# command = ["python3", "hello.py"]

# [module.web]                   # any other program: say when it is ready
# command = ["python3", "-m", "http.server", "8000"]
# ready = { tcp = 8000 }
"""


def run(line: Line, instance: Instance) -> int:
    """Write kite.toml (or print it with `--stdout`); an existing file is never overwritten."""
    source = line.args.source or next((name for name in _USUAL if os.path.isfile(name)), None)
    notes: list[str] = []
    if source is None:
        text = FIRST
    else:
        adopted = _read(source)
        _move(adopted, os.path.relpath(os.path.dirname(source) or ".", os.path.dirname(line.args.output) or "."))
        text, notes = render(adopted, os.path.basename(source)), adopted.notes
    target = Path(line.args.output)
    _prove(text, target)
    if line.args.stdout:
        say(text.rstrip("\n"))
    else:
        _write(target, text)
        say(f"{target}: written" + (f" from {source}" if source else "") + "; check it with `kite check`")
    for note in notes:
        complain(f"not carried over: {note}")
    return OK


def _move(adopted: Adopted, folder: str) -> None:
    """Let paths that counted from the other file's folder count from kite.toml's."""
    if folder == ".":
        return
    for program in adopted.programs:
        program.keys["cwd"] = os.path.normpath(os.path.join(folder, program.keys.get("cwd", ".")))
        if "env_file" in program.keys:
            program.keys["env_file"] = os.path.normpath(os.path.join(folder, program.keys["env_file"]))


def _write(target: Path, text: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise Failure(NO, f"{target} is there already", "name another with --output, or look with --stdout") from error
    except OSError as error:
        raise Failure(NO, f"can't write {target}: {(error.strerror or str(error)).lower()}") from error


def _prove(text: str, target: Path) -> None:
    """Never write a file that `check` would refuse for its form; what names other files may still be missing."""
    known = facts(check=False)
    path = str(Path(os.path.realpath(target)))
    loaded = load_text(text, path=path, facts=known)
    faults = [mistake for mistake in loaded.mistakes if "is not set" not in mistake.text]
    missing = ("can't read", "expected an account")
    worst = [mistake for mistake in faults if not mistake.text.startswith(missing)]
    if worst:
        lines = tuple(mistake.line(target.name) for mistake in worst)
        raise Failure(CONFIG, "what the file says can't be said in a kite.toml", lines=lines)
    for mistake in loaded.mistakes:
        complain(mistake.line(target.name))


def _read(source: str) -> Adopted:
    found = _adopt(source)
    if isinstance(found, NotAdopted):
        raise Failure(CONFIG, f"{source}: {found.why}")
    return found


def _adopt(source: str) -> Adopted | NotAdopted:
    """Choose the reader by the file's name, else by what it looks like."""
    name = os.path.basename(source).lower()
    folder = os.path.dirname(os.path.abspath(source))
    if name.endswith((".js", ".cjs", ".mjs")):
        return read_pm2(_ecosystem(source), cpus=os.cpu_count() or 1)
    text = _text(source)
    if name.startswith("procfile") or name.endswith(".procfile"):
        return read_procfile(text, has_env_file=os.path.isfile(os.path.join(folder, ".env")))
    if name.endswith((".conf", ".ini")):
        return read_supervisord(text, here=folder)
    if name.endswith((".yaml", ".yml", ".json")):
        return _yaml(text)
    raise Failure(
        CONFIG, f"{source}: can't tell what tool it is of", "expected a Procfile, .yaml, .conf, .ini, .json or .js file"
    )


def _yaml(text: str) -> Adopted | NotAdopted:
    """Tell process-compose (`processes`) and pm2 (`apps`) apart; JSON is YAML too."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return NotAdopted(f"not YAML: {' '.join(str(error).split())[:200]}")
    if isinstance(document, dict) and "processes" in document:
        return read_compose(text)
    return read_pm2(document, cpus=os.cpu_count() or 1)


def _text(source: str) -> str:
    content = read_plain(source)
    if isinstance(content, FileFault):
        raise Failure(77 if content.permission else CONFIG, f"can't read {source}: {content.why}")
    text = decode(content)
    if isinstance(text, Mistake):
        raise Failure(CONFIG, text.line(source))
    return text


def _ecosystem(source: str) -> Any:
    """Let Node say what an ecosystem file exports: it is a program, nothing else can read it rightly."""
    _text(source)
    node = shutil.which("node")
    if node is None:
        raise Failure(
            UNAVAILABLE, f"{source} is JavaScript and no `node` is in PATH", "install Node, or give pm2's JSON"
        )
    script = "const m = require(process.argv[1]); process.stdout.write(JSON.stringify(m.default ?? m))"
    try:
        done = subprocess.run(
            [node, "-e", script, os.path.abspath(source)],
            capture_output=True,
            timeout=_NODE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(UNAVAILABLE, f"node could not read {source}: {type(error).__name__}") from error
    if done.returncode != 0:
        words = [text for text in done.stderr.decode("utf-8", "replace").splitlines() if "Error" in text]
        raise Failure(CONFIG, f"{source}: {words[0].strip() if words else f'node ended with {done.returncode}'}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Failure(CONFIG, f"{source}: exports no plain object") from error
