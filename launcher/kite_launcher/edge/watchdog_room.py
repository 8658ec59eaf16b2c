"""Watches the watchdog: one that is silent while its process lives is replaced, as it would do for others.

Its health is asked over the kernel; three silences in a row end it. What was missed because this launcher stood still,
or because the kernel is away or did not answer either, doesn't count. Source: spec 50 §2, 60-watchdog (mutual watch).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from kite_launcher.edge.house import House
from kite_launcher.edge.unit import Unit
from kite_launcher.edge.wire import KernelWire

PROBES: Final = 3
EVERY_S: Final = 15.0  # seconds, scaled, as the watchdog itself asks modules
AFTER_MISS_S: Final = 5.0  # seconds, scaled
DUE_S: Final = 5.0  # seconds, scaled
FLOOR_S: Final = 1.0  # below it a busy machine looks like a hung watchdog
SILENT: Final = ("offline", "unknown_module", "deadline")


class WatchdogRoom:
    """Attends the watchdog's unit beside the unit's own task. `unit` gives it; None = switched off."""

    def __init__(self, unit: Callable[[], Unit | None], house: House, wire: KernelWire, *, scale: float) -> None:
        self._unit, self._house, self._wire = unit, house, wire
        self._every_s = max(FLOOR_S, EVERY_S * scale)
        self._after_miss_s = max(FLOOR_S, AFTER_MISS_S * scale)
        self._due_s = max(FLOOR_S, DUE_S * scale)

    async def watch(self) -> None:
        """Ask for as long as this launcher lives. Cancel: safe."""
        missed, last = 0, None
        while True:
            pause_s = self._after_miss_s if missed else self._every_s
            due = trio.current_time() + pause_s
            await trio.sleep_until(due)
            unit = self._unit()
            run = unit.current if unit is not None else None
            if unit is None or run is None or not run.ready or run is not last or not self._wire.connected:
                missed, last = 0, run
                continue
            late = trio.current_time() - due > self._due_s / 2
            begin = trio.current_time()
            silent = _silent(await self._wire.call("watchdog.health", {}, timeout_s=self._due_s))
            if not silent:
                missed = 0
            elif not late and trio.current_time() - begin < 2 * self._due_s and await self._kernel_answers():
                missed += 1
                self._house.journal.warning("the watchdog did not answer", name=unit.name, probes=missed)
                if missed >= PROBES and unit.current is run:
                    why = f"{PROBES} health calls in a row unanswered while its process lives"
                    self._house.alarm(unit.name, "hang", why)
                    unit.order_restart("launcher", counted="health", detail=why)
                    missed = 0

    async def _kernel_answers(self) -> bool:
        """Say whether the silence is the watchdog's own: a kernel that is asked something itself answers."""
        answer = await self._wire.call("registry.get_module", {"module_id": "launcher"}, timeout_s=self._due_s)
        return answer is not None


def _silent(answer: dict[str, Any] | None) -> bool:
    """Say whether an answer means that nobody answered; an error of the watchdog's own is an answer."""
    if answer is None:
        return True
    error = answer.get("error")
    data = error.get("data") if isinstance(error, dict) else None
    return isinstance(data, dict) and data.get("reason") in SILENT and "outcome" in data
