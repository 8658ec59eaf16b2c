"""Exit 70: one line for people, a file with places for those who mend it, and no value in either. Source: 05 §3."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kite_kernel import main as command
from kite_kernel.report import write_report

CANARY = "canary-2b8e4d7f"


def test_a_bug_ends_with_70_and_a_report_without_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        try:
            raise KeyError(CANARY)
        except KeyError:
            raise ExceptionGroup(CANARY, [ValueError(CANARY)]) from None

    monkeypatch.setattr(command._Start, "run", broken)
    assert command.main(["--standalone", "--state-dir", str(tmp_path)]) == 70
    said = capsys.readouterr().err
    (report,) = tmp_path.glob("kernel-bug-*.txt")
    assert str(report) in said
    assert len(said.splitlines()) == 1
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text()
    assert "ExceptionGroup" in text
    assert "test_report.py:" in text
    assert CANARY not in text + said


def test_where_nothing_can_be_written_there_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    assert write_report(ValueError("x"), None, "0") is None
