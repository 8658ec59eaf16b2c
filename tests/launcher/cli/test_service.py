"""`service`: the same bytes each time, every path quoted, and no manager is 69 with the way out (S-91)."""

from __future__ import annotations

import os
import plistlib
import shlex
import sys
from pathlib import Path

import pytest

from kite_launcher.core.service_unit import Service, launchd_plist, quote_word, systemd_unit

from .conftest import GOOD, Launch


@pytest.fixture
def blank(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = lab / "a b'\n$x %h \"é"
    folder.mkdir()
    (folder / "kite.toml").write_text(GOOD, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def fake_systemctl(lab: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> Path:
    folder, log = lab / "bin", lab / "asked"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\necho no bus >&2\nexit {code}\n', encoding="utf-8"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


def units(lab: Path) -> list[Path]:
    return list((lab.parent / "home" / ".config" / "systemd" / "user").glob("*"))


def test_without_a_manager_the_unit_stays_and_the_rest_is_said(
    launch: Launch, lab: Path, blank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_systemctl(lab, monkeypatch, 1)
    contents = []
    for _ in range(2):
        said = launch("service", "install")
        assert said.code == 69
        assert "no bus" in said.err
        (unit,) = units(lab)
        assert f"systemctl --user enable --now {unit.name}" in said.err
        contents.append(unit.read_bytes())
    assert contents[0] == contents[1]
    text = contents[0].decode()
    config = str(blank / "kite.toml").replace("\n", "\\x0a").replace("$", "$$").replace("%", "%%").replace('"', '\\"')
    (start,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert start.startswith(f'ExecStart="{sys.executable}" "-P" "-m" "kite_launcher" "up" "--config" "{config}"')
    assert launch("service", "uninstall").code == 0
    assert units(lab) == []
    assert launch("service", "uninstall").code == 0


def test_with_a_manager_it_is_enabled_and_disabled(launch: Launch, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_systemctl(lab, monkeypatch, 0)
    assert launch("service", "install").code == 0
    (unit,) = units(lab)
    assert launch("service", "uninstall").code == 0
    assert asked.read_text(encoding="utf-8").splitlines() == [
        "--user daemon-reload",
        f"--user enable --now {unit.name}",
        f"--user disable --now {unit.name}",
        "--user daemon-reload",
    ]


def test_a_broken_file_is_not_installed(launch: Launch, lab: Path) -> None:
    (lab / "kite.toml").write_text("[kernle]\n", encoding="utf-8")
    assert launch("service", "install").code == 78
    assert units(lab) == []


def test_show_prints_and_writes_nothing(launch: Launch, lab: Path) -> None:
    said = launch("service", "show")
    assert said.code == 0
    assert "Type=notify" in said.out
    assert "WatchdogSec=" in said.out
    assert units(lab) == []


def test_words_are_quoted_as_systemd_reads_them() -> None:
    assert quote_word('a "b" \\ $HOME 50% \n\udcff') == '"a \\"b\\" \\\\ $$HOME 50%% \\x0a\\xff"'
    assert quote_word("$HOME", dollar=False) == '"$HOME"'


def test_names_of_units_hold_only_what_is_allowed() -> None:
    service = Service("备份 %i/..", "01234567", ("/py", "-m", "x"), "/bin")
    assert service.unit == "kite--i-..-01234567.service"
    assert "%%i" in systemd_unit(service, system=True)
    assert "multi-user.target" in systemd_unit(service, system=True)


def test_launchd_gets_the_same_argv() -> None:
    service = Service("lab", "01234567", ("/py", "a b", "é\n"), "/bin")
    found = plistlib.loads(launchd_plist(service))
    assert found["ProgramArguments"] == ["/py", "a b", "é\n"]
    assert found["KeepAlive"] == {"SuccessfulExit": False}
