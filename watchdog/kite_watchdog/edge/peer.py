"""What the link tells its owner. The link calls these from its own tasks; none of them may wait."""

from __future__ import annotations

from typing import Any

from kite_watchdog.core import frames
from kite_watchdog.core.reconnect import Decision


class Peer:
    """What the link tells its owner; all calls are made from the link's own tasks and must not wait."""

    def on_open(self, *, resumed: bool, kernel: dict[str, Any]) -> None:
        """Authenticated and in step."""

    def on_event(self, event: frames.Event) -> None:
        """An event came in."""

    def on_failure(self, decision: Decision) -> None:
        """The wire was cut or could not be opened."""

    def on_call(self, method: str, params: dict[str, Any]) -> Any:
        """Answer a call. Raises: KeyError for a method that does not exist."""
        raise KeyError(method)
