"""The numbers that the hub is run with: checked once, frozen, all times in seconds and already scaled.

Source: spec 05-surface §6, 20-kernel.
"""

from __future__ import annotations

import attrs

from kite_kernel._contract import (
    MAX_BATCH,
    MAX_DEPTH,
    MAX_ID_BYTES,
    MAX_IN_FLIGHT,
    MAX_METHODS,
    MAX_SUBSCRIPTIONS,
    PRE_AUTH_FRAME_BYTES,
    RPC_ACTIVE_S,
)


@attrs.frozen
class Timing:
    """`[timing]`, scaled: seconds, except `ping_misses` and `rate_max`."""

    scale: float = 1.0
    debounce: float = 5.0
    launcher_grace: float = 35.0
    shutdown: float = 10.0
    auth: float = 5.0
    verify: float = 2.0
    ping_active: float = 5.0
    ping_idle: float = 60.0
    pong: float = 5.0
    ping_misses: int = 3
    rate_window: float = 10.0
    rate_max: int = 20
    critical: float = 5.0
    healthy_reset: float = 60.0
    call: float = 30.0

    @property
    def rpc_active_s(self) -> float:
        """How long after a call the quick ping interval holds."""
        return RPC_ACTIVE_S * self.scale

    @property
    def late_s(self) -> float:
        """How late the kernel's own timer may be before its verdicts about others are thrown away."""
        return max(0.2 * self.pong, 0.05)


@attrs.frozen
class Settings:
    """What the hub knows about its own limits."""

    timing: Timing = attrs.field(factory=Timing)
    max_message_bytes: int = 1 << 20
    queue_messages: int = 1000
    queue_bytes: int = 8 << 20
    max_in_flight: int = MAX_IN_FLIGHT
    max_subscriptions: int = MAX_SUBSCRIPTIONS
    max_methods: int = MAX_METHODS
    pre_auth_frame_bytes: int = PRE_AUTH_FRAME_BYTES
    standalone: bool = True

    @property
    def replay_frames(self) -> int:
        """How many sent frames are kept until they are acknowledged: what may be under way on a fast wire."""
        return 16 * self.queue_messages

    def limits(self) -> dict[str, int]:
        """Return what the auth answer tells a client (05 §9)."""
        return {
            "max_message_bytes": self.max_message_bytes,
            "max_depth": MAX_DEPTH,
            "max_batch": MAX_BATCH,
            "max_in_flight": self.max_in_flight,
            "max_subscriptions": self.max_subscriptions,
            "max_methods": self.max_methods,
            "max_id_bytes": MAX_ID_BYTES,
            "queue_messages": self.queue_messages,
            "queue_bytes": self.queue_bytes,
        }
