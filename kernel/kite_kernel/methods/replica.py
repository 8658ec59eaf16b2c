"""`replica.*`: processes that may own things register, beat, leave. Source: spec 05 §7, 70 §2."""

from __future__ import annotations

from typing import Any

from kite_kernel.core import replica
from kite_kernel.core.facts import REPLICAS_MAX, Refuse, check_name, invalid, limited
from kite_kernel.methods.desk import REPLICA, Caller, Facts

META_BYTES_MAX = 4096


async def register(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Make a replica under a new id; the token in the answer is its only proof."""
    replica_id = params.get("replica_id")
    if replica_id is None:
        replica_id = f"{caller.module_id}-{facts.make_token()[:16]}"
    refusal = check_name("replica_id", replica_id)
    if refusal is not None:
        return refusal
    meta = params.get("meta")
    if meta is not None and not isinstance(meta, dict):
        return invalid("meta", "must be an object")
    if len(str(meta)) > META_BYTES_MAX:
        return invalid("meta", f"must have at most {META_BYTES_MAX} bytes")
    if facts.living >= REPLICAS_MAX:
        return limited("replicas alive", REPLICAS_MAX)
    token = facts.make_token()
    answer = await facts.step(
        REPLICA,
        replica_id,
        lambda record: replica.decide_register(
            record, replica_id=replica_id, token=token, module_id=caller.module_id, meta=meta, since=facts.stamp(0)
        ),
    )
    if isinstance(answer, Refuse):
        return answer
    times = facts.times
    periods = {"heartbeat_s": times.heartbeat_s, "suspect_s": times.suspect_s, "expire_s": times.expire_s}
    return {**answer, **periods}


def _bearer(params: dict[str, Any]) -> tuple[str, str] | Refuse:
    for field in ("replica_id", "token"):
        refusal = check_name(field, params.get(field))
        if refusal is not None:
            return refusal
    return params["replica_id"], params["token"]


async def heartbeat(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Count a sign of life with the number of tasks in hand."""
    del caller
    bearer = _bearer(params)
    if isinstance(bearer, Refuse):
        return bearer
    told = params.get("state")
    if told is not None and (not isinstance(told, str) or len(told) > 64):
        return invalid("state", "must be a short text")
    replica_id, token = bearer
    tasks = params.get("tasks", 0)
    return await facts.step(
        REPLICA, replica_id, lambda record: replica.decide_heartbeat(record, token=token, tasks=tasks, told=told)
    )


async def leave(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """End a replica on purpose; it never comes back."""
    del caller
    bearer = _bearer(params)
    if isinstance(bearer, Refuse):
        return bearer
    replica_id, token = bearer
    return await facts.step(REPLICA, replica_id, lambda record: replica.decide_leave(record, token=token))


async def list_replicas(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Return all replicas that are known, without tokens."""
    del caller, params
    now = facts.clock()
    rows = []
    for name, record in sorted(facts.replicas.items()):
        seen = facts.beat_seen.get(name)
        rows.append(replica.shown(record, beat_age_s=None if seen is None else round(max(0.0, now - seen[1]), 3)))
    return {"replicas": rows}
