"""`check` from outside: files that are none (S-38), programs that are missing (S-45), lines on stderr (S-39, S-40)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kite_launcher.edge.config_file import Unreadable, load_file

from .conftest import Launch


def write(lab: Path, text: str) -> None:
    (lab / "kite.toml").write_text(text, encoding="utf-8")


def test_a_good_file_is_good(launch: Launch) -> None:
    said = launch("check")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("kite.toml: good")


def test_every_mistake_is_a_line_on_stderr_and_nothing_else_is(launch: Launch, lab: Path) -> None:
    write(lab, "[kernle]\n[kernel]\nport = '80a'\n")
    for argv in (["check"], ["up"], ["up", "-d"], ["check", "--config", str(lab / "kite.toml")]):
        said = launch(*argv)
        assert said.code == 78
        assert said.out == ""
        assert [re.match(r"kite\.toml:(\d+):(\d+): .", line) is not None for line in said.err.splitlines()] == [
            True
        ] * 2
    assert not (lab.parent / "state").exists()


def test_a_missing_file_and_a_directory_are_78_with_path_and_reason(launch: Launch, lab: Path) -> None:
    for path, reason in ((lab / "no.toml", "no such file"), (lab, "directory")):
        for command in ("check", "up"):
            said = launch(command, "--config", str(path))
            assert said.code == 78
            assert said.out == ""
            assert str(path) in said.err
            assert reason in said.err


def test_a_fifo_never_blocks(lab: Path) -> None:
    os.mkfifo(lab / "fifo")
    for command in ("check", "up", "status"):
        argv = [sys.executable, "-P", "-m", "kite_launcher", command, "--config", "fifo"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=lab)
        assert done.returncode == (3 if command == "status" else 78)
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_77(launch: Launch, lab: Path) -> None:
    (lab / "kite.toml").chmod(0)
    assert launch("check").code == 77


def test_bytes_that_are_no_text_are_a_mistake_with_its_place(launch: Launch, lab: Path) -> None:
    (lab / "kite.toml").write_bytes(b"[kernel]\nport = 0 # \xff\n")
    said = launch("check")
    assert said.code == 78
    assert said.err.startswith("kite.toml:2:12: ")


def test_programs_that_cannot_be_started_are_told_by_check_alone(launch: Launch, lab: Path) -> None:
    (lab / "plain").write_text("", encoding="utf-8")
    write(
        lab,
        """[module.a]
command = ["no-such-program"]
[module.b]
command = ["./plain"]
[module.c]
command = ["./gone"]
[module.d]
module = "no.such.package"
[module.e]
command = ["sh"]
cwd = "nowhere"
[module.f]
module = "json.tool"
[module.g]
command = ["sh"]
""",
    )
    said = launch("check")
    assert said.code == 78
    lines = said.err.splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "4", "6", "8", "10"]
    assert [re.search(r"module (\w):", line).group(1) for line in lines] == list("abcde")  # type: ignore[union-attr]
    loaded = load_file(str(lab / "kite.toml"))
    assert not isinstance(loaded, Unreadable)
    assert loaded.spec is not None


def test_a_package_is_looked_up_without_importing_anything(launch: Launch, lab: Path) -> None:
    (lab / "json.py").write_text("open('trace', 'w')", encoding="utf-8")
    (lab / "mine.py").write_text("open('trace', 'w')", encoding="utf-8")
    write(lab, "[module.a]\nmodule = 'mine'\n")
    argv = [sys.executable, "-P", "-m", "kite_launcher", "check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=lab)
    assert done.returncode == 78
    assert "no package 'mine'" in done.stderr
    assert not (lab / "trace").exists()


def test_a_files_name_is_printed_whatever_it_holds(launch: Launch, lab: Path) -> None:
    name = "a\n\x1b[31m.toml"
    (lab / name).write_text("[kernle]\n", encoding="utf-8")
    said = launch("check", "--config", name)
    assert said.code == 78
    assert "\x1b" not in said.err
    assert len(said.err.splitlines()) == 1
