"""Which faults come when: a pure function of the seed, so that a run that failed can be run again.

Source: spec 60-watchdog (chaos as a command for users' own instances).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

# How often a fault of a class is chosen. A lost launcher costs the whole grace, so it comes more rarely.
WEIGHTS: Final[dict[str, int]] = {
    "kill module": 6,
    "stop module": 3,
    "kill kernel": 3,
    "stop kernel": 2,
    "kill watchdog": 2,
    "stop watchdog": 2,
    "kill logkeeper": 2,
    "kill launcher": 1,
    "stop launcher": 1,
    "cut wire": 4,
    "delay wire": 2,
    "tear wire": 3,
    "fill disk": 1,
    "step clock": 1,
}
CLASSES: Final = tuple(WEIGHTS)
# Kills of one target in a window that no restart budget of a usual instance is used up by: kernel, watchdog and keeper
# have 5 in 60 s, modules 5 in 60 s by default, and the watchdog starts 5 fresh instances in 10 min.
PACE: Final[dict[str, tuple[int, float]]] = {"launcher": (4, 600.0)}
PACE_ELSE: Final = (4, 60.0)
PAUSE_MAX_S: Final = 3.0  # between a fault's end and the next one: random phases, health polls and back-offs included
HOLD_MAX_S: Final = 3.0  # how long something stays stopped, late or full; times the instance's scale, at least 0.3 s


@attrs.frozen
class Fault:
    """One deed: what, to whom, after which pause, and for how long where it lasts."""

    number: int
    what: str
    target: str
    pause_s: float
    hold_s: float

    def words(self) -> str:
        """Say it in a line for people."""
        held = f" for {self.hold_s:.1f} s" if self.what.split()[0] in ("stop", "delay", "fill") else ""
        return f"{self.what.split()[0]} {self.target}{held}"


class Pace:
    """Keeps kills below what restart budgets allow: a budget that is used up ends things as it should.

    `free` names targets whose budget has no end.
    """

    def __init__(self, free: Sequence[str] = ()) -> None:
        self._free = frozenset(free)
        self._kills: dict[str, list[float]] = {}

    def allows(self, fault: Fault, *, now: float) -> bool:
        """Say whether a fault may be done now, and count it if so."""
        if not fault.what.startswith("kill") or fault.target in self._free:
            return True
        most, window_s = PACE.get(fault.target, PACE_ELSE)
        recent = [at for at in self._kills.get(fault.target, []) if now - at < window_s]
        if len(recent) >= most:
            return False
        self._kills[fault.target] = [*recent, now]
        return True


def next_fault(
    number: int, *, random: Callable[[], float], classes: Sequence[str], modules: Sequence[str], scale: float
) -> Fault:
    """Choose the next fault. `random` gives [0, 1) and is asked exactly four times, whatever is chosen.

    Raises: ValueError where nothing is left to choose from.
    """
    possible = [name for name in classes if modules or not name.endswith(" module")]
    if not possible:
        raise ValueError("no fault is possible: nothing to choose from")
    pick, whom, pause, hold = random(), random(), random(), random()
    left = pick * sum(WEIGHTS[name] for name in possible)
    what = possible[-1]
    for name in possible:
        left -= WEIGHTS[name]
        if left < 0:
            what = name
            break
    target = what.split()[1]
    if target == "module":
        target = modules[int(whom * len(modules))]
    hold_s = max(0.3, HOLD_MAX_S * scale) * (0.3 + 0.7 * hold)
    return Fault(number, what, target, pause * max(0.3, PAUSE_MAX_S * scale), hold_s)
