"""What a role may do: exact names, deny by default. Pure. Source: spec 80 §1, 05 §9 (Relay)."""

from __future__ import annotations

from typing import Final

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
ROLES: Final = (VIEWER, OPERATOR, ADMIN)

_VIEWER: Final = frozenset(
    {
        "registry.list_modules",
        "registry.get_module",
        "kernel.get_connection_stats",
        "kernel.info",
        "event.subscribe",
        "event.unsubscribe",
        "launcher.status",
        "launcher.why",
        "ownership.get",
        "ownership.list",
        "recovery.list",
        "replica.list",
        "stream.list",
        "stream.stats",
        "chat.list",
        "chat.get",
        "relay.whoami",
        "relay.stream",
    }
)
_VIEWER_FAMILIES: Final = ("logs.",)
_NEVER_OPERATOR: Final = (
    "kernel.",
    "launcher.",
    "fact.",
    "relay.",
    "replica.",
    "ownership.",
    "recovery.",
    "registry.",
    "backup.",
    "$/",
)
_OPERATOR: Final = frozenset({"launcher.start", "launcher.stop", "launcher.restart", "kernel.closed", "kernel.pending"})


def may_call(role: str, method: str) -> bool:
    """True when somebody of this role may call this method, spelled exactly so."""
    if method in _VIEWER or method.startswith(_VIEWER_FAMILIES) or method.endswith(".health"):
        return role in ROLES
    if role == ADMIN:
        return True
    if role != OPERATOR:
        return False
    return method in _OPERATOR or not method.startswith(_NEVER_OPERATOR)
