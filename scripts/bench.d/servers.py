"""Start a hub on one core of its own and stop it again; Kite runs as it is shipped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
KERNEL = Path(sys.executable).parent / "kite-kernel"
START_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))  # read once: the load narrows its own set later
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Hub:
    """A running hub: where it listens, and what it costs."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int) -> None:
        self.name = name
        self.process = process
        self.port = port

    def cpu_s(self) -> float:
        """Seconds of processor time that it has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1]) * PAGE_BYTES

    def reset_peak(self) -> None:
        """Let `peak_bytes` begin again from what is resident now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", "ascii")

    def peak_bytes(self) -> int:
        """The most that was resident since `reset_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def split_cores() -> tuple[set[int], set[int]]:
    """Return the hub's core and the load's; with a single one they share it, and the figures say little."""
    return {CORES[0]}, set(CORES[1:2] or CORES)


def _command(name: str, folder: Path, tokens: Mapping[str, str], ready: int, config: str) -> list[str]:
    if name != "kite":
        listed = folder / "tokens.json"
        listed.write_text(json.dumps({token: module_id for module_id, token in tokens.items()}), "utf-8")
        return [sys.executable, str(HERE / f"hub_{name}.py"), str(listed), str(ready)]
    listed = folder / "tokens.toml"
    listed.touch(0o600)
    listed.write_text(
        "".join(f'["{name}"]\ntoken = "{token}"\nrole = "module"\n' for name, token in tokens.items()), "utf-8"
    )
    (folder / "kite.toml").write_text(config, "utf-8")
    options = {"--config": folder / "kite.toml", "--state-dir": folder / "state", "--tokens": listed}
    flags = [part for option, value in options.items() for part in (option, str(value))]
    return [str(KERNEL), "--standalone", "--port", "0", "--ready-fd", str(ready), *flags]


@contextlib.contextmanager
def running(name: str, folder: Path, tokens: Mapping[str, str], config: str = "") -> Iterator[Hub]:
    """Run the hub `name` (kite, websockets, picows) for the length of the block."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    cores, _ = split_cores()
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(name, folder, tokens, writer, config),
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    os.sched_setaffinity(process.pid, cores)
    os.close(writer)
    try:
        yield Hub(name, process, _await_port(reader, process, log))
    finally:
        os.close(reader)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.kill()
        process.wait()


def _await_port(reader: int, process: subprocess.Popen[bytes], log: Path) -> int:
    os.set_blocking(reader, False)
    heard = b""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            heard += os.read(reader, 4096)
        if heard.endswith(b"\n"):
            said = json.loads(heard)
            return int(said["port"] if isinstance(said, dict) else said)
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise SystemExit(f"the hub did not start: {log.read_text('utf-8', 'replace')[-2000:]}")
