"""A state directory that takes no file: who was started by a launcher serves all the same, others say one line."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from kite_kernel import main
from kite_kernel.edge import files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `kernel.json` meet a full disk; a kernel that serves ends at once. Give the arguments of a start."""

    def refuse(path: Path, value: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def serve(running: Any) -> str:
        running.nursery.cancel_scope.cancel()
        return "served"

    monkeypatch.setattr(files, "write_json", refuse)
    monkeypatch.setattr(main.kernel, "run", serve)
    monkeypatch.setattr(main, "tune_collector", lambda: None)
    return ["--standalone", "--port", "0", "--state-dir", str(tmp_path / "state")]


def test_a_kernel_started_by_hand_says_one_line(full_disk: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(full_disk) == 77
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].endswith("kernel.json: No space left on device")
    assert "a bug" not in said.err


def test_a_kernel_that_tells_its_starter_serves_all_the_same(full_disk: list[str]) -> None:
    read, write = os.pipe()
    assert main.main([*full_disk, "--ready-fd", str(write)]) == 0
    with os.fdopen(read) as file:
        assert json.loads(file.read())["pid"] == os.getpid()
