"""Memory ceilings over whole trees, and the family tree that outlives a vanished leader.

One look at /proc serves all modules. What is seen below a module is remembered by identity, so that a helper which
later leaves group, session and environment behind still counts as the module's when it ends.
Source: spec 50 §2; case S-31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from kite_launcher.core.proc import Tree, members
from kite_launcher.edge.house import House
from kite_launcher.edge.unit import Unit

QUICK_S: Final = 0.5  # where a ceiling is set: a burst within a second is seen
SLOW_S: Final = 5.0
KNOWN_MAX: Final = 1000  # identities remembered of one module


async def watch_trees(house: House, units: Callable[[], Iterable[Unit]]) -> None:
    """Look at every module's tree until cancelled; one over its ceiling is restarted gracefully."""
    slow_due = 0.0
    while True:
        await trio.sleep(QUICK_S)
        alive = [unit for unit in units() if unit.current is not None]
        limited = [unit for unit in alive if unit.spec.module is not None and unit.spec.module.memory_max_bytes]
        now = trio.current_time()
        if now < slow_due and not limited:
            continue
        look_at = limited if now < slow_due else alive
        if now >= slow_due:
            slow_due = now + SLOW_S * max(1.0, len(alive) / 50)  # a look costs units × processes
        if look_at:
            snapshot = await house.processes.snapshot()
            spare = house.spare()
            for unit in look_at:
                run = unit.current
                if run is None:
                    continue
                rows = members(snapshot, Tree(unit.name, run.identity, unit.known), spare=spare)
                if len(unit.known) < KNOWN_MAX:
                    unit.known |= {row.identity for row in rows}
                _judge(house, unit, tuple(row.pid for row in rows))


def _judge(house: House, unit: Unit, pids: tuple[int, ...]) -> None:
    limit = unit.spec.module.memory_max_bytes if unit.spec.module is not None else None
    if limit is None:
        return
    held = house.processes.memory_bytes(pids)
    if held > limit:
        detail = f"holds {held / 2**20:.0f} MiB, allowed {limit / 2**20:.0f} MiB"
        unit.order_restart("memory", counted="memory", detail=detail)
