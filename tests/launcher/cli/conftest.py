"""A folder with a kite.toml, a clean environment, and `kite-launch` called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kite_launcher import main

GOOD = '[kernel]\nport = 0\n[module.x]\ncommand = ["sleep", "1"]\nready = { delay = "50ms" }\n'


class Said(NamedTuple):
    """What one command left: its exit code and both streams."""

    code: int
    out: str
    err: str


Launch = Callable[..., Said]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an instance `lab`, the current one; its default state directory lies beside it."""
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "kite.toml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "home").mkdir()
    for name in ("KITE_STATE_DIR", "KITE_CONFIG", "KITE_INSTANCE", "XDG_CONFIG_HOME", "NOTIFY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def launch(lab: Path, capfd: pytest.CaptureFixture[str]) -> Launch:
    """Call `kite-launch` with arguments; gives its exit code and what it said."""

    def call(*argv: str) -> Said:
        capfd.readouterr()
        code = main.run(list(argv))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return Said(code, out, err)

    return call
