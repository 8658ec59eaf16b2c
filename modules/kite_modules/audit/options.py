"""What `[audit]` in kite.toml may say. Source: spec 80 §3."""

from __future__ import annotations

import msgspec

EVENTS = (
    "relay.request",
    "relay.alarm",
    "launcher.alarm",
    "watchdog.>",
    "recovery.abandoned",
    "replica.expired",
    "backup.>",
)


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the module."""

    events: list[str] = msgspec.field(default_factory=lambda: list(EVENTS))  # patterns of the events that become rows
    queue: int = 10_000  # rows that may wait for the disk; what is beyond is counted in a row of its own
