"""The environment of a child: the launcher's own without what was meant for the launcher alone, plus Kite's.

Source: spec 05 §4; cases S-60, S-87.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from kite_launcher.core.proc import MARK, MODULE

# What the launcher's own parent said to the launcher: a child that read it would speak to the wrong one.
_NOT_PASSED_ON: Final = ("NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "KITE_")


@attrs.frozen
class Handed:
    """What Kite itself tells one child. None leaves the variable out."""

    module_id: str
    instance: str
    state_dir: str
    url: str
    token_fd: int | None = None
    token_file: str | None = None
    options_file: str | None = None
    notify_socket: str | None = None
    watchdog_s: float | None = None
    replica: int | None = None


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that may be passed on."""
    return {name: value for name, value in environ.items() if not name.startswith(_NOT_PASSED_ON)}


def child_env(environ: Mapping[str, str], own: Mapping[str, str], handed: Handed, *, inherit: bool) -> dict[str, str]:
    """Return the whole environment of a child; `own` is the module's `env`, over what is inherited."""
    env = inherited(environ) if inherit else {}
    env.update(own)
    kite = {
        MODULE: handed.module_id,
        MARK: handed.instance,
        "KITE_STATE_DIR": handed.state_dir,
        "KITE_URL": handed.url,
        "KITE_TOKEN_FD": None if handed.token_fd is None else str(handed.token_fd),
        "KITE_TOKEN_FILE": handed.token_file,
        "KITE_OPTIONS_FILE": handed.options_file,
        "KITE_REPLICA": None if handed.replica is None else str(handed.replica),
        "NOTIFY_SOCKET": handed.notify_socket,
        "WATCHDOG_USEC": None if handed.watchdog_s is None else str(int(handed.watchdog_s * 1_000_000)),
    }
    env.update({name: value for name, value in kite.items() if value is not None})
    return env
