"""Which instance a command means, where its kernel listens, and the token to use.

Source: spec 05-surface §3 (order of the places, default directory) and §5 (files), cases S-49, S-81.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from kite_modules.cli.fail import CONFIG, NOTHING, PERMISSION, Failure

FILE = "kite.toml"
_SMALL = 1 << 20


class Target(NamedTuple):
    """A kernel to connect to: `module_id` None = an operator's command, which names itself."""

    url: str
    token: str
    module_id: str | None
    state_dir: str | None
    pid: int | None = None


def find_target(state_dir: str | None, config: str | None, environ: Mapping[str, str], cwd: str) -> Target:
    """Return the kernel that is meant. Raises: Failure 78 (no instance), 3 (nothing runs), 77 (a file's mode).

    A program that kite runs finds its own instance (KITE_STATE_DIR) and speaks as an operator: it may use several
    commands at once, while a module id has one connection. Only where that says nothing it speaks as itself
    (KITE_URL, KITE_TOKEN_FILE).
    """
    named = state_dir or config or environ.get("KITE_STATE_DIR") or environ.get("KITE_CONFIG")
    if not named and environ.get("KITE_URL") and environ.get("KITE_TOKEN_FILE"):
        token = read_token(environ["KITE_TOKEN_FILE"])
        return Target(environ["KITE_URL"], token, environ.get("KITE_MODULE_ID") or None, None)
    directory = find_state_dir(state_dir, config, environ, cwd)
    judge(directory)
    kernel = read_json(os.path.join(directory, "kernel.json"))
    if kernel is None or not isinstance(kernel.get("url"), str):
        raise Failure(NOTHING, f"nothing is running in {directory}", "start it with `kite up -d`")
    pid = kernel.get("pid")
    return Target(kernel["url"], operator_token(directory), None, directory, pid if isinstance(pid, int) else None)


def find_state_dir(state_dir: str | None, config: str | None, environ: Mapping[str, str], cwd: str) -> str:
    """Return the state directory; the first of flag, --config, KITE_STATE_DIR, KITE_CONFIG, kite.toml above decides."""
    if state_dir:
        return _absolute(state_dir, cwd)
    if config:
        return _of_config(_absolute(config, cwd), environ)
    if environ.get("KITE_STATE_DIR"):
        return instance_of_module_dir(_absolute(environ["KITE_STATE_DIR"], cwd))
    if environ.get("KITE_CONFIG"):
        return _of_config(_absolute(environ["KITE_CONFIG"], cwd), environ)
    folder = cwd
    while not os.path.lexists(os.path.join(folder, FILE)):
        parent = os.path.dirname(folder)
        if parent == folder:
            looked = "--state-dir, --config, KITE_STATE_DIR, KITE_CONFIG: none given"
            message = f"no {FILE} in {cwd} or any folder above it ({looked})"
            raise Failure(CONFIG, message, "name one with --config, or make one with `kite init`")
        folder = parent
    return _of_config(os.path.join(folder, FILE), environ)


def instance_of_module_dir(path: str) -> str:
    """Return the instance's directory for a module's own one (`<state-dir>/modules/<name>`), else the path itself."""
    parent = os.path.dirname(path)
    above = os.path.dirname(parent)
    inside = os.path.basename(parent) == "modules" and os.path.exists(os.path.join(above, "instance.id"))
    return above if inside and not os.path.exists(os.path.join(path, "instance.id")) else path


def judge(directory: str) -> None:
    """Refuse a state directory that is not safely this user's own. Never repairs. Raises: Failure 77."""
    try:
        link, status = os.lstat(directory), os.stat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Failure(PERMISSION, f"can't look at {directory}: {(error.strerror or '').lower()}") from None
    me, mode = os.geteuid(), stat.S_IMODE(status.st_mode)
    foreign = status.st_uid != me or (stat.S_ISLNK(link.st_mode) and link.st_uid != me)
    if foreign or mode & 0o022:
        message = f"{directory} is not safely yours (owner {status.st_uid}, mode {mode:04o})"
        raise Failure(PERMISSION, message, "name another with --state-dir, or make sure of it and chmod 700 it")


def operator_token(directory: str) -> str:
    """Return the token that the launcher (or a standalone kernel) keeps for operators. Raises: Failure."""
    path = os.path.join(directory, "tokens", "operator")
    if os.path.lexists(path):
        return read_token(path)
    alone = os.path.join(directory, "tokens.toml")
    if not os.path.lexists(alone):
        raise Failure(NOTHING, f"no operator token in {directory}", "is the instance running? see `kite status`")
    try:
        rows = tomllib.loads(_read(alone).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise Failure(CONFIG, f"{alone} is no TOML") from None
    for row in rows.values():
        if isinstance(row, dict) and row.get("role") == "operator" and isinstance(row.get("token"), str):
            return str(row["token"])
    raise Failure(PERMISSION, f"{alone} holds no operator token")


def read_token(path: str) -> str:
    """Return a token from a file that only its user may read. Raises: Failure 77 naming the mend."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        raise Failure(PERMISSION, f"can't read {path}: {(error.strerror or '').lower()}") from None
    if mode & 0o077:
        raise Failure(PERMISSION, f"others may read {path} (mode {mode:04o})", f"chmod 600 {path}")
    token = _read(path).decode("utf-8", "replace").strip()
    if not token:
        raise Failure(CONFIG, f"{path} is empty")
    return token


def read_json(path: str) -> dict[str, Any] | None:
    """Return a small JSON object, None when it isn't there or is none."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_SMALL))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_alive(pid: int | None) -> bool:
    """Say whether a process of that number lives; only for wording, never for signals."""
    if pid is None or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_SMALL)
    except OSError as error:
        raise Failure(PERMISSION, f"can't read {path}: {(error.strerror or '').lower()}") from None


def _absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, path))


def _of_config(config: str, environ: Mapping[str, str]) -> str:
    """Return the default directory of a kite.toml: its name, then 8 hex digits of its real path's SHA-256."""
    home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "state")
    home = os.path.join(home, "kite")
    digits = hashlib.sha256(os.fsencode(os.path.realpath(config))).hexdigest()[:8]
    own = os.path.join(home, f"{_name_of(config)}-{digits}")
    if os.path.isdir(own):
        return own
    try:
        others = sorted(entry for entry in os.listdir(home) if entry.endswith(f"-{digits}"))
    except OSError:
        others = []
    return os.path.join(home, others[0]) if others else own


def _name_of(config: str) -> str:
    fallback = os.path.basename(os.path.dirname(os.path.realpath(config))) or "kite"
    try:
        if not stat.S_ISREG(os.stat(config).st_mode):
            return fallback
        name = tomllib.loads(_read(config).decode("utf-8")).get("instance", {}).get("name", fallback)
    except (OSError, ValueError, RecursionError, AttributeError, Failure):
        return fallback
    good = isinstance(name, str) and name.strip() and "/" not in name and name not in (".", "..")
    return name if good else fallback
