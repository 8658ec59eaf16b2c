"""`kite relay`: users are made before the first start, told their secrets once, and changed. Source: spec 80 §1."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyotp
import pytest

COMMAND = [sys.executable, "-P", "-m", "kite_modules.cli.main", "relay"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "kite.toml").write_text("[relay]\n", "utf-8")
    return tmp_path / "state"


def run(state: Path, *words: str, given: str = "", code: int = 0) -> str:
    done = subprocess.run(
        [*COMMAND, *words, "--state-dir", str(state)],
        input=given,
        env={key: value for key, value in os.environ.items() if not key.startswith("KITE_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, (words, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def told(state: Path, *words: str, given: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(state, *words, "--json", given=given))
    assert found["schema"] == 1
    return found


def test_a_user_is_made_and_told_everything_once(state: Path) -> None:
    made = told(state, "user", "add", "ada", "--role", "operator", "--password-stdin", given="correct horse\n")
    assert (made["name"], made["role"], len(made["recovery_codes"])) == ("ada", "operator", 10)
    totp = pyotp.parse_uri(made["otpauth"])
    assert (totp.name, totp.issuer) == ("ada", "Kite")
    assert "password" not in made
    assert "█" in made["qr"]
    file = state / "modules" / "relay" / "accounts.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert told(state, "user", "list")["users"] == [{"name": "ada", "role": "operator"}]
    shown = run(state, "user", "add", "bob", "--role", "viewer")
    assert "otpauth://" in shown
    assert "password (shown once)" in shown


def test_what_is_wrong_is_said(state: Path) -> None:
    assert "nobody may log in" in run(state, "user", "list")
    assert "--role" in run(state, "user", "add", "ada", code=64)
    run(state, "user", "add", "ada", "--role", "king", code=64)
    run(state, "user", "add", " ada", "--role", "viewer", code=64)
    run(state, "user", "add", "ada", "--role", "viewer", "--password-stdin", given="\n", code=64)
    run(state, "user", "add", "ada", "--role", "viewer")
    assert "already" in run(state, "user", "add", "ada", "--role", "viewer", code=1)
    assert "ada" in run(state, "user", "remove", "eve", code=1)
    assert "has not run" in run(state, "url", code=3)


def test_an_account_is_changed_and_removed(state: Path) -> None:
    first = told(state, "user", "add", "ada", "--role", "viewer")
    fresh = told(state, "user", "reset-totp", "ada")
    assert fresh["secret"] != first["secret"]
    assert told(state, "user", "role", "ada", "--role", "admin")["role"] == "admin"
    assert len(told(state, "user", "token", "ada")["token"]) > 30
    assert "password" not in told(state, "user", "password", "ada", "--password-stdin", given="another one\n")
    assert told(state, "user", "logout", "ada")["ended"] == 0
    assert told(state, "user", "remove", "ada")["removed"] is True
    assert told(state, "user", "list")["users"] == []
