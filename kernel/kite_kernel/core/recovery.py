"""Recoveries: what an interruption leaves behind, handed to one dispatcher at a time until it is done or abandoned.

States: pending → leased → claimed → done | abandoned; leased → pending when its lease runs out; claimed → pending when
its worker is lost. The id follows from key and epoch, so that a step repeated after a crash finds the record it made.
Source: spec 70 §2-3, cases F-14, F-17 … F-22.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from .facts import Decision, Record, Repeat, Write, conflict

PENDING: Final = "pending"
LEASED: Final = "leased"
CLAIMED: Final = "claimed"
DONE: Final = "done"
ABANDONED: Final = "abandoned"
OPEN: Final = (PENDING, LEASED, CLAIMED)
OUTCOMES: Final = (DONE, ABANDONED)


def recovery_id_of(key: str, epoch: int) -> str:
    """Return the one name of the recovery for this interruption."""
    return hashlib.sha256(f"{key}\0{epoch}".encode()).hexdigest()[:32]


def decide_open(
    record: Record | None,
    *,
    recovery_id: str,
    key: str,
    token: str,
    checkpoint_epoch: int,
    cause: str,
    route_key: str | None,
    not_before: str,
) -> Decision:
    """Make the record, or open the one again whose worker was lost: its attempts go on counting."""
    if record is None:
        made = {
            "recovery_id": recovery_id,
            "key": key,
            "token": token,
            "checkpoint_epoch": checkpoint_epoch,
            "cause": cause,
            "route_key": route_key,
            "state": PENDING,
            "not_before": not_before,
            "attempts": 0,
            "dispatcher": None,
            "target": None,
            "why": None,
        }
        return Write(made, {"recovery_id": recovery_id})
    if record["state"] in OUTCOMES:
        return conflict("finished", state=record["state"])
    if record["state"] == PENDING and record["checkpoint_epoch"] == checkpoint_epoch:
        return Repeat({"recovery_id": recovery_id})
    again = {
        **record,
        "token": token,
        "checkpoint_epoch": checkpoint_epoch,
        "cause": cause,
        "state": PENDING,
        "not_before": not_before,
        "dispatcher": None,
        "target": None,
    }
    return Write(again, {"recovery_id": recovery_id})


def decide_lease(record: Record, *, dispatcher: str, token: str, target: str | None, attempts_max: int) -> Write | None:
    """Give a due record to one dispatcher under a fresh token, or abandon it after too many tries; None = not open."""
    if record["state"] not in (PENDING, LEASED):
        return None
    if record["attempts"] >= attempts_max:
        return decide_finish(record, outcome=ABANDONED, why=f"given up after {record['attempts']} attempts")
    leased = {
        **record,
        "state": LEASED,
        "dispatcher": dispatcher,
        "token": token,
        "target": target,
        "attempts": record["attempts"] + 1,
    }
    return Write(leased, {"recovery_id": record["recovery_id"]})


def decide_claimed(record: Record) -> Write | None:
    """Note that the key's own record went to a worker; None = noted before."""
    if record["state"] not in (PENDING, LEASED):
        return None
    return Write({**record, "state": CLAIMED}, {"state": CLAIMED})


def decide_reopen(record: Record) -> Write | None:
    """Open again what counts as claimed while its key is interrupted; None = it is open."""
    if record["state"] != CLAIMED:
        return None
    return Write({**record, "state": PENDING, "dispatcher": None, "target": None}, {"state": PENDING})


def decide_finish(record: Record, *, outcome: str, why: str | None) -> Write:
    """Close a record for good."""
    return Write({**record, "state": outcome, "why": why}, {"state": outcome})


def retry_delay_s(attempts: int, *, quiet_s: float, lease_s: float) -> float:
    """Return the wait before the next lease: doubles from the quiet window up to a lease's length."""
    return quiet_s if attempts == 0 else min(lease_s, quiet_s * 2.0 ** min(attempts - 1, 30))


def route(route_key: str, replicas: Iterable[str]) -> str | None:
    """Choose a replica by rendezvous hash: every dispatcher agrees, and who leaves moves only its own keys."""

    def weight(replica_id: str) -> bytes:
        return hashlib.sha256(f"{route_key}\0{replica_id}".encode()).digest()

    return max(replicas, key=lambda replica_id: (weight(replica_id), replica_id), default=None)


def shown(record: Record) -> dict[str, Any]:
    """Return what anybody may see of a recovery: no token."""
    return {name: value for name, value in record.items() if name != "token"}


def offered(record: Record, *, lease_s: float) -> dict[str, Any]:
    """Return what the dispatcher that leased it gets."""
    names = ("recovery_id", "key", "token", "checkpoint_epoch", "cause", "route_key", "target")
    return {**{name: record[name] for name in names}, "lease_s": lease_s}
