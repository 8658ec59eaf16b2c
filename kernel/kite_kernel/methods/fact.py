"""`fact.*`: a look at the records themselves, for operators; tokens are left out. Source: spec 05 §7 and §9, X-14."""

from __future__ import annotations

from typing import Any, Final

from kite_kernel.core.facts import Refuse, check_name, invalid
from kite_kernel.methods.desk import LEADER, OWNED, RECOVERY, REPLICA, Caller, Facts

from .ownership import listed

BUCKETS: Final = (REPLICA, OWNED, RECOVERY, LEADER)
_SECRET: Final = ("token", "nonces")


def without_secrets(value: Any) -> Any:
    """Return a record with every token and remembered answer left out, at any depth."""
    if isinstance(value, dict):
        return {name: without_secrets(item) for name, item in value.items() if name not in _SECRET}
    return value


async def get(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Return one record of a bucket."""
    del caller
    bucket = params.get("bucket")
    if bucket not in BUCKETS:
        return invalid("bucket", f"must be one of {', '.join(BUCKETS)}")
    refusal = check_name("key", params.get("key"))
    if refusal is not None:
        return refusal
    found = await facts.read(bucket, params["key"])
    if isinstance(found, Refuse):
        return found
    if found is None:
        return invalid("key", f"{params['key']} does not exist")
    return {"bucket": bucket, "key": params["key"], "value": without_secrets(found[0]), "revision": found[1]}


async def list_facts(facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
    """Return the records of a bucket whose key begins with a literal text."""
    del caller
    bucket, prefix = params.get("bucket"), params.get("prefix") or ""
    if bucket not in BUCKETS:
        return invalid("bucket", f"must be one of {', '.join(BUCKETS)}")
    if not isinstance(prefix, str):
        return invalid("prefix", "must be a text")
    rows = await listed(facts, bucket, prefix)
    return rows if isinstance(rows, Refuse) else {"facts": [without_secrets(row) for row in rows]}
