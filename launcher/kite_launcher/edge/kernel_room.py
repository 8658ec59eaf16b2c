"""What is special about the kernel's process: its ready line, its file, and noticing that it hangs.

Hung means: three probes in a row unanswered, `/healthz` and a real call through the hub both. Its stacks are kept
(the fault handler prints them at SIGABRT), then it is replaced. Probes that came late by our own fault don't count.
Source: spec 50 §3; 05 §2.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any, Final

import trio

from kite_launcher.core.proc import Identity
from kite_launcher.edge.house import House, Prepared
from kite_launcher.edge.readiness import http_status
from kite_launcher.edge.statedir import StateDir
from kite_launcher.edge.unit import Unit
from kite_launcher.edge.unit_wishes import Run
from kite_launcher.edge.wire import KernelWire

READY_MAX_BYTES: Final = 4096
PROBES: Final = 3
PROBE_MIN_S: Final = 1.0  # below it a busy machine looks like a hung kernel
STACKS_S: Final = 0.5


class KernelRoom:
    """Attends the kernel's unit beside the unit's own task."""

    def __init__(self, unit: Unit, house: House, state: StateDir, wire: KernelWire, *, probe_s: float) -> None:
        self._unit, self._house, self._state, self._wire = unit, house, state, wire
        self._probe_s = max(probe_s, PROBE_MIN_S)
        self._spawned, self._runs = trio.open_memory_channel[tuple[int, Run]](4)
        self.epoch: int | str | None = None
        self.rows: list[dict[str, Any]] = []
        self._file: bytes | None = None
        self.on_ready: Callable[[], None] = lambda: None
        unit.on_spawned = self._on_spawned

    def _on_spawned(self, prepared: Prepared | None, run: Run) -> None:
        if prepared is not None and prepared.kernel_ready is not None:
            try:
                self._spawned.send_nowait((prepared.kernel_ready, run))
            except trio.WouldBlock:
                os.close(prepared.kernel_ready)

    async def run(self) -> None:
        """Read the ready line of every kernel that is started."""
        async for fd, run in self._runs:
            async with trio.lowlevel.FdStream(fd) as stream:
                with trio.move_on_after(self._unit.spec.ready_timeout_s):
                    await self._read_ready(stream, run)

    async def _read_ready(self, stream: trio.lowlevel.FdStream, run: Run) -> None:
        line = b""
        while b"\n" not in line and len(line) < READY_MAX_BYTES:
            chunk = await stream.receive_some(READY_MAX_BYTES)
            if not chunk:
                break
            line += bytes(chunk)
        try:
            ready = json.loads(line)
        except ValueError:
            return  # it ended without a word; the unit sees the end itself
        if isinstance(ready, dict) and self._unit.current is run:
            self.remember_file()
            self._unit.heard_ready()
            self._wire.come_back()
            self.on_ready()

    def remember_file(self) -> None:
        """Keep a copy of `kernel.json`, to put it back when somebody removes it."""
        try:
            self._file = self._state.read("kernel.json")
            document = json.loads(self._file or b"{}")
        except (OSError, ValueError):
            return
        if isinstance(document, dict):
            self.epoch = document.get("epoch")

    def restore_file(self) -> bool:
        """Put `kernel.json` back if it is missing while the kernel is ready; True when that was done."""
        if self._file is None or not self._unit.child.ready:
            return False
        try:
            if self._state.read("kernel.json") is not None:
                return False
            self._state.write("kernel.json", self._file)
        except OSError:
            return False
        return True

    async def watch(self) -> None:
        """Probe the kernel for as long as it lives; three silences in a row end it."""
        missed, last = 0, None
        while True:
            due = trio.current_time() + self._probe_s
            await trio.sleep_until(due)
            run = self._unit.current
            if run is None or not run.ready or run is not last:
                missed, last = 0, run
                continue
            late = trio.current_time() - due > self._probe_s / 2
            begin = trio.current_time()
            if await self._probe():
                missed = 0
                continue
            # We may have slept through the answer ourselves (a stopped launcher, a starved machine).
            if late or trio.current_time() - begin > 2 * self._probe_s:
                continue
            missed += 1
            self._house.journal.warning("the kernel did not answer", name="kernel", probes=missed)
            if missed >= PROBES and self._unit.current is run:
                await self._replace(run.identity)
                missed = 0

    async def _probe(self) -> bool:
        """Ask both ways at once: through the hub where our wire is open, else `/healthz` decides."""
        by_hub = by_http = False

        async def call(scope: trio.CancelScope) -> None:
            nonlocal by_hub
            answer = await self._wire.call("registry.list_modules", {}, timeout_s=self._probe_s)
            if answer is not None and "result" in answer:
                self._take(answer["result"])
                by_hub = True
                scope.cancel()

        async def fetch() -> None:
            nonlocal by_http
            url = self._wire.url.replace("ws://", "http://", 1)
            # TLS: the certificate is for others' eyes; a listening hub is asked through the wire alone.
            by_http = not url.startswith("http://") or await http_status(f"{url}/healthz") is not None

        with trio.move_on_after(self._probe_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, nursery.cancel_scope)
                nursery.start_soon(fetch)
        return by_hub or (by_http and not self._wire.connected)

    def _take(self, result: Any) -> None:
        rows = result.get("modules") if isinstance(result, dict) else None
        if isinstance(rows, list):
            self.rows = [row for row in rows if isinstance(row, dict)]

    async def _replace(self, identity: Identity) -> None:
        """Keep its stacks, then end it; the unit starts the next one."""
        why = f"{PROBES} probes in a row unanswered, by HTTP and through the hub"
        self._house.alarm("kernel", "hang", why)
        handle = self._house.processes.open(identity)
        if handle is not None:
            handle.signal(signal.SIGABRT)
            handle.signal(signal.SIGCONT)
            with trio.move_on_after(STACKS_S):
                await handle.wait_ended()
            lines = await self._house.keeper.tail("kernel", 20)
            stamp = self._house.moment().utc.replace(":", "")
            try:
                text = "\n".join(lines).encode("utf-8", "backslashreplace")
                self._state.write(f"modules/kernel/stacks-{stamp}.txt", text, sync=False)
            except OSError as error:
                self._house.journal.warning("stacks could not be kept", why=str(error))
            handle.signal(signal.SIGKILL)
            handle.close()
        self._unit.child.tell("hung", self._house.moment(), cause="probes", detail=why)
