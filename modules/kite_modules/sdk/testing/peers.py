"""One module as the in-memory kernel sees it: its state, what it offers, what it was sent.

Source: spec 10-wire §5-8.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from kite_modules.sdk.frames import RpcId

_sessions = itertools.count(1)


class Peer:
    """One module id. `out` sends on its present wire, None while it has none."""

    def __init__(self, module_id: str) -> None:
        self.module_id = module_id
        self.instance = ""
        self.state = "offline"
        self.methods: dict[str, dict[str, Any]] = {}
        self.service: str | None = None
        self.accepts_meta = False
        self.patterns: dict[str, None] = {}
        self.registered = self.subscribed = False
        self.exiting = False
        self.out: Callable[[str], None] | None = None
        self.wire = 0
        self.session = ""
        self.received = 0
        self.unanswered_pings = 0
        self.heard = False
        self._sent = 0
        self._kept: list[str] = []
        self.restart_session()

    def restart_session(self) -> None:
        """Begin a session of its own: counters at zero, nothing kept."""
        self.session = f"session-{next(_sessions)}"
        self.received = 0
        self._sent = 0
        self._kept = []

    def forget_registration(self) -> None:
        """Another process came: what the old one declared is gone."""
        self.methods, self.patterns, self.service = {}, {}, None
        self.registered = self.subscribed = self.accepts_meta = False

    def send(self, text: str) -> None:
        """Send a frame, or keep it for the resume."""
        self._sent += 1
        self._kept.append(text)
        if self.out is not None:
            self.out(text)

    def acknowledged(self, received: Any) -> None:
        """The module has all up to here."""
        if isinstance(received, int) and 0 <= received <= self._sent:
            first = self._sent - len(self._kept)
            del self._kept[: max(0, received - first)]

    def again(self, received: Any) -> list[str] | None:
        """Return the frames to send again, None when they are gone."""
        first = self._sent - len(self._kept)
        if not isinstance(received, int) or not first <= received <= self._sent:
            return None
        return self._kept[received - first :]


class Routed:
    """A call on its way through the hub."""

    def __init__(self, caller: Peer, rpc_id: RpcId, callee: Peer, method: str, due_at: float) -> None:
        self.caller = caller
        self.session = caller.session
        self.rpc_id = rpc_id
        self.callee = callee
        self.method = method
        self.due_at = due_at
        self.frame = ""
        self.held = False
