"""Replicas: one record for each process start that may own things. `expired` and `stopped` never come back to life.

States: active ⇄ suspect → expired; active or suspect → stopped. Source: spec 70 §2-3, cases F-05, F-12.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

from .facts import Decision, Record, Refuse, Write, conflict, fenced, invalid

ACTIVE: Final = "active"
SUSPECT: Final = "suspect"
EXPIRED: Final = "expired"
STOPPED: Final = "stopped"
ALIVE: Final = (ACTIVE, SUSPECT)


def decide_register(
    record: Record | None, *, replica_id: str, token: str, module_id: str, meta: Any, since: str
) -> Decision:
    """Make a new replica; an id is used once, for ever. `token` is fresh and random, `since` a stamp."""
    if record is not None:
        return conflict("exists", state=record["state"]) if record["state"] in ALIVE else fenced("expired_replica")
    made = {
        "replica_id": replica_id,
        "token": token,
        "module_id": module_id,
        "state": ACTIVE,
        "tasks": 0,
        "told": None,
        "meta": meta,
        "beat": 0,
        "since": since,
    }
    return Write(made, {"replica_id": replica_id, "token": token})


def check_replica(record: Record | None, token: str) -> Refuse | None:
    """Refuse a bearer that is not this replica, alive. A replica that nobody knows counts as expired."""
    if record is None or record["state"] not in ALIVE:
        return fenced("expired_replica")
    if not same_token(record["token"], token):
        return fenced("wrong_token")
    return None


def same_token(known: str, given: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(known.encode(), given.encode("utf-8", "surrogatepass"))


def decide_heartbeat(record: Record | None, *, token: str, tasks: Any, told: Any) -> Decision:
    """Count a sign of life; it brings a suspect back."""
    refusal = check_replica(record, token)
    if refusal is not None or record is None:
        return refusal or fenced("expired_replica")
    if type(tasks) is not int or tasks < 0:
        return invalid("tasks", "must be an integer from 0")
    beaten = {**record, "state": ACTIVE, "beat": record["beat"] + 1, "tasks": tasks, "told": told}
    return Write(beaten, {"state": ACTIVE})


def decide_leave(record: Record | None, *, token: str) -> Decision:
    """End a replica by its own wish."""
    refusal = check_replica(record, token)
    if refusal is not None or record is None:
        return refusal or fenced("expired_replica")
    return Write({**record, "state": STOPPED, "tasks": 0}, {"state": STOPPED})


def decide_silent(record: Record, *, silent_s: float, suspect_s: float, expire_s: float) -> Write | None:
    """Say what silence of this length means; None = nothing changes. The CAS on the revision seen lets a beat win."""
    if record["state"] not in ALIVE:
        return None
    if silent_s >= expire_s:
        return Write({**record, "state": EXPIRED, "tasks": 0}, {"state": EXPIRED})
    if silent_s >= suspect_s and record["state"] == ACTIVE:
        return Write({**record, "state": SUSPECT}, {"state": SUSPECT})
    return None


def shown(record: Record, *, beat_age_s: float | None) -> dict[str, Any]:
    """Return what anybody may see of a replica: no token."""
    row = {name: record[name] for name in ("replica_id", "state", "tasks", "meta", "module_id", "since")}
    return {**row, "beat_age_s": beat_age_s}
