"""Ownership of one key: data and guard live in one record, so each step is one compare-and-swap.

States: idle → running → idle | done | failed; running → interrupted → running (by a recovery only).
Laws: the epoch only rises; a write needs the guard of the present epoch; an item of `data.items` is replaced
only within the chain of epochs (claim, then its recoveries) that wrote it.
Source: spec 70 §2-3, 05 §7 and §9, cases F-01 … F-11.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from .facts import (
    Decision,
    Guard,
    Record,
    Refuse,
    Repeat,
    Write,
    check_name,
    conflict,
    fenced,
    invalid,
    remember,
    remembered,
    too_large,
)
from .replica import same_token

IDLE: Final = "idle"
RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
DONE: Final = "done"
FAILED: Final = "failed"
RELEASED: Final = (IDLE, DONE, FAILED)


def decide_create(record: Record | None, *, key: str, data: Any, route_key: str | None, epoch_floor: int) -> Decision:
    """Make a key. `epoch_floor`: no epoch below it is ever given out again, whatever became of an older store."""
    if record is not None:
        return conflict("exists", state=record["state"])
    if not isinstance(data, dict):
        return invalid("data", "must be an object")
    made: Record = {
        "key": key,
        "state": IDLE,
        "owner": None,
        "epoch": epoch_floor,
        "chain": epoch_floor,
        "route_key": route_key,
        "checkpoint": None,
        "data": {},
        "writers": {},
        "recovery": None,
        "nonces": [],
        "revision": 1,
    }
    refusal = _merge(made, data) or too_large(made)
    if refusal is not None:
        return refusal
    return Write(made, {"key": key, "state": IDLE, "epoch": epoch_floor, "revision": 1})


def _merge(record: Record, data: dict[str, Any]) -> Refuse | None:
    """Set members of the data; items go in by `append` alone once they are there."""
    items = data.get("items")
    if items is not None:
        if not isinstance(items, list):
            return invalid("data.items", "must be a list")
        refusal = _append({**record, "data": {**record["data"], "items": []}, "writers": {}}, items)
        if refusal is not None:
            return refusal
        record["writers"] = {item["id"]: record["epoch"] for item in items}
    record["data"] = {**record["data"], **copy.deepcopy(data)}
    return None


def _append(record: Record, items: Any) -> Refuse | None:
    """Add items, or replace them in place where this chain of epochs wrote them."""
    if not isinstance(items, list):
        return invalid("append", "must be a list of objects with `id`")
    kept = list(record["data"].get("items", ()))
    places = {item["id"]: index for index, item in enumerate(kept)}
    writers = dict(record["writers"])
    for item in items:
        if not isinstance(item, dict):
            return invalid("append", "must be a list of objects with `id`")
        refusal = check_name("append.id", item.get("id"))
        if refusal is not None:
            return refusal
        name = item["id"]
        if name not in places:
            places[name] = len(kept)
            kept.append(item)
        elif writers.get(name, -1) < record["chain"]:
            return invalid("append.id", f"{name} was written by an earlier owner and can't be replaced")
        else:
            kept[places[name]] = item
        writers[name] = record["epoch"]
    record["data"] = {**record["data"], "items": kept}
    record["writers"] = writers
    return None


def _given(record: Record) -> dict[str, Any]:
    owner = record["owner"]
    return {
        "key": record["key"],
        "guard": {"replica_id": owner["replica_id"], "token": owner["token"], "epoch": record["epoch"]},
        "state": RUNNING,
        "data": record["data"],
        "checkpoint": record["checkpoint"],
        "revision": record["revision"],
    }


def _hand_over(record: Record, *, replica_id: str, token: str, since: str) -> Record:
    epoch = record["epoch"] + 1
    owner = {"replica_id": replica_id, "token": token, "since": since}
    return {**record, "state": RUNNING, "owner": owner, "epoch": epoch, "revision": record["revision"] + 1}


def decide_claim(
    record: Record | None, *, key: str, replica_id: str, token: str, since: str, nonce: str | None
) -> Decision:
    """Take an idle key: epoch + 1 and a fresh token, before the task starts. The replica was checked by the caller."""
    if record is None:
        return invalid("key", f"{key} does not exist; create it first")
    before = remembered(record, "claim", nonce, replica_id)
    if before is not None and record["epoch"] == before["epoch"] and record["state"] == RUNNING:
        return Repeat(_given(record))
    if record["state"] == RUNNING:
        owner = {"replica_id": record["owner"]["replica_id"], "since": record["owner"]["since"]}
        return conflict("running", owner=owner, state=RUNNING)
    if record["state"] == INTERRUPTED:
        return conflict("interrupted", owner=None, state=INTERRUPTED)
    if record["state"] in (DONE, FAILED):
        return conflict("finished", owner=None, state=record["state"])
    claimed = _hand_over(record, replica_id=replica_id, token=token, since=since)
    claimed["chain"] = claimed["epoch"]
    claimed["recovery"] = None
    remember(claimed, "claim", nonce, replica_id, {"epoch": claimed["epoch"]})
    return Write(claimed, _given(claimed))


def check_guard(record: Record | None, guard: Guard, *, replica_alive: bool, key: str) -> Refuse | None:
    """Refuse a bearer that does not own the key now; the first reason that applies, in the order of spec 05 §9."""
    if record is None:
        return invalid("key", f"{key} does not exist")
    if not replica_alive:
        return fenced("expired_replica", record["epoch"])
    if guard.epoch != record["epoch"]:
        return fenced("stale_owner", record["epoch"])
    owner = record["owner"]
    if owner is None or owner["replica_id"] != guard.replica_id or not same_token(owner["token"], guard.token):
        return fenced("wrong_token", record["epoch"])
    if record["state"] != RUNNING:
        return fenced("not_running", record["epoch"])
    return None


def decide_write(
    record: Record | None, guard: Guard, params: dict[str, Any], *, key: str, replica_alive: bool
) -> Decision:
    """Change the data of an owned key: state, data members, items, checkpoint; all of it or nothing."""
    nonce = params.get("nonce")
    before = None if record is None else remembered(record, "write", nonce, guard.token)
    if before is not None:
        return Repeat(before)
    refusal = check_guard(record, guard, replica_alive=replica_alive, key=key)
    if refusal is not None or record is None:
        return refusal or invalid("key", "does not exist")
    if params.get("state", RUNNING) not in (RUNNING, *RELEASED):
        return invalid("state", "must be running, idle, done or failed")
    written = {**record, "revision": record["revision"] + 1}
    if "data" in params:
        if not isinstance(params["data"], dict):
            return invalid("data", "must be an object")
        if "items" in params["data"]:
            return invalid("data.items", "items are added by `append`")
        refusal = _merge(written, params["data"])
    if refusal is None and "append" in params:
        refusal = _append(written, params["append"])
    if "checkpoint" in params:
        written["checkpoint"] = params["checkpoint"]
    if params.get("state", RUNNING) != RUNNING:
        written["state"] = params["state"]
    answer = {"revision": written["revision"], "epoch": written["epoch"]}
    remember(written, "write", nonce, guard.token, answer)
    refusal = refusal or too_large(written)
    return refusal or Write(written, answer)


def decide_release(
    record: Record | None, guard: Guard, *, key: str, state: Any, replica_alive: bool, nonce: str | None
) -> Decision:
    """Give a key back: idle, or finished as done or failed."""
    if state not in RELEASED:
        return invalid("state", "must be idle, done or failed")
    before = None if record is None else remembered(record, "release", nonce, guard.token)
    if before is not None:
        return Repeat(before)
    refusal = check_guard(record, guard, replica_alive=replica_alive, key=key)
    if refusal is not None or record is None:
        return refusal or invalid("key", "does not exist")
    released = {**record, "state": state, "revision": record["revision"] + 1}
    answer = {"state": state, "revision": released["revision"]}
    remember(released, "release", nonce, guard.token, answer)
    return Write(released, answer)


def decide_interrupt(
    record: Record, *, recovery_id: str, recovery_token: str, cause: str, checkpoint: Any = ..., open_call: Any = None
) -> Write:
    """Close a running key to `interrupted` under one recovery. The caller has seen this owner go."""
    link = {
        "id": recovery_id,
        "token": recovery_token,
        "checkpoint_epoch": record["epoch"],
        "cause": cause,
        "open_call": open_call,
    }
    closed = {**record, "state": INTERRUPTED, "recovery": link, "revision": record["revision"] + 1}
    if checkpoint is not ...:
        closed["checkpoint"] = checkpoint
    return Write(closed, {"recovery_id": recovery_id})


def decide_recovery_claim(
    record: Record | None,
    *,
    recovery_id: str,
    recovery_token: str,
    checkpoint_epoch: int,
    replica_id: str,
    token: str,
    since: str,
    nonce: str | None,
) -> Decision:
    """Take an interrupted key by its recovery: one CAS; exactly one wins, epoch + 1, the item chain goes on."""
    if record is None:
        return conflict("wrong_recovery")
    link = record["recovery"]
    before = remembered(record, "recovery.claim", nonce, replica_id)
    if before is not None and record["epoch"] == before["epoch"] and record["state"] == RUNNING and link is not None:
        return Repeat({**_given(record), "cause": link["cause"], "open_call": link["open_call"]})
    if record["state"] == RUNNING:
        owner = {"replica_id": record["owner"]["replica_id"], "since": record["owner"]["since"]}
        return conflict("running", owner=owner, state=RUNNING)
    if (
        record["state"] != INTERRUPTED
        or link is None
        or link["id"] != recovery_id
        or not same_token(link["token"], recovery_token)
        or link["checkpoint_epoch"] != checkpoint_epoch
    ):
        return conflict("wrong_recovery", owner=None, state=record["state"])
    claimed = _hand_over(record, replica_id=replica_id, token=token, since=since)
    remember(claimed, "recovery.claim", nonce, replica_id, {"epoch": claimed["epoch"]})
    return Write(claimed, {**_given(claimed), "cause": link["cause"], "open_call": link["open_call"]})


def shown(record: Record) -> dict[str, Any]:
    """Return what anybody may see of a key: no token."""
    names = ("key", "state", "epoch", "revision", "route_key", "checkpoint", "data")
    owner, link = record["owner"], record["recovery"]
    running = owner is not None and record["state"] == RUNNING
    return {
        **{name: record[name] for name in names},
        "owner": {"replica_id": owner["replica_id"], "since": owner["since"]} if running else None,
        "recovery_id": link["id"] if link is not None else None,
    }
