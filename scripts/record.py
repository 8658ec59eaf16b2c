#!/usr/bin/env python3
"""Makes modules/examples/demo.svg, the terminal recording of README.md, from a real run of the demo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pexpect
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "modules" / "examples" / "demo.svg"
WIDTH = 96
PROMPT = "\x1b[1;32m$\x1b[0m "
ENV = {
    **os.environ,
    "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
    "KITE_CONFIG": str(ROOT / "modules" / "examples" / "kite.toml"),
    "TERM": "xterm-256color",
    "COLUMNS": str(WIDTH),
}


def typed(command: str) -> str:
    """Run a command on a terminal of its own; return what a person would see, the typing included."""
    child = pexpect.spawn("/bin/sh", ["-c", command], env=ENV, encoding="utf-8", dimensions=(40, WIDTH), timeout=60)
    child.expect(pexpect.EOF)
    return f"{PROMPT}{command}\n{child.before.replace(chr(13), '').rstrip()}\n"


def pid_of(name: str) -> int:
    """Return a module's pid."""
    done = subprocess.run(
        ["kite", "status", "--json"], env=ENV, capture_output=True, text=True, check=False, timeout=30
    )
    return next(int(m["pid"]) for m in json.loads(done.stdout)["modules"] if m["name"] == name)


def main() -> None:
    shown = [typed("kite up -d")]
    try:
        time.sleep(3)
        shown.append(typed("""kite call greeter.greet '{"name": "Ada"}'"""))
        shown.append(typed("kite sub 'ticker.>' --count 2"))
        victim = pid_of("ticker")
        os.kill(victim, signal.SIGKILL)
        shown.append(f"{PROMPT}kill -9 {victim}          # the ticker\n")
        time.sleep(3)
        shown.append(typed("kite status"))
        shown.append(typed("kite why ticker | tail -5"))
    finally:
        shown.append(typed("kite down"))
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115 - closed with the process
    console.print(Text.from_ansi("\n".join(shown)), soft_wrap=False)
    picture = console.export_svg(title="kite", theme=DIMMED_MONOKAI)
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # nothing is fetched from anywhere
    picture = re.sub(r"\s*<!--.*?-->", "", picture, flags=re.DOTALL).replace("Fira Code", "monospace")
    TARGET.write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
