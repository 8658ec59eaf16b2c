"""`recovery.*`: what was interrupted is leased to one dispatcher, claimed by one worker, completed once.

Source: spec 05 §7, 70 §3, cases F-17 … F-22.
"""

from __future__ import annotations

from typing import Any, Final

from kite_kernel.core import ownership, recovery
from kite_kernel.core.facts import (
    Decision,
    Record,
    Refuse,
    Repeat,
    Write,
    conflict,
    fenced,
    invalid,
    is_integer,
    read_guard,
)
from kite_kernel.core.replica import same_token
from kite_kernel.methods.desk import OWNED, RECOVERY, Caller, Facts

from .ownership import check_bearer, count, listed, names, note_epoch

LEASE_MAX: Final = 100
STATES: Final = (*recovery.OPEN, *recovery.OUTCOMES)


async def list_recoveries(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Return recovery records without tokens, the open ones with the seconds until they are due."""
    del caller
    state = params.get("state")
    if state is not None and state not in STATES:
        return invalid("state", f"must be one of {', '.join(STATES)}")
    rows = await listed(facts, RECOVERY, "")
    if isinstance(rows, Refuse):
        return rows
    now = facts.clock()
    shown = []
    for row in rows:
        if state is None or row["state"] == state:
            due_at = facts.due_at.get(row["recovery_id"])
            shown.append(
                {**recovery.shown(row), "due_in_s": None if due_at is None else round(max(0.0, due_at - now), 3)}
            )
    return {"recoveries": shown}


async def lease(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Give due records to this dispatcher, each to one; what was tried too often is abandoned."""
    refusal = names(params, optional=("dispatcher",))
    if refusal is not None:
        return refusal
    dispatcher = params.get("dispatcher") or caller.module_id
    limit = params.get("limit", 1)
    if type(limit) is not int or not 1 <= limit <= LEASE_MAX:
        return invalid("limit", f"must be an integer from 1 to {LEASE_MAX}")
    offers: list[dict[str, Any]] = []
    for recovery_id in facts.due(facts.clock()):
        if len(offers) == limit:
            break
        leased = await _lease_one(facts, recovery_id, dispatcher)
        if isinstance(leased, Refuse):
            return leased
        if leased is not None:
            offers.append(recovery.offered(leased, lease_s=facts.times.lease_s))
    return {"recoveries": offers}


async def _lease_one(facts: Facts, recovery_id: str, dispatcher: str) -> Record | Refuse | None:
    """Lease a record, then put its fresh token into the key's record, against which a claim is judged."""
    token = facts.make_token()
    leased: list[Record] = []

    def decide(record: Record | None) -> Decision:
        if record is None or facts.due_at.get(recovery_id, float("inf")) > facts.clock():
            return conflict("wrong_recovery")
        target = recovery.route(record["route_key"] or record["key"], facts.active_replicas())
        decision = recovery.decide_lease(
            record, dispatcher=dispatcher, token=token, target=target, attempts_max=facts.times.attempts
        )
        if decision is None:
            return conflict("wrong_recovery")
        leased[:] = [decision.record]
        return decision

    answer = await facts.step(RECOVERY, recovery_id, decide)
    if isinstance(answer, Refuse):
        return answer if answer.reason != "wrong_recovery" else None
    record = leased[0]
    if record["state"] == recovery.ABANDONED:
        await give_up(facts, record)
        return None
    put = await facts.step(OWNED, record["key"], lambda owned: _with_token(owned, recovery_id, token))
    if isinstance(put, Refuse):
        return put if put.reason != "wrong_recovery" else None
    return record


def _with_token(owned: Record | None, recovery_id: str, token: str) -> Decision:
    if owned is None or owned["state"] != ownership.INTERRUPTED or owned["recovery"]["id"] != recovery_id:
        return conflict("wrong_recovery")
    return Write({**owned, "recovery": {**owned["recovery"], "token": token}}, {})


async def give_up(facts: Facts, record: Record) -> None:
    """Show an abandoned recovery: its key is failed, the alarm is said."""

    def decide(owned: Record | None) -> Decision:
        if owned is None or owned["recovery"] is None or owned["recovery"]["id"] != record["recovery_id"]:
            return Repeat({})
        if owned["state"] != ownership.INTERRUPTED:
            return Repeat({})
        return Write({**owned, "state": ownership.FAILED, "recovery": None, "revision": owned["revision"] + 1}, {})

    await facts.step(OWNED, record["key"], decide)
    facts.counts.abandoned += 1
    facts.tell("recovery.abandoned", {"recovery_id": record["recovery_id"], "key": record["key"], "why": record["why"]})


async def claim(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Take an interrupted key: exactly one of all who try."""
    del caller
    refusal = names(params, "recovery_id", "token", "replica_id", "replica_token", optional=("nonce",))
    if refusal is None and not is_integer(params.get("checkpoint_epoch")):
        refusal = invalid("checkpoint_epoch", "must be an integer from 0 to 2^63-1")
    refusal = refusal or await check_bearer(facts, params["replica_id"], params["replica_token"])
    if refusal is not None:
        return refusal
    found = await facts.read(RECOVERY, params["recovery_id"])
    if isinstance(found, Refuse):
        return found
    if found is None:
        return conflict("wrong_recovery")
    key = found[0]["key"]
    token, since = facts.make_token(), facts.stamp(0)
    answer = await facts.step(
        OWNED,
        key,
        lambda record: ownership.decide_recovery_claim(
            record,
            recovery_id=params["recovery_id"],
            recovery_token=params["token"],
            checkpoint_epoch=params["checkpoint_epoch"],
            replica_id=params["replica_id"],
            token=token,
            since=since,
            nonce=params.get("nonce"),
        ),
    )
    if isinstance(answer, Refuse):
        return answer
    note_epoch(facts, answer["guard"]["epoch"])
    facts.counts.recovered += 1
    cut_at = facts.cut_at.pop(key, None)
    if cut_at is not None:
        facts.counts.takeover_s_last = facts.clock() - cut_at
    await facts.step(
        RECOVERY, params["recovery_id"], lambda record: (record and recovery.decide_claimed(record)) or Repeat({})
    )
    return answer


async def complete(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Close a recovery: done, or abandoned on purpose. The worker proves itself by its guard."""
    del caller
    refusal = names(params, "recovery_id")
    if refusal is not None:
        return refusal
    guard = read_guard(params.get("guard"))
    if isinstance(guard, Refuse):
        return guard
    outcome, why = params.get("outcome"), params.get("why")
    if outcome not in recovery.OUTCOMES:
        return invalid("outcome", "must be done or abandoned")
    if why is not None and not isinstance(why, str):
        return invalid("why", "must be a text")
    found = await facts.read(RECOVERY, params["recovery_id"])
    if isinstance(found, Refuse):
        return found
    if found is None:
        return conflict("wrong_recovery")

    def unlink(record: Record | None) -> Decision:
        if record is None:
            return conflict("wrong_recovery")
        owner = record["owner"]
        if not facts.alive(guard.replica_id):
            return fenced("expired_replica", record["epoch"])
        if guard.epoch != record["epoch"]:
            return fenced("stale_owner", record["epoch"])
        if owner is None or owner["replica_id"] != guard.replica_id or not same_token(owner["token"], guard.token):
            return fenced("wrong_token", record["epoch"])
        if record["state"] == ownership.INTERRUPTED:  # paused: the recovery is open again, for somebody else
            return fenced("not_running", record["epoch"])
        if record["recovery"] is None or record["recovery"]["id"] != params["recovery_id"]:
            return Repeat({}) if record["recovery"] is None else conflict("wrong_recovery")
        closed = {**record, "recovery": None, "revision": record["revision"] + 1}
        if outcome == recovery.ABANDONED and record["state"] == ownership.RUNNING:
            closed["state"] = ownership.FAILED
        return Write(closed, {})

    unlinked = count(facts, await facts.step(OWNED, found[0]["key"], unlink))
    if isinstance(unlinked, Refuse):
        return unlinked
    answer = await facts.step(
        RECOVERY,
        params["recovery_id"],
        lambda record: (
            conflict("wrong_recovery")
            if record is None
            else Repeat({"state": record["state"]})
            if record["state"] in recovery.OUTCOMES
            else recovery.decide_finish(record, outcome=outcome, why=why)
        ),
    )
    if outcome == recovery.ABANDONED and not isinstance(answer, Refuse):
        facts.counts.abandoned += 1
        facts.tell("recovery.abandoned", {"recovery_id": params["recovery_id"], "key": found[0]["key"], "why": why})
    return answer
