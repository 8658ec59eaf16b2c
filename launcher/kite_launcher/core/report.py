"""What the launcher tells about the instance: `status --json` of 05 §3, from the units' states.

Laws: never `running` or `ready` with an empty pid; a module that a person stopped counts as wanted.
Source: spec 05 §3; cases S-59, S-70, S-79.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from kite_launcher.core.child import Child, State

_ON_THE_WAY: Final = (State.WAITING, State.STARTING, State.STOPPING, State.BACKOFF)


@attrs.frozen
class Facts:
    """What stands beside the units in a report. `troubles`: what keeps the whole from being well, in words."""

    instance: str
    url: str
    launcher_pid: int
    launcher_since: str
    epoch: object = None
    watchdog_enabled: bool = True
    troubles: tuple[str, ...] = ()
    grades: Mapping[str, str] = attrs.field(factory=dict[str, str])
    unwell: Mapping[str, str] = attrs.field(factory=dict[str, str])
    keeper_pid: int | None = None
    keeper_restarts: int = 0


def status(children: Mapping[str, Child], facts: Facts) -> dict[str, Any]:
    """Return the object of `status --json`. `children` holds the kernel, the watchdog and every module."""
    modules = [row(child, facts) for child in children.values() if child.role == "module"]
    kernel, watchdog = children.get("kernel"), children.get("watchdog")
    answer: dict[str, Any] = {
        "schema": 1,
        "instance": facts.instance,
        "state": overall(children.values(), facts),
        "url": facts.url,
        "launcher": {"pid": facts.launcher_pid, "since": facts.launcher_since},
        "kernel": {**_own(kernel), "epoch": facts.epoch},
        "watchdog": _own(watchdog) if facts.watchdog_enabled else {"pid": None, "state": "stopped", "restarts": 0},
        "logkeeper": {"pid": facts.keeper_pid, "restarts": facts.keeper_restarts},
        "modules": modules,
    }
    if facts.troubles:
        answer["why"] = "; ".join(facts.troubles)
    return answer


def overall(children: Iterable[Child], facts: Facts) -> str:
    """Return ok, degraded or failed."""
    found = "degraded" if facts.troubles or facts.unwell else "ok"
    for child in children:
        if child.state is State.FAILED:
            return "failed"
        own = child.role != "module"
        if child.state in _ON_THE_WAY or (own and child.state is not State.RUNNING):
            found = "degraded"
    return found


def row(child: Child, facts: Facts) -> dict[str, Any]:
    """Return one module's row."""
    return {
        "name": child.name,
        "role": child.role,
        "state": child.state.value,
        "ready": child.ready,
        "pid": child.identity.pid if child.identity is not None else None,
        "restarts": child.restarts,
        "since": child.since_utc,
        "grade": facts.grades.get(child.name),
        "why": facts.unwell.get(child.name) or child.note or child.why or None,
    }


def _own(child: Child | None) -> dict[str, Any]:
    if child is None:
        return {"pid": None, "state": "stopped", "restarts": 0}
    return {
        "pid": child.identity.pid if child.identity is not None else None,
        "state": child.state.value,
        "restarts": child.restarts,
        "since": child.since_utc,
        "why": child.why or None,
    }
