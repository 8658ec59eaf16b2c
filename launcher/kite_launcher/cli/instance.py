"""Which instance a command means, and whether its state directory may be trusted.

Source: spec 05 §3 (order of the places, default directory); cases S-49, S-51, S-81.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Mapping
from typing import NamedTuple

from kite_launcher.cli.fail import CONFIG, PERMISSION, Failure

FILE = "kite.toml"


class Asked(NamedTuple):
    """What the command line says of the instance."""

    state_dir: str | None = None
    config: str | None = None


class Instance(NamedTuple):
    """One instance: its kite.toml (absolute; None when only the state directory is known) and its state directory."""

    config: str | None
    state_dir: str


def find(asked: Asked, environ: Mapping[str, str], cwd: str) -> Instance:
    """Return the instance that is meant; a Failure 78 says where was looked.

    The first of these decides: `--state-dir`, `--config`, KITE_STATE_DIR, KITE_CONFIG, kite.toml in `cwd` or a parent.
    """
    if asked.state_dir:
        return _by_state_dir(_absolute(asked.state_dir, cwd), asked, environ, cwd)
    if asked.config:
        return _by_config(_absolute(asked.config, cwd), environ)
    if environ.get("KITE_STATE_DIR"):
        state_dir = of_module_dir(_absolute(environ["KITE_STATE_DIR"], cwd))
        return _by_state_dir(state_dir, asked, environ, cwd)
    if environ.get("KITE_CONFIG"):
        return _by_config(_absolute(environ["KITE_CONFIG"], cwd), environ)
    found = find_upward(cwd)
    if found is None:
        looked = "--state-dir, --config, KITE_STATE_DIR, KITE_CONFIG: none given"
        raise Failure(
            CONFIG,
            f"no {FILE} in {cwd} or any folder above it ({looked})",
            "name one with --config, or make one with `kite init`",
        )
    return _by_config(found, environ)


def of_module_dir(path: str) -> str:
    """Return the instance's directory when `path` is a module's own one, as a child of Kite's has it."""
    parent, above = os.path.dirname(path), os.path.dirname(os.path.dirname(path))
    if os.path.basename(parent) != "modules" or os.path.exists(os.path.join(path, "instance.id")):
        return path
    return above if os.path.exists(os.path.join(above, "instance.id")) else path


def find_upward(cwd: str) -> str | None:
    """Return the nearest kite.toml in `cwd` or one of its parents, whatever kind of file it is."""
    folder = cwd
    while True:
        path = os.path.join(folder, FILE)
        if os.path.lexists(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def default_state_dir(config: str, environ: Mapping[str, str], name: str) -> str:
    """Return `$XDG_STATE_HOME/kite/<name>-<8 hex>`; the hex is the SHA-256 of the file's real path."""
    return os.path.join(state_home(environ), f"{name}-{path_hash(config)}")


def path_hash(config: str) -> str:
    """Return 8 hexadecimal digits that tell two kite.toml apart: SHA-256 of the real path's bytes."""
    return hashlib.sha256(os.fsencode(os.path.realpath(config))).hexdigest()[:8]


def state_home(environ: Mapping[str, str]) -> str:
    """Return the folder that holds the default state directories."""
    home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # the XDG standard: a relative one counts as unset
        home = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "kite")


def _absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, path))


def _by_state_dir(state_dir: str, asked: Asked, environ: Mapping[str, str], cwd: str) -> Instance:
    """Return the instance of a state directory; its file: the one given, else recorded there, else found from here."""
    if asked.config:
        return Instance(_absolute(asked.config, cwd), state_dir)
    recorded = recorded_config(state_dir)
    if recorded is not None:
        return Instance(recorded, state_dir)
    config = environ.get("KITE_CONFIG")
    return Instance(_absolute(config, cwd) if config else find_upward(cwd), state_dir)


def recorded_config(state_dir: str) -> str | None:
    """Return the kite.toml that the last launcher of this directory ran, if it is still there."""
    import json

    try:
        with open(os.path.join(state_dir, "launch.json"), "rb") as file:
            record = json.loads(file.read(1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    config = record.get("config") if isinstance(record, dict) else None
    return config if isinstance(config, str) and os.path.isfile(config) else None


def _by_config(config: str, environ: Mapping[str, str]) -> Instance:
    """Return the instance of a file. The hash alone finds a directory that was made under an earlier name."""
    home, ending = state_home(environ), f"-{path_hash(config)}"
    own = default_state_dir(config, environ, instance_name(config))
    if os.path.isdir(own):
        return Instance(config, own)
    try:
        others = sorted(entry for entry in os.listdir(home) if entry.endswith(ending))
    except OSError:
        others = []
    return Instance(config, os.path.join(home, others[0]) if others else own)


def instance_name(config: str) -> str:
    """Return the instance's name without judging the file: what does not parse has its folder's name."""
    import tomllib

    fallback = os.path.basename(os.path.dirname(os.path.realpath(config))) or "kite"
    try:
        status = os.stat(config)
        if not stat.S_ISREG(status.st_mode):
            return fallback
        with open(config, "rb") as file:
            content = file.read().decode("utf-8")
        if "[instance]" not in content and "instance" not in content:
            return fallback
        name = tomllib.loads(content).get("instance", {}).get("name", fallback)
    except (OSError, ValueError, RecursionError, AttributeError):
        return fallback
    good = isinstance(name, str) and name.strip() and "/" not in name and name not in (".", "..")
    return name if good else fallback


def judge_state_dir(path: str) -> bool:
    """Return False when the directory is not there; a Failure 77 when it is not safely this user's own.

    Never repairs: a directory that others may write to may already hold what they put there.
    """
    try:
        link = os.lstat(path)
        status = os.stat(path)
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise Failure(PERMISSION, f"{path} is no directory", "name another with --state-dir") from error
    except OSError as error:
        raise Failure(PERMISSION, f"can't look at {path}: {(error.strerror or '').lower()}") from error
    me = os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid != me:
        owner = _owner(link.st_uid)
        raise Failure(PERMISSION, f"{path} is a symbolic link made by {owner}", "remove it or name another directory")
    if not stat.S_ISDIR(status.st_mode):
        raise Failure(PERMISSION, f"{path} is no directory", "name another with --state-dir")
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != me:
        raise Failure(
            PERMISSION,
            f"{path} belongs to {_owner(status.st_uid)} (mode {mode:04o}), not to {_owner(me)}",
            "run as its owner, or name another directory with --state-dir",
        )
    if mode & 0o022:
        raise Failure(
            PERMISSION,
            f"others may write to {path} (owner {_owner(me)}, mode {mode:04o})",
            f"make sure nothing foreign is in it, then: chmod 700 {shlex.quote(path)}",
        )
    return True


def _owner(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
