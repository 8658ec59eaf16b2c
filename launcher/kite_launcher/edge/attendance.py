"""What a launcher listens to beside its orders: signals, keys, the service manager that started it.

First Ctrl+C, TERM, q or ESC: a normal stop; the second hurries; the third kills. HUP reloads, unless it says that
the terminal in front was closed. Source: spec 50 §3, §4; 05 §3; cases S-15, S-18, S-88, S-90.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from kite_launcher.core.child import State
from kite_launcher.core.launch import EXIT_OK
from kite_launcher.edge.instance import Instance
from kite_launcher.edge.notify import ServiceManager
from kite_launcher.edge.reaper import Reaper
from kite_launcher.edge.terminal import Terminal, has_terminal

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGCONT)


class Attendance:
    """Turns what comes from outside into orders to the instance."""

    def __init__(
        self,
        instance: Instance,
        environ: Mapping[str, str],
        *,
        detached: bool,
        reaper: Reaper,
        reload: Callable[[], Any],
    ) -> None:
        self._instance, self._reaper, self._reload = instance, reaper, reload
        self.service = ServiceManager(environ.get("NOTIFY_SOCKET"), environ.get("WATCHDOG_USEC"))
        self.terminal = Terminal() if not detached else None
        self._had_terminal = not detached and has_terminal()
        self._interrupts = 0

    async def signals(self, arrived: Any, nursery: trio.Nursery) -> None:
        """Attend signals until cancelled."""
        async for number in arrived:
            match number:
                case signal.SIGCHLD:
                    self._reaper.reap()
                case signal.SIGHUP:
                    self._hang_up(nursery)
                case signal.SIGCONT:
                    if self.terminal is not None and not self._instance.stopping.is_set():
                        self.terminal.enter()
                case _:
                    self._interrupt(signal.Signals(number).name)

    def _hang_up(self, nursery: trio.Nursery) -> None:
        if self._instance.stopping.is_set():
            return
        if self._had_terminal and not has_terminal():
            self._instance.stop(EXIT_OK, "the terminal was closed")
            return
        nursery.start_soon(self._reload)

    def _interrupt(self, cause: str) -> None:
        self._interrupts += 1
        self._instance.stop(EXIT_OK, cause)
        if self._interrupts > 1:
            self._instance.press(self._interrupts - 1)

    async def keys(self) -> None:
        """Attend keys while there is a terminal; its modes come back in every case."""
        if self.terminal is None or not self.terminal.usable:
            return
        self.terminal.enter()
        try:
            await self.terminal.keys(self._interrupt)
        finally:
            self.terminal.restore()

    async def tell_ready(self) -> None:
        """Say READY=1 once everything enabled is ready or settled."""
        await self._instance.house.changed.until(self._instance.settled)
        failed = [unit.name for unit in self._instance.modules() if unit.child.state is State.FAILED]
        self._instance.journal.info("settled", url=self._instance.wire.url, failed=failed)
        self.service.say(f"READY=1\nSTATUS={'all ready' if not failed else 'failed: ' + ', '.join(failed)}")

    async def ping_service(self) -> None:
        """Say WATCHDOG=1 at half of the interval that the service manager asked for."""
        every_s = self.service.ping_every_s
        while every_s is not None:
            self.service.say("WATCHDOG=1")
            await trio.sleep(every_s)
