"""`up`: the whole file is checked first, then the supervisor runs here (in front) or in a process of its own (`-d`).

Detached: a new session, descriptors 0–2 on /dev/null, nothing inherited. Until it answers on its socket its words
come back through a pipe, so that a refusal is told where the command was typed; after that nobody reads the pipe and
what is written to it is let go. Source: spec 05 §3; cases S-05, S-06, S-18, S-44, S-83.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Final, Literal

from kite_launcher.cli import status
from kite_launcher.cli.ask import NotThere, Silent, ask
from kite_launcher.cli.check import load
from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import NO, OK, Failure, complain, say
from kite_launcher.cli.instance import Instance
from kite_launcher.core.launch import LaunchOptions
from kite_launcher.core.spec import InstanceSpec, Loaded, Mistake, Place
from kite_launcher.edge.config_file import Unreadable, load_file

# Set for the process that `-d` starts, taken out again before anything else can see it.
BACKGROUND: Final = "KITE_LAUNCH_BACKGROUND"
# What a module knows of its instance must not pass to another launcher: it would look like a part of that instance.
_FOREIGN: Final = (
    "KITE_INSTANCE",
    "KITE_URL",
    "KITE_MODULE_ID",
    "KITE_TOKEN_FD",
    "KITE_TOKEN_FILE",
    "KITE_OPTIONS_FILE",
    "KITE_STATE_DIR",
    "KITE_CONFIG",
)
_LOOK_S: Final = 0.05
_GRACE_S: Final = 1.0
# Words of a background launcher that nobody has read yet; far more than any refusal, far less than matters.
_WORDS_MAX: Final = 1 << 20


def run(line: Line, instance: Instance) -> int:
    """Start the instance. Returns the exit code of spec 05 §3."""
    background = os.environ.pop(BACKGROUND, None)
    if background is not None:
        sys.stderr = _Words(int(background))
    spec = load(instance)
    if line.args.detach:
        return _detach(line, instance, spec)
    from kite_launcher.edge import supervisor

    config = spec.path
    options = LaunchOptions(
        state_dir=instance.state_dir,
        load=lambda: load_again(config),
        restart_argv=(*_launcher(), "up", "--detach", "--config", config, "--state-dir", instance.state_dir),
        detached=background is not None,
    )
    return supervisor.run(spec, options)


def load_again(config: str) -> Loaded:
    """Return the file as it is now; one that can't be read is a mistake at its first place."""
    found = load_file(config)
    if isinstance(found, Unreadable):
        fault: Literal["config", "permission"] = "permission" if found.exit_code == 77 else "config"
        return Loaded(None, (Mistake(Place(1, 1), found.why, None, fault),))
    return found


def _launcher() -> tuple[str, ...]:
    """Return the argv of this program; -P keeps the current folder's files from being imported."""
    return (sys.executable, "-P", "-m", "kite_launcher")


def _detach(line: Line, instance: Instance, spec: InstanceSpec) -> int:
    """Start the launcher in a session of its own and wait until everything is ready or settled."""
    deadline = time.monotonic() + line.args.wait
    words, child_words = os.pipe2(os.O_CLOEXEC)
    environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN and not _is_activation(name)}
    environ[BACKGROUND] = str(child_words)
    process = subprocess.Popen(
        [*_launcher(), "up", "--config", spec.path, "--state-dir", instance.state_dir],
        env=environ,
        cwd=spec.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(child_words,),
        start_new_session=True,
    )
    os.close(child_words)
    os.set_blocking(words, False)
    said = b""
    try:
        while True:
            said += _read(words)
            code = process.poll()
            if code is not None:
                return _ended(code, said + _read(words))
            if _is_here(instance.state_dir, process.pid):
                break
            time.sleep(_LOOK_S)
        return _settle(instance, spec, deadline)
    finally:
        os.close(words)
        # A child that is still running is meant to outlive this command; Popen would warn of it.
        process.returncode = process.returncode if process.returncode is not None else 0


def _is_activation(name: str) -> bool:
    return name.startswith("LISTEN_")  # sockets by descriptor; a process in the background inherits none


def _read(words: int) -> bytes:
    try:
        return os.read(words, _WORDS_MAX)
    except BlockingIOError:
        return b""


def _ended(code: int, said: bytes) -> int:
    """Hand on what a launcher said that ended before it served, and its exit code."""
    for text in said.decode("utf-8", "replace").splitlines():
        complain(text)
    if code < 0:
        complain(f"kite-launch: the launcher was ended by signal {-code} before it was up")
        return NO
    return code or NO


def _is_here(state_dir: str, pid: int) -> bool:
    """True when the launcher that was just started answers; another one's answer is not the one waited for."""
    try:
        answer = ask(state_dir, "status", timeout_s=1.0)
    except (NotThere, Silent):
        return False
    except Exception:
        return False
    return isinstance(answer, dict) and (answer.get("launcher") or {}).get("pid") == pid


def _settle(instance: Instance, spec: InstanceSpec, deadline: float) -> int:
    """Wait until all that is enabled is ready or can't become it; 0 when all is well, else 1 with the table."""
    names = [name for module in spec.modules.values() if module.enabled for name in module.instances()]
    own = ["kernel", *(["watchdog"] if spec.watchdog.enabled else [])]
    left_s = max(0.0, deadline - time.monotonic())
    try:
        params = {"names": [*own, *names], "state": "settled", "timeout_s": left_s}
        ask(instance.state_dir, "wait", params, timeout_s=left_s + _GRACE_S)
    except (NotThere, Silent, Failure):
        pass  # it ended or hangs meanwhile; the table says so
    # Everything is where it will stay; what is written down a moment later (the link to the kernel) gets that moment.
    patience = min(deadline, time.monotonic() + _GRACE_S)
    while True:
        now: dict[str, Any] = status.gather(instance)
        if now.get("state") == "ok":
            say(status.lines(now)[0])
            return OK
        if time.monotonic() >= patience or now.get("state") in ("failed", "stopped"):
            break
        time.sleep(_LOOK_S)
    for text in status.lines(now):
        say(text)
    return NO


class _Words:
    """A stderr that never blocks and never fails: what nobody reads is let go."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)
        self._fd = fd

    def write(self, text: str) -> int:
        """Write what fits."""
        if self._fd >= 0:
            try:
                os.write(self._fd, text.encode("utf-8", "backslashreplace"))
            except BlockingIOError:
                pass
            except OSError:
                os.close(self._fd)
                self._fd = -1
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def isatty(self) -> bool:
        """Return False."""
        return False

    def fileno(self) -> int:
        """Return the descriptor that a fault handler may write to: /dev/null."""
        return 2
