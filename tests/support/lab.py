"""A real instance in a folder of its own: kite.toml, real commands, and looking at what really runs.

Times are waited for by condition with a generous bound, never slept through. `close` ends everything that carries
the instance's mark, whatever the test left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "kite_launcher")
BOUND_S = 30.0  # what a busy two-core machine may need for anything here

SLEEPER = """\
import time
print("up", flush=True)
while True:
    time.sleep(60)
"""


def module(name: str, script: str = "x.py", **keys: Any) -> str:
    """Return one [module.NAME] of a program that sleeps until TERM; `keys` are further lines."""
    values: dict[str, Any] = {
        "command": f'["python3", "{script}"]',
        "ready": '{ delay = "50ms" }',
        "stop_timeout": '"1s"',
        "backoff": '"50ms"',
        **keys,
    }
    lines = "\n".join(f"{key} = {value}" for key, value in values.items() if value is not None)
    return f"[module.{name}]\n{lines}\n"


class Lab:
    """One instance. Make it with `with Lab(folder, toml) as lab:`."""

    def __init__(self, folder: Path, toml: str, *, files: dict[str, str] | None = None, scale: float = 1.0) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / "state"
        self.config = folder / "kite.toml"
        self.scale = scale
        self.write(toml)
        for name, text in {"x.py": SLEEPER, **(files or {})}.items():
            (folder / name).write_text(text, "utf-8")
        self._fronts: list[subprocess.Popen[bytes]] = []

    def write(self, toml: str) -> None:
        """Write kite.toml: port 0 and the scale in front of `toml`."""
        head = "" if "[kernel]" in toml else "[kernel]\nport = 0\n"
        timing = f"[timing]\nscale = {self.scale}\n" if "[timing]" not in toml else ""
        self.config.write_text(head + timing + toml, "utf-8")

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- commands --------------------------------------------------------------------------------------------

    def env(self) -> dict[str, str]:
        """Return the environment of every command."""
        environ = {
            key: value for key, value in os.environ.items() if not key.startswith(("KITE_", "NOTIFY_", "LISTEN_"))
        }
        return {**environ, "KITE_CONFIG": str(self.config), "KITE_STATE_DIR": str(self.state)}

    def run(
        self, *args: str, timeout_s: float = BOUND_S, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; no traceback may ever show."""
        done = subprocess.run(
            [*COMMAND, *args],
            env=self.env() if env is None else env,
            cwd=more.pop("cwd", self.folder),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            **more,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def ok(self, *args: str, **more: Any) -> str:
        """Run one command that must succeed; returns its stdout."""
        done = self.run(*args, **more)
        assert done.returncode == 0, (args, done.returncode, done.stdout, done.stderr, self.log())
        return done.stdout

    def up(self, *, code: int = 0) -> None:
        """`up -d`."""
        done = self.run("up", "-d", "--wait", str(BOUND_S), timeout_s=2 * BOUND_S)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr, self.log())

    def front(self, *args: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start `up` in front and wait until it answers."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        env = options.pop("env", None) or self.env()
        process = subprocess.Popen([*COMMAND, "up", *args], env=env, cwd=self.folder, **options)
        self._fronts.append(process)
        self.until(lambda: process.poll() is not None or self.launcher_pid() == process.pid, "the launcher answers")
        return process

    # -- what is seen ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """`status --json`."""
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def row(self, name: str) -> dict[str, Any]:
        """Return one module's row."""
        status = self.status()
        if name in ("kernel", "watchdog", "launcher"):
            own: dict[str, Any] = status[name]
            return own
        return next((row for row in status["modules"] if row["name"] == name), {})

    def pid(self, name: str) -> int:
        """Return the pid of a module (0 when it has none)."""
        return int(self.row(name).get("pid") or 0)

    def launcher_pid(self) -> int:
        """Return the launcher's pid, 0 when none holds the lock or answers."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError, AssertionError):
            return int((self.status().get("launcher") or {}).get("pid") or 0)
        return 0

    def why(self, name: str) -> dict[str, Any]:
        """`why NAME --json`."""
        found: dict[str, Any] = json.loads(self.ok("why", name, "--json"))
        return found

    def log(self, name: str = "launcher") -> str:
        """Return a module's live log file."""
        with contextlib.suppress(OSError):
            return (self.state / "logs" / f"{name}.log").read_text("utf-8", "replace")
        return ""

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of processes.json."""
        with contextlib.suppress(OSError):
            document = json.loads((self.state / "processes.json").read_bytes())
            rows: list[dict[str, Any]] = document["processes"]
            return rows
        return []

    def keeper_pid(self) -> int:
        """Return the pid of the log keeper on record."""
        return next((int(row["pid"]) for row in self.records() if row["role"] == "logkeeper"), 0)

    def mark(self) -> str:
        """Return the instance's mark, "" before it has one."""
        with contextlib.suppress(OSError):
            return (self.state / "instance.id").read_text("ascii").strip()
        return ""

    def marked(self) -> dict[int, str]:
        """Return every live process that carries the mark: pid → KITE_MODULE_ID."""
        mark = self.mark()
        return marked(mark) if mark else {}

    # -- waiting ---------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], what: str, bound_s: float = BOUND_S, every_s: float = 0.03) -> Any:
        """Wait until `condition` is truthy and return it; fail with `what` at the bound."""
        deadline = time.monotonic() + bound_s
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, (f"not within {bound_s} s: {what}", self.log()[-3000:])
            time.sleep(every_s)

    def until_well(self, bound_s: float = BOUND_S) -> dict[str, Any]:
        """Wait until `status` is 0 and return it."""
        found: dict[str, Any] = self.until(
            lambda: (status := self.status()) and status["state"] == "ok" and status, "status ok", bound_s, 0.1
        )
        return found

    def until_nothing_left(self, bound_s: float = BOUND_S) -> None:
        """Wait until no live process carries the mark."""
        self.until(lambda: not self.marked(), f"nothing left: {self.marked()}", bound_s)

    def assert_nothing_left(self) -> None:
        """No live process of this instance, at once."""
        assert self.marked() == {}, self.marked()

    def close(self) -> None:
        """End everything that is left, gently first."""
        for process in self._fronts:
            if process.poll() is None:
                process.terminate()
        with contextlib.suppress(Exception):
            if self.launcher_pid():
                self.run("down", "--timeout", "3")
        for process in self._fronts:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            for stream in (process.stdout, process.stderr, process.stdin):
                if stream is not None:
                    stream.close()
        deadline = time.monotonic() + 10
        while (left := self.everything()) and time.monotonic() < deadline:
            for pid in left:
                kill(pid)
            time.sleep(0.05)

    def everything(self) -> list[int]:
        """Return all live processes of this instance, the launcher included."""
        holder = 0
        with contextlib.suppress(OSError, ValueError):
            holder = int(json.loads((self.state / "instance.lock").read_bytes())["pid"])
        found = list(self.marked())
        if holder and str(self.state).encode() in _read(f"/proc/{holder}/cmdline"):
            found.insert(0, holder)
        return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process of the test's own; gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def alive(pid: int) -> bool:
    """Say whether a process lives; a zombie is dead."""
    stat = _read(f"/proc/{pid}/stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def marked(mark: str) -> dict[int, str]:
    """Return every live process with this KITE_INSTANCE: pid → KITE_MODULE_ID."""
    found = {}
    for pid in pids():
        entries = _read(f"/proc/{pid}/environ").split(b"\0")
        if f"KITE_INSTANCE={mark}".encode() in entries and alive(pid):
            names = [entry[15:].decode() for entry in entries if entry.startswith(b"KITE_MODULE_ID=")]
            found[pid] = names[0] if names else ""
    return found


def pids() -> Iterator[int]:
    """Return all pids of the machine."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def start_ticks(pid: int) -> int:
    """Return field 22 of a process's stat."""
    return int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19])


def boot_id() -> str:
    """Return the machine's boot id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def cmdline(pid: int) -> Sequence[bytes]:
    """Return a process's argv."""
    return _read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""
