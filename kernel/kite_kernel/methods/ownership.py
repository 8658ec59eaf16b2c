"""`ownership.*`: keys that have one owner at a time. Source: spec 05 §7, 70 §3."""

from __future__ import annotations

from typing import Any, Final

from kite_kernel._contract import E_FENCED
from kite_kernel.core import ownership, recovery, replica
from kite_kernel.core.facts import (
    KEYS_MAX,
    Decision,
    Guard,
    Record,
    Refuse,
    Repeat,
    check_name,
    decode,
    invalid,
    limited,
    read_guard,
    remember,
    remembered,
    unavailable,
)
from kite_kernel.methods.desk import OWNED, RECOVERY, REPLICA, Caller, Facts
from kite_kernel.store.port import Unavailable

STATES: Final = (ownership.IDLE, ownership.RUNNING, ownership.INTERRUPTED, ownership.DONE, ownership.FAILED)
LIST_MAX: Final = 10_000


def names(params: dict[str, Any], *fields: str, optional: tuple[str, ...] = ()) -> Refuse | None:
    """Refuse the first member that is no name; optional ones may be absent or null."""
    for field in fields:
        refusal = check_name(field, params.get(field))
        if refusal is not None:
            return refusal
    for field in optional:
        if params.get(field) is not None:
            refusal = check_name(field, params[field])
            if refusal is not None:
                return refusal
    return None


async def create(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Make a key, idle."""
    del caller
    refusal = names(params, "key", optional=("route_key",))
    if refusal is not None:
        return refusal
    if facts.keys >= KEYS_MAX:
        return limited("keys", KEYS_MAX)
    floor = facts.store.epoch_floor
    return await facts.step(
        OWNED,
        params["key"],
        lambda record: ownership.decide_create(
            record,
            key=params["key"],
            data={} if params.get("data") is None else params["data"],
            route_key=params.get("route_key"),
            epoch_floor=floor,
        ),
    )


async def claim(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Become the owner of an idle key."""
    del caller
    refusal = names(params, "key", "replica_id", "replica_token", optional=("nonce",))
    refusal = refusal or await check_bearer(facts, params["replica_id"], params["replica_token"])
    if refusal is not None:
        return refusal
    token, since = facts.make_token(), facts.stamp(0)
    answer = await facts.step(
        OWNED,
        params["key"],
        lambda record: ownership.decide_claim(
            record,
            key=params["key"],
            replica_id=params["replica_id"],
            token=token,
            since=since,
            nonce=params.get("nonce"),
        ),
    )
    if not isinstance(answer, Refuse):
        facts.counts.claims += 1
        note_epoch(facts, answer["guard"]["epoch"])
    return answer


def note_epoch(facts: Facts, epoch: int) -> None:
    """Tell the engine of the highest epoch given out."""
    facts.store.note_epoch(epoch)


async def check_bearer(facts: Facts, replica_id: str, token: str) -> Refuse | None:
    """Refuse who is not this replica, alive."""
    found = await facts.read(REPLICA, replica_id)
    if isinstance(found, Refuse):
        return found
    return replica.check_replica(None if found is None else found[0], token)


def _guard(params: dict[str, Any]) -> Guard | Refuse:
    refusal = names(params, "key", optional=("nonce",))
    return refusal or read_guard(params.get("guard"))


def count(facts: Facts, answer: dict[str, Any] | Refuse) -> dict[str, Any] | Refuse:
    """Count a guarded step by what came of it."""
    if isinstance(answer, Refuse):
        facts.counts.fenced += answer.code == E_FENCED
    else:
        facts.counts.writes += 1
    return answer


async def write(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Change an owned key under its guard."""
    del caller
    guard = _guard(params)
    if isinstance(guard, Refuse):
        return guard
    return count(
        facts,
        await facts.step(
            OWNED,
            params["key"],
            lambda record: ownership.decide_write(
                record, guard, params, key=params["key"], replica_alive=facts.alive(guard.replica_id)
            ),
        ),
    )


async def release(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Give an owned key back, or finish it."""
    del caller
    guard = _guard(params)
    if isinstance(guard, Refuse):
        return guard
    return count(
        facts,
        await facts.step(
            OWNED,
            params["key"],
            lambda record: ownership.decide_release(
                record,
                guard,
                key=params["key"],
                state=params.get("state"),
                replica_alive=facts.alive(guard.replica_id),
                nonce=params.get("nonce"),
            ),
        ),
    )


async def pause(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """The normal stop: recovery record first, then `interrupted`, so that a crash in between is mended by a repeat."""
    del caller
    guard = _guard(params)
    if isinstance(guard, Refuse):
        return guard
    key, nonce = params["key"], params.get("nonce")
    if "checkpoint" not in params:
        return invalid("checkpoint", "must be there (null is one)")
    found = await facts.read(OWNED, key)
    if isinstance(found, Refuse):
        return found
    record = None if found is None else found[0]
    before = None if record is None else remembered(record, "pause", nonce, guard.token)
    if before is not None:
        return before
    refusal = ownership.check_guard(record, guard, replica_alive=facts.alive(guard.replica_id), key=key)
    if refusal is not None or record is None:
        return count(facts, refusal or invalid("key", "does not exist"))
    opened = await open_recovery(facts, record, cause="shutdown")
    if isinstance(opened, Refuse):
        return opened
    recovery_id, token = opened

    def decide(record: Record | None) -> Decision:
        known = None if record is None else remembered(record, "pause", nonce, guard.token)
        if known is not None:
            return Repeat(known)
        refusal = ownership.check_guard(record, guard, replica_alive=facts.alive(guard.replica_id), key=key)
        if refusal is not None or record is None:
            return refusal or invalid("key", "does not exist")
        closing = ownership.decide_interrupt(
            record,
            recovery_id=recovery_id,
            recovery_token=token,
            cause="shutdown",
            checkpoint=params["checkpoint"],
            open_call=params.get("open_call"),
        )
        remember(closing.record, "pause", nonce, guard.token, closing.answer)
        return closing

    return count(facts, await facts.step(OWNED, key, decide))


async def open_recovery(facts: Facts, record: Record, *, cause: str) -> tuple[str, str] | Refuse:
    """Make (or open again) the recovery record of a key that is about to be interrupted; returns its id and token."""
    link = record["recovery"]
    recovery_id = link["id"] if link is not None else recovery.recovery_id_of(record["key"], record["epoch"])
    token = facts.make_token()

    def decide(known: Record | None) -> Decision:
        return recovery.decide_open(
            known,
            recovery_id=recovery_id,
            key=record["key"],
            token=token,
            checkpoint_epoch=record["epoch"],
            cause=cause,
            route_key=record["route_key"],
            not_before=facts.stamp(facts.times.quiet_s),
        )

    answer = await facts.step(RECOVERY, recovery_id, decide)
    if isinstance(answer, Refuse):
        return answer
    found = await facts.read(RECOVERY, recovery_id)
    if isinstance(found, Refuse):
        return found
    return recovery_id, token if found is None else found[0]["token"]


async def get(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Return a key's record without tokens."""
    del caller
    refusal = names(params, "key")
    if refusal is not None:
        return refusal
    found = await facts.read(OWNED, params["key"])
    if isinstance(found, Refuse):
        return found
    return invalid("key", f"{params['key']} does not exist") if found is None else ownership.shown(found[0])


async def list_keys(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Return the records whose key begins with a literal text, in a state."""
    del caller
    prefix, state = params.get("prefix") or "", params.get("state")
    if not isinstance(prefix, str):
        return invalid("prefix", "must be a text")
    if state is not None and state not in STATES:
        return invalid("state", f"must be one of {', '.join(STATES)}")
    rows = await listed(facts, OWNED, prefix)
    if isinstance(rows, Refuse):
        return rows
    shown = [ownership.shown(row) for row in rows if state is None or row["state"] == state]
    return {"records": shown[:LIST_MAX], "more": len(shown) > LIST_MAX}


async def listed(facts: Facts, bucket: str, prefix: str) -> list[Record] | Refuse:
    """Return the decoded records of a bucket."""
    found = await facts.store.list(bucket, prefix)
    if isinstance(found, Unavailable):
        return unavailable(found.reason, found.why)
    return [decode(fact.value) for fact in found]
