"""An instance of one's own to hurt: a folder, a kite.toml with quick times, started and stopped by the real commands.

Source: spec 05-surface §3, §6.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kite_modules.chaos.look import Instance

UP_S: Final = 120.0
DOWN_S: Final = 90.0
DISK_BYTES: Final = 64 * 1024 * 1024  # of the state directory's own small file system, where one can be made
FAKETIME: Final = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
FAKETIME_VARIABLE: Final = "LIBFAKETIME"  # a library that lies elsewhere
UNLIMITED: Final = 1_000_000  # restarts: here failing is the purpose

TOML: Final = """\
[instance]
name = "chaos"
[kernel]
port = 0
[timing]
scale = {scale}
{timing}
[watchdog]
restarts = {unlimited}
[streams.chaos]
durable = true
ring = 100000
{modules}
"""
KITE_MODULE: Final = """\
[module.{name}]
module = "kite_modules.chaos.dummy"
max_restarts = {unlimited}
backoff = "50ms"
backoff_max = "500ms"
stop_timeout = "3s"
"""
PLAIN_MODULE: Final = """\
[module.plain]
command = ["sh", "-c", "while :; do sleep 1; done"]
ready = {{ delay = "50ms" }}
max_restarts = {unlimited}
backoff = "50ms"
backoff_max = "500ms"
stop_timeout = "3s"
"""


class Scratch:
    """The folder, its instance and the commands."""

    def __init__(self, folder: Path, *, scale: float, timing: str, small_disk: bool, clock: bool) -> None:
        self.folder, self.state = folder, folder / "state"
        self.instance = Instance(self.state)
        self.state.mkdir(mode=0o700)
        self.has_small_disk = small_disk and _mount(self.state)
        self._library = _library(folder) if clock else None
        self.clock_file = folder / "clock" if self._library else None
        modules = "".join(KITE_MODULE.format(name=name, unlimited=UNLIMITED) for name in ("alpha", "beta"))
        modules += PLAIN_MODULE.format(unlimited=UNLIMITED)
        toml = TOML.format(scale=scale, timing=timing, unlimited=UNLIMITED, modules=modules)
        (folder / "kite.toml").write_text(toml, "utf-8")
        if self.clock_file is not None:
            self.clock_file.write_text("+0\\n", "ascii")

    def environ(self) -> dict[str, str]:
        """Give the environment of the commands: nothing of another instance, and a clock that can be stepped."""
        out = {k: v for k, v in os.environ.items() if not k.startswith(("KITE_", "NOTIFY_", "LISTEN_"))}
        if self._library is not None:
            out |= _stepped(self._library, str(self.clock_file))
        return out

    def run(self, *words: str, within_s: float) -> subprocess.CompletedProcess[str]:
        """Run one command of the launcher."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "kite_launcher", *words, "--config", str(self.folder / "kite.toml"),
             "--state-dir", str(self.state)],
            env=self.environ(), capture_output=True, text=True, timeout=within_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def up(self) -> str | None:
        """Start it; None, or what went wrong."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = self.run("up", "-d", "--wait", "60", within_s=UP_S)
            return None if done.returncode == 0 else f"up ended {done.returncode}: {done.stdout}{done.stderr}".strip()
        return f"up took more than {UP_S:g} s"

    def down(self) -> str | None:
        """Stop it; None, or what went wrong."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = self.run("down", within_s=DOWN_S)
            return None if done.returncode in (0, 3) else f"down ended {done.returncode}: {done.stderr}".strip()
        return f"down took more than {DOWN_S:g} s"


@contextmanager
def scratch(
    *, scale: float, timing: str = "", small_disk: bool = False, clock: bool = False, keep: bool = False
) -> Iterator[Scratch]:
    """Make the folder for the time of the block; `keep` leaves it behind for reading."""
    folder = Path(tempfile.mkdtemp(prefix="kite-chaos-"))
    made = Scratch(folder, scale=scale, timing=timing, small_disk=small_disk, clock=clock)
    try:
        yield made
    finally:
        made.down()
        if made.has_small_disk:
            subprocess.run(["umount", "-l", str(made.state)], check=False, capture_output=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _stepped(library: str, clock_file: str) -> dict[str, str]:
    """Variables under which a process's wall clock stands in a file, and its monotonic clock is left alone."""
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": clock_file,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def _library(folder: Path) -> str | None:
    """Find a libfaketime under which a program can still sleep: release 0.9.10 breaks that."""
    given = os.environ.get(FAKETIME_VARIABLE)
    found = [given] if given else [path for pattern in FAKETIME for path in glob.glob(pattern)]
    trial = folder / "clock"
    trial.write_text("+1d\n", "ascii")
    for path in found:
        environ = {**os.environ, **_stepped(path, str(trial))}
        argv = [sys.executable, "-c", "import time; time.sleep(0.01)"]
        if subprocess.run(argv, env=environ, check=False, capture_output=True, timeout=20).returncode == 0:
            return path
    return None


def _mount(state: Path) -> bool:
    """Give the state directory a small file system of its own; False where this user may not."""
    with contextlib.suppress(OSError):
        options = f"size={DISK_BYTES},mode=0700,uid={os.getuid()}"
        argv = ["mount", "-t", "tmpfs", "-o", options, "kite-chaos", str(state)]
        return subprocess.run(argv, check=False, capture_output=True).returncode == 0
    return False
