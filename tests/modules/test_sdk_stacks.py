"""A hung module tells its stacks. Source: spec 60-watchdog §1; 00 §12 (nobody else reads them)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from kite_modules.sdk import stacks

HANGS = """\
import sys, time
from kite_modules.sdk import stacks
print(stacks.install(sys.argv[1]), flush=True)

def where_it_hangs():
    time.sleep(600)

where_it_hangs()
"""


def test_a_hung_process_writes_where_it_hangs(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "True"
        file = tmp_path / stacks.FILE
        assert file.stat().st_mode & 0o777 == 0o600
        deadline = time.monotonic() + 20
        while "where_it_hangs" not in file.read_text("utf-8"):
            assert time.monotonic() < deadline
            process.send_signal(signal.SIGUSR2)
            time.sleep(0.05)
        assert process.poll() is None, "it goes on as before"
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_an_authors_own_handler_is_left_alone(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert stacks.install(str(tmp_path)) is False
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_without_a_directory_nothing_is_promised() -> None:
    assert stacks.install(None) is False
    assert stacks.install("/nowhere/at/all") is False
