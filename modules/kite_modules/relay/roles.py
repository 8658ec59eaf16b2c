"""What a role may do: exact names, deny by default. Pure. Source: spec 80 §1, 05 §9 (Relay), case X-31.

viewer: registry, stats, health, logs, events. operator: also start, stop, restart, chat, streams, and the methods of
modules. admin: all but what only makes sense on a connection of its own.
"""

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
        "launcher.ping",
        "recovery.list",
        "replica.list",
        "stream.list",
        "stream.stats",
        "relay.whoami",
        "relay.logout",
        "relay.sessions",
        "relay.revoke",
        "relay.watch",
        "relay.unwatch",
        "relay.health",
        "logs.query",
        "logs.follow",
        "logs.modules",
    }
)
_OPERATOR: Final = frozenset(
    {
        "launcher.start",
        "launcher.stop",
        "launcher.restart",
        "launcher.wait",
        "ownership.get",
        "ownership.list",
        "relay.tail",
        "relay.untail",
    }
)
# The kernel's own families and Kite's own modules: an operator has the names above of them, nothing else.
_CLOSED_TO_OPERATORS: Final = frozenset(
    {
        "kernel",
        "launcher",
        "watchdog",
        "registry",
        "fact",
        "relay",
        "replica",
        "ownership",
        "recovery",
        "logs",
        "audit",
        "backup",
        "auth",
        "login",
        "system",
        "module",
        "$",
    }
)
# What a module says of itself: sent over the relay's wire it would speak of the relay.
_OWN_CONNECTION: Final = frozenset(
    {"registry.register", "registry.unregister", "replica.register", "replica.heartbeat", "replica.leave"}
)


def may_call(role: str, method: str) -> bool:
    """True when somebody of this role may call this method, spelled exactly so."""
    if role not in ROLES or method in _OWN_CONNECTION:
        return False
    if role == ADMIN or method in _VIEWER or method.endswith(".health"):
        return True
    if role != OPERATOR:
        return False
    return method in _OPERATOR or method.partition(".")[0] not in _CLOSED_TO_OPERATORS


def may_publish(event: str) -> bool:
    """True for events that are not the system's or the relay's own words."""
    return event.partition(".")[0] not in ("module", "system", "relay", "kernel", "launcher", "watchdog", "audit")
