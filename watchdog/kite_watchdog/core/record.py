"""`launch.json`, the record of how this instance is started again: bytes to a checked value.

Written by the launcher; whatever else stands there is refused with words, never run. Source: spec 60 (head), §2.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

RECORD_BYTES_MAX: Final = 4_194_304  # bytes; an argv may be long, this is beyond what exec takes
# What the instance gave to this process alone: a fresh launcher must not see it. With the mark in its environment
# its own clean-up would take it for a leftover.
OWN_PREFIXES: Final = ("KITE_", "LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET")


@attrs.frozen
class Identity:
    """Who a process is: a bare pid is nobody. Source: spec 00 §27."""

    pid: int
    start_ticks: int
    boot_id: str


@attrs.frozen
class Launch:
    """The recorded command, detached, with where it runs and which environment names it had."""

    argv: tuple[str, ...]
    cwd: str
    env_names: tuple[str, ...]
    launcher: Identity


@attrs.frozen
class Unusable:
    """The record can't be used, and why."""

    why: str


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(v, str) and "\0" not in v for v in value):
        return None
    return tuple(value)


def _identity(value: object) -> Identity | None:
    if not isinstance(value, dict):
        return None
    pid, ticks, boot = value.get("pid"), value.get("start_ticks"), value.get("boot_id")
    if type(pid) is not int or type(ticks) is not int or not isinstance(boot, str) or pid < 1:
        return None
    return Identity(pid, ticks, boot)


def decode_launch(raw: bytes) -> Launch | Unusable:
    """Read `launch.json`."""
    if len(raw) > RECORD_BYTES_MAX:
        return Unusable(f"launch.json holds {len(raw)} bytes")
    try:
        # The standard library here: a path that is no UTF-8 stands as a lone surrogate, which others refuse.
        value: Any = json.loads(raw)
    except (RecursionError, ValueError) as error:
        return Unusable(f"launch.json is no JSON: {error}")
    if not isinstance(value, dict) or value.get("schema") != 1:
        return Unusable("launch.json is no record of schema 1")
    argv, names, cwd = _texts(value.get("argv")), _texts(value.get("env_names", [])), value.get("cwd")
    if not argv or not argv[0]:
        return Unusable("launch.json holds no command")
    if names is None or not isinstance(cwd, str) or not cwd.startswith("/") or "\0" in cwd:
        return Unusable("launch.json holds no absolute folder or no list of environment names")
    launcher = _identity(value.get("launcher"))
    if launcher is None:
        return Unusable("launch.json does not say who the launcher is")
    return Launch(argv, cwd, names, launcher)


def environment(names: tuple[str, ...], own: dict[str, str]) -> dict[str, str]:
    """Give the fresh launcher what the old one had, as far as this process still has it, and nothing of its own."""
    return {n: own[n] for n in names if n in own and not n.startswith(OWN_PREFIXES)}
