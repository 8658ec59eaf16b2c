"""What to do about the instance: the table of spec 60 §2, one row a line, and nothing else decides.

`Watch` keeps the few facts that the rows ask for; `decide` reads the table. Both are pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import attrs

from kite_watchdog._contract import SHUTDOWN_FINAL

LAUNCHER: Final = "launcher"
# Attempts in a row that failed, the cut itself being the first, before the kernel counts as unreachable. One refused
# connect is a kernel in the middle of its restart.
UNREACHABLE_ATTEMPTS: Final = 3
ASK_AFTER_S: Final = 60.0  # spec 60 §2, last row


class Action(Enum):
    """What is to be done about the instance."""

    NOTHING = "nothing"
    FOLLOW = "follow"  # a normal exit: acknowledge, leave
    START = "start"  # a fresh instance with the recorded command
    ASK = "ask"  # the launcher lives and the kernel does not: remind it


class Lost(Enum):
    """Why `module.shutdown` came, as far as it matters here."""

    NO = "no"
    LAUNCHER = "launcher_lost"
    ORDERED = "ordered"  # instance_stop, module_stop: somebody wants this


class Kernel(Enum):
    """How the watchdog's own wire stands."""

    OPEN = "open"
    AWAY = "away"  # cut; too early to say more
    UNREACHABLE = "unreachable"  # by the strategy table, and for longer than the debounce


@attrs.frozen
class Facts:
    """Everything that a decision about the instance may depend on."""

    lost: Lost
    exiting: bool  # the launcher said module.exiting and has not been ready since
    kernel: Kernel
    launcher_alive: bool  # its process: pid, start ticks and boot id
    away_s: float = 0.0
    ask_after_s: float = ASK_AFTER_S


@attrs.frozen
class Row:
    """One row: None in a column means any."""

    why: str
    lost: Lost | None
    exiting: bool | None
    kernel: Kernel | None
    launcher_alive: bool | None
    action: Action


TABLE: Final = (
    Row("somebody stops the instance or this module", Lost.ORDERED, None, None, None, Action.FOLLOW),
    Row("a normal exit: follow it out", Lost.LAUNCHER, True, None, None, Action.FOLLOW),
    Row("the launcher was lost without module.exiting", Lost.LAUNCHER, False, None, None, Action.START),
    Row("the wire is open: marks decide nothing", Lost.NO, None, Kernel.OPEN, None, Action.NOTHING),
    Row("just cut: it may be a restart of the kernel", Lost.NO, None, Kernel.AWAY, None, Action.NOTHING),
    Row(
        "kernel unreachable, launcher alive: the launcher's to mend",
        Lost.NO,
        None,
        Kernel.UNREACHABLE,
        True,
        Action.ASK,
    ),
    Row("kernel and launcher gone after module.exiting", Lost.NO, True, Kernel.UNREACHABLE, False, Action.FOLLOW),
    Row("kernel unreachable and the launcher's process gone", Lost.NO, False, Kernel.UNREACHABLE, False, Action.START),
)


def decide(facts: Facts) -> tuple[Action, str]:
    """Give the action of the first row that fits, and its reason."""
    for row in TABLE:
        columns = (
            (row.lost, facts.lost),
            (row.exiting, facts.exiting),
            (row.kernel, facts.kernel),
            (row.launcher_alive, facts.launcher_alive),
        )
        if all(want is None or want is have for want, have in columns):
            if row.action is Action.ASK and facts.away_s < facts.ask_after_s:
                return Action.NOTHING, row.why
            return row.action, row.why
    raise AssertionError(f"no row for {facts}")  # should never run: the table is complete, a test walks all facts


class Watch:
    """The marks that events leave. Feeding an event never decides anything. Source: spec 60 §2, 10 §7."""

    def __init__(self, *, debounce_s: float) -> None:
        self.offline = False  # module.offline {launcher}: a mark, it may be a network blip
        self.exiting = False
        self.lost = Lost.NO
        self._debounce_s = debounce_s
        self._away_since: float | None = None
        self._attempts = 0

    def on_event(self, name: str, source: str, data: dict[str, Any]) -> None:
        """Take one system event; everything else, and whatever a module merely claims, leaves no mark."""
        if name == "module.shutdown" and source == "kernel":
            reason = data.get("reason")
            if reason == Lost.LAUNCHER.value:
                self.lost = Lost.LAUNCHER
            elif reason in SHUTDOWN_FINAL:
                self.lost = Lost.ORDERED
            return
        if data.get("module_id") != LAUNCHER or source not in ("kernel", LAUNCHER):
            return
        if name == "module.offline":
            self.offline = True
        elif name == "module.ready":
            self.offline = self.exiting = False
            self.lost = Lost.NO if self.lost is Lost.LAUNCHER else self.lost
        elif name == "module.exiting":
            self.exiting = True

    def on_open(self) -> None:
        """The wire is open and in step."""
        self._away_since, self._attempts = None, 0

    def on_failure(self, *, now: float) -> None:
        """The wire was cut, or an attempt to open it failed."""
        self._attempts += 1
        if self._away_since is None:
            self._away_since = now

    def facts(self, *, now: float, launcher_alive: bool, ask_after_s: float = ASK_AFTER_S) -> Facts:
        """Collect what `decide` asks for."""
        away_s = 0.0 if self._away_since is None else now - self._away_since
        kernel = Kernel.OPEN if self._away_since is None else Kernel.AWAY
        if self._attempts >= UNREACHABLE_ATTEMPTS and away_s >= self._debounce_s:
            kernel = Kernel.UNREACHABLE
        return Facts(self.lost, self.exiting, kernel, launcher_alive, away_s, ask_after_s)
