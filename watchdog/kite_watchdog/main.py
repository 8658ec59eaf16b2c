"""Composition root of the watchdog: environment → options → link, poller, instance, joined in one nursery.

Exit codes: 0 told to leave or followed a normal exit; 1 gave up or refused for good by the kernel; 64, 77, 78 as
everywhere. Source: spec 60-watchdog, 05 §3, §4.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from kite_watchdog.core.frames import Event
from kite_watchdog.core.options import OPTIONS_BYTES_MAX, Options, OptionsError, decode_options
from kite_watchdog.core.reconnect import Decision
from kite_watchdog.core.remedy import ASK_AFTER_S, Action, Kernel, Lost, Watch, decide
from kite_watchdog.edge.connect import OpenStream
from kite_watchdog.edge.files import Unread, read_own
from kite_watchdog.edge.heartbeat import Heartbeat
from kite_watchdog.edge.instance import Instance, Outcome
from kite_watchdog.edge.launcher import Launcher
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.log import Log, make_log
from kite_watchdog.edge.peer import Peer
from kite_watchdog.edge.poller import Poller
from kite_watchdog.edge.stacks import StackKeeper

MODULE_ID: Final = "watchdog"
METHODS: Final = ("health", "status")
EXIT_USAGE, EXIT_PERMISSION, EXIT_CONFIG = 64, 77, 78
TOKEN_BYTES_MAX: Final = 4096
LOOK_S: Final = 0.5  # seconds, scaled: how often the table is read while the kernel is away
STARTED_S: Final = 60.0  # seconds to wait for the new launcher's clean-up before leaving by oneself


@attrs.frozen
class Settings:
    """Everything the watchdog is told at its start."""

    state_dir: Path
    url: str
    token: str = attrs.field(repr=False)
    instance: str
    options: Options


class Watchdog(Peer):
    """Joins the rooms; holds no rule of its own."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        *,
        open_stream: OpenStream = trio.open_tcp_stream,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._log = settings, log
        options = settings.options
        self.link = Link(
            settings.url,
            settings.token,
            module_id=MODULE_ID,
            methods=METHODS,
            peer=self,
            log=log,
            scale=options.scale,
            meta={"pid": os.getpid(), "version": _version(), "lang": "python"},
            open_stream=open_stream,
            rng=rng,
        )
        self.launcher = Launcher(settings.state_dir, self.link)
        self.heartbeat = Heartbeat(self.link, log, scale=options.scale)
        stacks = StackKeeper(settings.state_dir, link=self.link, instance=settings.instance, log=log)
        self.poller = Poller(
            link=self.link,
            launcher=self.launcher,
            heartbeat=self.heartbeat,
            stacks=stacks,
            options=options,
            log=log,
            rng=rng,
        )
        self.instance = Instance(settings.state_dir, options=options, log=log, tell=self.link.publish)
        self.watch = Watch(debounce_s=options.debounce_s)
        self._look = trio.Event()
        self._since = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._exit: int | None = None
        self._acknowledged = False
        self._asked_at: float | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self) -> int:
        """Watch until told to leave; return the exit code."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._signals)
            nursery.start_soon(self._keep_link)
            nursery.start_soon(self.heartbeat.run)
            nursery.start_soon(self.poller.run)
            nursery.start_soon(self._keep_instance)
        return self._exit or 0

    # ------------------------------------------------------------------ what the link tells

    def on_open(self, *, resumed: bool, kernel: dict[str, Any]) -> None:
        """In step again: the poller reads the registry anew."""
        self.watch.on_open()
        self._asked_at = None
        self.poller.on_open()
        if not resumed:
            self.poller.tell_again()

    def on_event(self, event: Event) -> None:
        """Marks first, then the poller; what follows is decided in `_keep_instance`."""
        self.watch.on_event(event.name, event.source, event.data)
        if event.name == "module.shutdown" and self.watch.lost is not Lost.NO:
            self.poller.paused = True
        elif event.name.startswith("module."):
            if event.data.get("module_id") == "launcher":
                self._log.info(event.name, module_id="launcher")
                self.poller.paused = self.poller.paused and self.watch.lost is not Lost.NO
                if event.name == "module.ready":
                    self.poller.tell_again()
            self.poller.on_event(event.name, event.data)
        self._look.set()

    def on_failure(self, decision: Decision) -> None:
        """One more failed attempt."""
        self.watch.on_failure(now=trio.current_time())
        self._look.set()

    def on_call(self, method: str, params: dict[str, Any]) -> Any:
        """Answer `watchdog.health` and `watchdog.status`."""
        if method == "health":
            return {"status": "degraded", "why": self.instance.gave_up} if self.instance.gave_up else {"status": "ok"}
        if method == "status":
            return {
                "since": self._since,
                "modules": self.poller.verdicts(),
                "instance": {
                    "launcher_offline": self.watch.offline,
                    "launcher_exiting": self.watch.exiting,
                    "starts": self.instance.starts,
                    "gave_up": self.instance.gave_up,
                },
                "restarts": self.poller.restarts,
                "stood_still": self.heartbeat.gaps.count,
            }
        raise KeyError(method)

    # ------------------------------------------------------------------ tasks

    def _leave(self, code: int) -> None:
        if self._exit is None:
            self._exit = code
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _keep_link(self) -> None:
        ended = await self.link.run()
        if ended is not None:
            self._leave(1)

    async def _signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as arrived:
            async for number in arrived:
                if number == signal.SIGHUP:
                    continue  # a terminal that went away is the launcher's business
                self._log.info("told to leave", by=signal.Signals(number).name)
                self.poller.paused = True
                await self.link.stop()
                self._leave(0)

    async def _keep_instance(self) -> None:
        period_s = max(0.05, LOOK_S * self._settings.options.scale)
        away = False
        while True:
            with trio.move_on_after(period_s if away else math.inf):  # an open wire says itself when something changes
                await self._look.wait()
            self._look = trio.Event()
            away = self.watch.facts(now=trio.current_time(), launcher_alive=True).kernel is not Kernel.OPEN
            alive = self.instance.launcher_alive() if away else True
            facts = self.watch.facts(
                now=trio.current_time(),
                launcher_alive=alive,
                ask_after_s=ASK_AFTER_S * self._settings.options.scale,
            )
            action, why = decide(facts)
            if action is Action.FOLLOW:
                self._log.info("follows the instance out", why=why)
                await self._acknowledge()
                await self.link.stop()
                self._leave(0)
            elif action is Action.START:
                await self._bring_back(why)
            elif action is Action.ASK:
                await self._remind(facts.away_s)

    async def _acknowledge(self) -> None:
        if self.watch.lost is not Lost.NO and not self._acknowledged:
            self._acknowledged = True
            self.link.publish("module.shutdown_ack", {"module_id": MODULE_ID})

    async def _bring_back(self, cause: str) -> None:
        """Start a fresh instance; then wait for the new launcher's clean-up, which begins with this process."""
        self.poller.paused = True
        await self._acknowledge()
        self.link.stay_away = self.watch.lost is not Lost.NO
        outcome = await self.instance.start_fresh(cause)
        if outcome is Outcome.LIVES:
            # Its wire is lost, its process is not: the launcher will see its kernel end and start another one.
            self.link.stay_away = False
            self.watch.lost = Lost.NO
            self.poller.paused = self._acknowledged = False
            return
        if outcome is Outcome.STARTED:
            await trio.sleep(STARTED_S)
        await self.link.stop()
        self._leave(1 if outcome is Outcome.GAVE_UP else 0)

    async def _remind(self, away_s: float) -> None:
        now, every_s = trio.current_time(), ASK_AFTER_S * self._settings.options.scale
        if self._asked_at is not None and now - self._asked_at < every_s:
            return
        self._asked_at = now
        reason = f"the kernel is unreachable for {away_s:.0f} s"
        self._log.error(
            "the kernel is unreachable and the launcher lives: asks it for a restart", away_s=round(away_s, 1)
        )
        said = await self.launcher.ask_socket("restart", {"module": "kernel", "reason": reason}, timeout_s=30.0)
        if not said.reached or said.refused is not None:
            self._log.error("the launcher does not help", why=said.refused)


def _version() -> str:
    try:
        return version("kite-kernel")
    except PackageNotFoundError:
        return "0"


class Refused(Exception):
    """A start that is refused: its exit code and one sentence. Whoever started it is to blame, never retried."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def read_settings(argv: list[str], environ: dict[str, str]) -> Settings:
    """Read flags, environment, token and options. Raises: Refused with an exit code and one sentence."""
    if len(argv) != 2 or argv[0] != "--state-dir":
        raise Refused(EXIT_USAGE, "usage: python -P -m kite_watchdog --state-dir DIR")
    state_dir = Path(argv[1])
    if not state_dir.is_dir():
        raise Refused(EXIT_CONFIG, f"{state_dir} is no folder")
    url = environ.get("KITE_URL", "")
    if not url.startswith(("ws://", "wss://")):
        raise Refused(EXIT_CONFIG, "KITE_URL is not set: the watchdog is started by kite-launch")
    options = Options()
    if path := environ.get("KITE_OPTIONS_FILE"):
        raw = read_own(Path(path), bytes_max=OPTIONS_BYTES_MAX)
        if isinstance(raw, Unread):
            raise Refused(EXIT_PERMISSION, raw.why)
        try:
            options = decode_options(raw)
        except OptionsError as error:
            raise Refused(EXIT_CONFIG, f"{path}: {error}") from None
    return Settings(state_dir.resolve(), url, _read_token(environ), environ.get("KITE_INSTANCE", ""), options)


def _read_token(environ: dict[str, str]) -> str:
    if number := environ.get("KITE_TOKEN_FD"):
        try:
            with open(int(number), "rb") as file:
                token = file.read(TOKEN_BYTES_MAX).decode("utf-8").strip()
        except (OSError, ValueError):
            raise Refused(EXIT_CONFIG, "KITE_TOKEN_FD names no readable descriptor") from None
    elif path := environ.get("KITE_TOKEN_FILE"):
        raw = read_own(Path(path), bytes_max=TOKEN_BYTES_MAX)
        if isinstance(raw, Unread):
            raise Refused(EXIT_PERMISSION, raw.why)
        token = raw.decode("utf-8", "replace").strip()
    else:
        raise Refused(EXIT_CONFIG, "no token: neither KITE_TOKEN_FD nor KITE_TOKEN_FILE is set")
    if not token:
        raise Refused(EXIT_CONFIG, "the token is empty")
    return token


async def _amain(settings: Settings, log: Log) -> int:
    return await Watchdog(settings, log).run()


def main() -> int:
    """Run the watchdog of one instance; returns the exit code. No traceback ever reaches a user."""
    try:
        settings = read_settings(sys.argv[1:], dict(os.environ))
    except Refused as refused:
        print(f"watchdog: {refused}", file=sys.stderr)  # noqa: T201 - there is no log yet
        return refused.code
    log = make_log(settings.options.log_format)
    try:
        return trio.run(_amain, settings, log)
    except KeyboardInterrupt:
        return 0
