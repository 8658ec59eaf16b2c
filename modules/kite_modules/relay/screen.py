"""The console's first screen, made once a second for all consoles: rows, events, rates; only changes are sent.

However many consoles are open, the kernel is asked once. Events are sent in bundles, a few a second, each with its
number, so that a console that was away asks for what it missed. Source: spec 80 §2, the relay's speed and memory.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import trio

from kite_modules import _contract
from kite_modules.relay import frames, picture
from kite_modules.relay.resources import Meter
from kite_modules.sdk import CallError, Kite, log

if TYPE_CHECKING:
    from kite_modules.relay.wire import Wire
    from kite_modules.sdk.events import Event

EVERY_S: Final = 1.0
MODULES_A_SECOND: Final = 300  # a larger instance is looked at less often
BUNDLE_S: Final = 0.1  # events are told ten times a second: a page draws no more often
BUNDLE_MAX: Final = 100  # of one bundle; the rest is counted, and kept for who asks
HISTORY_MAX: Final = 1000
DATA_SHOWN: Final = 2000  # characters of an event's data in the list
_QUIET: Final = ("relay.request", "system.ping", "system.pong")  # the trail of the consoles' own requests
_HURRY: Final = ("module.", "launcher.")
CALL_S: Final = 5.0


class Screen:
    """What all consoles see."""

    def __init__(self, kite: Kite) -> None:
        self._kite = kite
        self._wires: set[Wire] = set()
        self._meter = Meter()
        self._rows: dict[str, picture.Row] = {}
        self._head: picture.Row = {"instance": None, "state": "unknown", "own": {}}
        self._stats: dict[str, picture.Row] = {}
        self._looked_at = float("-inf")
        self._hurry = trio.Event()
        self._round = 0
        self.boot = secrets.token_hex(4)
        self._count = 0
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)
        self._fresh: list[dict[str, Any]] = []
        self._skipped = 0
        self._sources: Counter[tuple[str, str]] = Counter()
        self._traffic: list[picture.Row] = []
        self._flows: list[picture.Row] = []
        self._calls: dict[tuple[str, str], int] = {}

    # ---------------------------------------------------------------- consoles

    async def watch(self, wire: Wire, params: dict[str, Any]) -> dict[str, Any]:
        """Begin to tell a console; returns the whole picture and the events after the one it knows."""
        if not self._wires:
            await self.refresh()  # nobody watched: what is known is old
        self._wires.add(wire)
        return {
            "boot": self.boot,
            "head": self._head,
            "rows": list(self._rows.values()),
            "traffic": self._traffic,
            "flows": self._flows,
            **self.events_after(params.get("boot"), params.get("after")),
        }

    def leave(self, wire: Wire) -> None:
        """Tell it no more."""
        self._wires.discard(wire)

    def events_after(self, boot: Any, after: Any) -> dict[str, Any]:
        """Return the kept events after a number; `lost` when some of them are kept no longer."""
        known = after if boot == self.boot and isinstance(after, int) else None
        rows = [row for row in self._history if known is None or row["n"] > known]
        first = rows[0]["n"] if rows else self._count + 1
        return {"events": rows, "n": self._count, "lost": known is not None and first > known + 1}

    def _tell(self, method: str, params: dict[str, Any]) -> None:
        text = frames.notice(method, params)
        for wire in self._wires:
            wire.send(text)

    # ---------------------------------------------------------------- events

    def heard(self, event: Event) -> None:
        """Take an event into the list."""
        self._sources[(event.source, event.name.partition(".")[0])] += 1
        if event.name.startswith(_HURRY):
            self._hurry.set()
        if event.name in _QUIET:
            return
        self._count += 1
        text = frames.encode(event.raw)
        data = text if len(text) <= DATA_SHOWN else text[:DATA_SHOWN] + "…"
        row = {"n": self._count, "event": event.name, "source": event.source, "time": event.time, "data": data}
        self._history.append(row)
        if self._wires:
            self._fresh.append(row)
            if len(self._fresh) > BUNDLE_MAX:
                del self._fresh[0]
                self._skipped += 1

    async def tell_events(self) -> None:
        """Send what came, a few times a second."""
        while True:
            await trio.sleep(BUNDLE_S)
            if self._fresh:
                self._tell("relay.events", {"events": self._fresh, "n": self._count, "skipped": self._skipped})
                self._fresh, self._skipped = [], 0

    # ---------------------------------------------------------------- rows

    async def run(self) -> None:
        """Look once a second, and soon after something has happened; while nobody watches, not at all."""
        while True:
            with trio.move_on_after(max(EVERY_S, len(self._rows) / MODULES_A_SECOND)):
                await self._hurry.wait()
                await trio.sleep(BUNDLE_S)
            self._hurry = trio.Event()
            if self._wires and self._kite.state.value == "open":
                await self.refresh()

    async def refresh(self) -> None:
        """Look at kernel, launcher and processes; tell consoles what changed."""
        status = await self._ask("launcher.status")
        stats = await self._ask("kernel.get_connection_stats")
        flows = await self._ask("kernel.flows")
        now = trio.current_time()
        used = await trio.to_thread.run_sync(lambda: self._meter.measure(picture.pids_of(status), now=now))
        rows_of_kernel = stats["modules"] if stats is not None else []
        elapsed_s = now - self._looked_at
        rows = picture.rows_of(status, rows_of_kernel, used, elapsed_s=elapsed_s, before=self._stats)
        head = picture.head_of(status, used)
        changed, gone = picture.changes(self._rows, rows)
        self._traffic = picture.traffic_of(self._sources, elapsed_s)
        self._rows, self._head, self._looked_at = rows, head, now
        calls = flows["flows"] if flows is not None else []
        self._flows = picture.flows_of(calls, self._calls, elapsed_s)
        self._calls = {(row["caller"], row["callee"]): row["calls"] for row in calls}
        self._stats = {row["module_id"]: row for row in rows_of_kernel}
        self._sources.clear()
        told = {"head": head, "rows": changed, "gone": gone, "traffic": self._traffic, "flows": self._flows}
        self._tell("relay.overview", told)

    async def _ask(self, method: str) -> Any:
        try:
            return await self._kite.call(method, timeout=CALL_S, wait=False)
        except CallError as error:
            if error.code not in (_contract.E_OFFLINE, _contract.E_METHOD_NOT_FOUND):  # no launcher; an older kernel
                log.say(logging.INFO, f"{method}: {error}")
            return None
