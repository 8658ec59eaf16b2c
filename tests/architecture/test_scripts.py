"""The commands of the first page do what they say."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["run", "test", "check", "bench", "bootstrap"])
def test_a_script_is_executable_and_parses(name: str) -> None:
    path = ROOT / "scripts" / name
    assert path.stat().st_mode & 0o111
    first = path.read_text("utf-8").splitlines()[0]
    if "bash" in first:
        subprocess.run(["bash", "-n", path], check=True, timeout=30)


def test_ci_calls_check_and_then_exactly_test() -> None:
    lines = [
        line.strip()
        for line in (ROOT / ".ci/run").read_text("utf-8").splitlines()
        if line.strip().startswith(("scripts/", "exec scripts/"))
    ]
    assert lines[-2:] == ["scripts/check", "exec scripts/test"]


def test_bootstrap_says_in_one_sentence_what_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("bash", "dirname", "cat", "env"):
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        (empty / tool).symlink_to(found)
    copy = tmp_path / "kite"
    (copy / "scripts").mkdir(parents=True)
    for name in ("scripts/bootstrap", "requirements.lock", "pyproject.toml"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["/bin/bash", copy / "scripts/bootstrap"], env={"PATH": str(empty)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 69
    assert len(done.stderr.splitlines()) == 1
    assert "Python 3.11" in done.stderr
    assert not (copy / ".venv").exists()
