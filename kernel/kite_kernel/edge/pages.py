"""`/healthz`, `/readyz` and `/metrics`: answered from memory, whatever the module plane does.

Metric labels are bounded: states, codes and the kernel's own counters, never a name that a peer chose.
Source: spec 10-wire §1, 05-surface §9, cases W-68, W-69.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.http import Head
    from kite_kernel.core.hub import Hub
    from kite_kernel.edge.listener import Door, Page

_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """The plain pages. `troubles` are asked by `/readyz`: each returns a word for what is wrong, or None.

    `lines` add metrics of other rooms: whole lines of text, each beginning with `kite_`.
    """

    def __init__(self, hub: Hub, door: Door) -> None:
        self._hub = hub
        self._door = door
        self.troubles: list[Callable[[], str | None]] = []
        self.lines: list[Callable[[], list[str]]] = []

    def table(self) -> dict[str, Page]:
        """Return path -> page."""
        return {"/healthz": self.healthz, "/readyz": self.readyz, "/metrics": self.metrics}

    def healthz(self, head: Head) -> tuple[int, bytes, str]:
        """Say that the kernel runs: always 200."""
        del head
        return 200, b"ok\n", _TEXT

    def readyz(self, head: Head) -> tuple[int, bytes, str]:
        """Say whether it takes newcomers and can write: 503 while draining or a store is in trouble."""
        del head
        troubles = [word for ask in self.troubles if (word := ask()) is not None]
        if self._hub.draining:
            troubles.insert(0, "draining")
        return (503, (", ".join(troubles) + "\n").encode(), _TEXT) if troubles else (200, b"ready\n", _TEXT)

    def metrics(self, head: Head) -> tuple[int, bytes, str]:
        """Return all counters as Prometheus text."""
        del head
        hub = self._hub
        states = Counter(peer.state.value for peer in hub.board.peers.values())
        lines = [
            "# TYPE kite_modules gauge",
            *(f'kite_modules{{state="{state}"}} {states[state]}' for state in ("connected", "registered", "ready")),
            "# TYPE kite_connections gauge",
            f"kite_connections {self._door.open_connections}",
            "# TYPE kite_strangers gauge",
            f"kite_strangers {len(hub.gate.strangers)}",
            "# TYPE kite_calls_in_flight gauge",
            f"kite_calls_in_flight {len(hub.calls.pending.calls)}",
            "# TYPE kite_subscriptions gauge",
            f"kite_subscriptions {hub.board.topics.count}",
            "# TYPE kite_uptime_seconds gauge",
            f"kite_uptime_seconds {trio.current_time() - hub.started_at:.3f}",
            "# TYPE kite_events_total counter",
            *(f'kite_events_total{{what="{what}"}} {count}' for what, count in sorted(hub.board.counts.items())),
        ]
        for more in self.lines:
            lines += more()
        return 200, ("\n".join(lines) + "\n").encode(), _METRICS
