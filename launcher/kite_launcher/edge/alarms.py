"""Alarms: said on the wire as `launcher.alarm`, in the log, and to the people that [notify] names, rate limited.

Source: spec 05 §6 ([notify], launcher.alarm); 50 §2; case S-29.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any, Final

import trio

from kite_launcher.core.repeat import Quota
from kite_launcher.core.spec import NotifySpec
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.reaper import Reaper

NOTIFY_TIMEOUT_S: Final = 10.0
PENDING_MAX: Final = 100


class Alarms:
    """Raises alarms without ever waiting; one task hands them to [notify]."""

    def __init__(
        self,
        notify: NotifySpec,
        *,
        instance: str,
        journal: Journal,
        publish: Callable[[str, dict[str, Any]], None],
        reaper: Reaper,
    ) -> None:
        self._instance, self._journal, self._publish, self._reaper = instance, journal, publish, reaper
        self._sender, self._receiver = trio.open_memory_channel[dict[str, str]](PENDING_MAX)
        self.held_back = 0
        self.configure(notify)

    def configure(self, notify: NotifySpec) -> None:
        """Take new settings (a reload)."""
        self._notify = notify
        self._quota = Quota(notify.limit, notify.limit_within_s)

    def raise_(self, name: str, kind: str, why: str) -> None:
        """Say one alarm; never waits, never fails."""
        alarm = {"name": name, "kind": kind, "why": why}
        self._journal.error("alarm", name=name, kind=kind, why=why)
        self._publish("launcher.alarm", dict(alarm))
        if self._notify.command is None and self._notify.webhook is None:
            return
        try:
            self._sender.send_nowait(alarm)
        except trio.WouldBlock:
            self.held_back += 1

    async def run(self) -> None:
        """Hand alarms to the command or the webhook, at most as many as the limit allows."""
        async for alarm in self._receiver:
            if not self._quota.take(now=trio.current_time()):
                self.held_back += 1
                continue
            more, self.held_back = self.held_back, 0
            if more:
                alarm = {**alarm, "why": f"{alarm['why']} ({more} alarms held back)"}
            with trio.move_on_after(NOTIFY_TIMEOUT_S) as patience:
                await self._notify_one(alarm)
            if patience.cancelled_caught:
                self._journal.warning("notify took too long", limit_s=NOTIFY_TIMEOUT_S)

    async def _notify_one(self, alarm: dict[str, str]) -> None:
        body = json.dumps({"schema": 1, "instance": self._instance, **alarm}, ensure_ascii=False).encode("utf-8")
        if self._notify.command is not None:
            await self._run_command(self._notify.command, alarm, body)
        if self._notify.webhook is not None:
            why = await trio.to_thread.run_sync(_post, self._notify.webhook, body, abandon_on_cancel=True)
            if why is not None:
                self._journal.warning("webhook failed", why=why)

    async def _run_command(self, command: tuple[str, ...], alarm: dict[str, str], body: bytes) -> None:
        title = f"kite {self._instance}: {alarm['name']} {alarm['kind']}"
        environ = {key: value for key, value in os.environ.items() if not key.startswith("KITE_")}
        environ.update({"KITE_ALARM_" + key.upper(): value for key, value in alarm.items()})
        try:
            async with self._reaper.process(
                [*command, title, alarm["why"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
            ) as process:
                assert process.stdin is not None, "a pipe was asked for"
                with contextlib.suppress(trio.BrokenResourceError):
                    await process.stdin.send_all(body)
                await process.stdin.aclose()
                code = await process.wait()
                if code != 0:
                    self._journal.warning("notify command failed", exit=code)
        except OSError as error:
            self._journal.warning("notify command failed", why=str(error))


def _post(url: str, body: bytes) -> str | None:
    """Post JSON to a webhook; returns why not, without the address (it may hold a secret)."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=NOTIFY_TIMEOUT_S / 2):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__
