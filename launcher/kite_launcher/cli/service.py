"""`service install|uninstall|show`: the instance run by systemd (the user's manager, or the system's) or launchd.

The unit is written first and the same each time; where no manager can be reached it stays, what to run by hand is
said, exit 69. Source: spec 05 §3; case S-91.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from kite_launcher.cli.check import load
from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import OK, PERMISSION, UNAVAILABLE, Failure, say
from kite_launcher.cli.instance import Instance, path_hash
from kite_launcher.core.service_unit import Service, launchd_plist, systemd_unit

# A manager that is there answers at once, or after it has stopped what it is asked to stop.
_MANAGER_S: Final = 320.0


def run(line: Line, instance: Instance) -> int:
    """Write, remove or print the unit."""
    system = bool(line.args.system)
    if line.args.action == "uninstall":
        return _uninstall(_service(instance), system=system)
    load(instance)
    service = _service(instance)
    content = _content(service, system=system)
    if line.args.action == "show":
        say(content.decode().rstrip("\n"))
        return OK
    path = _path(service, system=system)
    _write(path, content)
    say(f"{path}: written")
    return _run_by_manager(_start_commands(service, path, system=system))


def _service(instance: Instance) -> Service:
    if instance.config is None:
        raise Failure(78, f"no kite.toml is known for {instance.state_dir}", "name one with --config")
    config = os.path.realpath(instance.config)
    argv = (sys.executable, "-P", "-m", "kite_launcher", "up", "--config", config, "--state-dir", instance.state_dir)
    name = os.path.basename(instance.state_dir).removesuffix(f"-{path_hash(config)}")
    return Service(name, path_hash(config), argv, os.environ.get("PATH", os.defpath))


def _is_launchd() -> bool:
    return sys.platform == "darwin"


def _content(service: Service, *, system: bool) -> bytes:
    return launchd_plist(service) if _is_launchd() else systemd_unit(service, system=system).encode()


def _path(service: Service, *, system: bool) -> Path:
    home = Path(os.environ.get("HOME") or os.path.expanduser("~"))
    if _is_launchd():
        folder = Path("/Library/LaunchDaemons") if system else home / "Library" / "LaunchAgents"
        return folder / f"{service.label}.plist"
    config = os.environ.get("XDG_CONFIG_HOME", "")
    own = Path(config) if os.path.isabs(config) else home / ".config"
    return (Path("/etc/systemd/system") if system else own / "systemd" / "user") / service.unit


def _write(path: Path, content: bytes) -> None:
    """Write the unit whole or not at all; the same bytes again change nothing."""
    try:
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except OSError as error:
        raise Failure(PERMISSION, f"can't write {path}: {(error.strerror or str(error)).lower()}") from error


def _start_commands(service: Service, path: Path, *, system: bool) -> list[list[str]]:
    if _is_launchd():
        return [["launchctl", "bootstrap", _domain(system=system), str(path)]]
    ctl = _systemctl(system=system)
    return [[*ctl, "daemon-reload"], [*ctl, "enable", "--now", service.unit]]


def _systemctl(*, system: bool) -> list[str]:
    return ["systemctl"] if system else ["systemctl", "--user"]


def _domain(*, system: bool) -> str:
    return "system" if system else f"gui/{os.getuid()}"


def _run_by_manager(commands: list[list[str]]) -> int:
    """Run the manager's commands in order; the first that fails ends it with what to run by hand, exit 69."""
    for index, command in enumerate(commands):
        why = _try(command)
        if why is not None:
            rest = " && ".join(shlex.join(later) for later in commands[index:])
            raise Failure(UNAVAILABLE, why, f"the unit stays; run by hand: {rest}")
    return OK


def _try(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return f"no {command[0]} on this machine"
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_MANAGER_S, stdin=subprocess.DEVNULL, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{shlex.join(command)}`: {type(error).__name__}"
    if done.returncode == 0:
        return None
    words = done.stderr.strip().splitlines()
    return f"`{shlex.join(command)}`: {words[0] if words else f'exit {done.returncode}'}"


def _uninstall(service: Service, *, system: bool) -> int:
    """Stop and forget the service, then remove its file; a manager that is not there has nothing to forget."""
    path = _path(service, system=system)
    if not path.exists():
        say(f"{path}: not installed")
        return OK
    if _is_launchd():
        _try(["launchctl", "bootout", f"{_domain(system=system)}/{service.label}"])
    else:
        _try([*_systemctl(system=system), "disable", "--now", service.unit])
    try:
        path.unlink()
    except OSError as error:
        raise Failure(PERMISSION, f"can't remove {path}: {(error.strerror or str(error)).lower()}") from error
    if not _is_launchd():
        _try([*_systemctl(system=system), "daemon-reload"])
    say(f"{path}: removed")
    return OK
