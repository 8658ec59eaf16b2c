"""What `up` hands to the supervisor, and what a start that is refused looks like.

The entry is `kite_launcher.edge.supervisor.run(spec, options) -> exit code`. It prints a refusal as one line a
mistake on stderr and returns its exit code; from the moment that `<state-dir>/launcher.sock` answers, the instance
has the lock and everything further is told there (`status`, `wait`).
Source: spec 05 §3, §5; spec 50 §1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from kite_launcher.core.spec import Loaded

EXIT_OK: Final = 0
EXIT_NO: Final = 1
EXIT_FAILED: Final = 2
EXIT_NOTHING: Final = 3
EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69
EXIT_BUG: Final = 70
EXIT_RUNNING: Final = 75
EXIT_PERMISSION: Final = 77
EXIT_CONFIG: Final = 78


@attrs.frozen
class LaunchOptions:
    """How one instance is to be run.

    `state_dir` is an absolute path (any bytes, surrogate-escaped). `load` reads kite.toml anew for a reload.
    `restart_argv` is the command that starts this instance again, detached; it is what launch.json records for the
    watchdog. `detached` means that no terminal listens: no keys, no closing of it.
    """

    state_dir: str
    load: Callable[[], Loaded]
    restart_argv: tuple[str, ...]
    detached: bool = False


@attrs.frozen
class Refusal:
    """A start or an order that is refused: its exit code, what is wrong, the way out; `lines` for one a mistake."""

    exit: int
    text: str
    hint: str = ""
    lines: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the one line that a person reads."""
        return f"{self.text}; {self.hint}" if self.hint else self.text


class RefusedError(Exception):
    """Carries a `Refusal` to the edge that prints it; the user's or the machine's fault, never a bug."""

    def __init__(self, exit_code: int, text: str, hint: str = "", lines: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.refusal = Refusal(exit_code, text, hint, lines)
