"""`new`: a module whose test is green at once, registered where that is safe."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kite_launcher.cli.new import identifier

from .conftest import Launch


@pytest.mark.parametrize("name", ["hello", "my-mod", "备份"])
def test_the_new_module_is_good_and_its_test_is_green(launch: Launch, lab: Path, name: str) -> None:
    assert launch("new", name).code == 0
    assert launch("check").code == 0
    module = tomllib.loads((lab / "kite.toml").read_text(encoding="utf-8"))["module"][name]
    assert (lab / module["module"]).is_file()
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=lab)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_nothing_that_is_there_is_overwritten(launch: Launch, lab: Path) -> None:
    assert launch("new", "hello").code == 0
    before = {path: path.read_bytes() for path in lab.rglob("*") if path.is_file()}
    assert launch("new", "hello").code == 1
    assert launch("new", "x").code == 0  # its folder is new, its section is there already
    assert (lab / "kite.toml").read_bytes() == before[lab / "kite.toml"]


def test_a_bad_name_is_64_and_writes_nothing(launch: Launch, lab: Path) -> None:
    for name in ("kernel", "../x", "a b", ""):
        assert launch("new", name).code == 64
    assert [path.name for path in lab.iterdir()] == ["kite.toml"]


def test_a_file_that_is_not_good_is_left_alone(launch: Launch, lab: Path) -> None:
    for content in (b"[kernle]\n", b"\xff"):
        (lab / "kite.toml").write_bytes(content)
        said = launch("new", "m" + content[:1].hex())
        assert said.code == 0
        assert "[module.m" in said.out
        assert (lab / "kite.toml").read_bytes() == content


def test_windows_lines_stay_windows_lines(launch: Launch, lab: Path) -> None:
    (lab / "kite.toml").write_bytes(b"[kernel]\r\nport = 0")
    assert launch("new", "hello").code == 0
    content = (lab / "kite.toml").read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n") == 5


def test_without_a_kite_toml_it_says_what_to_write(launch: Launch, lab: Path, tmp_path: Path) -> None:
    (lab / "kite.toml").unlink()
    said = launch("new", "hello", "--dir", str(tmp_path / "deep"))
    assert said.code == 0
    assert "[module.hello]" in said.out
    assert (tmp_path / "deep" / "hello" / "hello.py").is_file()


def test_python_can_import_every_name() -> None:
    assert [identifier(name) for name in ("a-b", "1x", "class", "备份", "-")] == [
        "a_b",
        "module_1x",
        "module_class",
        "备份",
        "_",
    ]
