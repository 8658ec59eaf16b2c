"""The shape of the house: fixed top level, current tables, packages that never meet."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {
    "pyproject.toml", "kernel", "modules", "launcher", "watchdog", "tests", "scripts",
    "README.md", "README.zh.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "requirements.lock",
    ".ci", ".gitignore",
}  # fmt: skip


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.splitlines()


def test_the_top_level_holds_the_fixed_names_and_nothing_else() -> None:
    assert {path.split("/", 1)[0] for path in tracked()} <= TOP_LEVEL


def test_generated_tables_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gen_contract.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_changed_contract_row_makes_the_check_fail(tmp_path: Path) -> None:
    for name in ("kernel/contract", "scripts"):
        subprocess.run(["cp", "-r", "--parents", name, str(tmp_path)], cwd=ROOT, check=True, timeout=30)
    for path in [*ROOT.glob("*/*/_contract.py"), ROOT / "modules/kite_modules/relay/static/kite-client.js"]:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    errors = tmp_path / "kernel/contract/errors.toml"
    errors.write_text(errors.read_text("utf-8").replace('kind = "pressure"', 'kind = "squeeze"'), "utf-8")
    done = subprocess.run(
        [sys.executable, "scripts/gen_contract.py", "--check"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "kite-client.js" in done.stderr
    assert "kernel/kite_kernel/_contract.py" in done.stderr


@pytest.mark.parametrize("house", ["kernel", "launcher", "watchdog", "modules"])
def test_no_house_imports_another(house: str) -> None:
    others = {"kite_kernel", "kite_launcher", "kite_watchdog", "kite_modules"} - {f"kite_{house}"}
    found = [
        f"{path}:{number}"
        for path in (ROOT / house / f"kite_{house}").rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (match := re.match(r"\s*(?:from|import)\s+(kite_\w+)", line)) and match[1] in others
    ]
    assert found == []


def test_the_lock_pins_every_package_by_hash_and_names_no_registry() -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", lock)
    packages = re.findall(r"^[A-Za-z0-9_.-]+==.*$", lock, re.MULTILINE)
    assert len(packages) > 20
    assert all(line.rstrip().endswith("\\") for line in packages)  # a hash follows


def test_no_file_holds_an_absolute_path_of_a_machine_or_a_uv_lock() -> None:
    files = tracked()
    assert "uv.lock" not in files
    suspicious = re.compile(rb"/(?:work|root|home/\w+)/(?:main|shared|\.library|\.pyenv)")
    assert [name for name in files if (ROOT / name).is_file() and suspicious.search((ROOT / name).read_bytes())] == []
