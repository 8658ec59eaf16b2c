"""`completion`: each shell's own parser accepts its script, and bash really completes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kite_launcher.cli.commands import COMMANDS

from .conftest import Launch


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_offered(launch: Launch, shell: str, tmp_path: Path) -> None:
    said = launch("completion", shell)
    assert (said.code, said.err) == (0, "")
    assert all(name in said.out for name in COMMANDS)
    for option in ("detach", "state-dir", "dry-run", "timeout"):
        assert option in said.out
    if shutil.which(shell) is not None:
        script = tmp_path / "script"
        script.write_text(said.out, encoding="utf-8")
        done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def complete(lab: Path, *words: str) -> set[str]:
    """Ask bash for what it would offer after `words`; the last one is being typed."""
    tools = lab / "bin"
    tools.mkdir(exist_ok=True)
    tool = tools / "kite-launch"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m kite_launcher "$@"\n', encoding="utf-8")
    tool.chmod(0o755)
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""source <(kite-launch completion bash)
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
_kite_launch; printf '%s\\n' "${{COMPREPLY[@]}}" """
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True, env=environ, cwd=lab
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_names(lab: Path) -> None:
    assert complete(lab, "kite-launch", "st") == {"start", "status", "stop"}
    assert complete(lab, "kite", "st") == {"start", "status", "stop", "stream"}
    assert complete(lab, "kite-launch", "reload", "--d") == {"--dry-run"}
    assert complete(lab, "kite-launch", "service", "") >= {"install", "uninstall"}
    assert "x" in complete(lab, "kite-launch", "stop", "")


def test_names_are_quietly_nothing_without_an_instance(launch: Launch, lab: Path) -> None:
    assert launch("completion", "names").out == "x\n"
    (lab / "kite.toml").write_text("[", encoding="utf-8")
    said = launch("completion", "names")
    assert (said.code, said.out, said.err) == (0, "", "")
