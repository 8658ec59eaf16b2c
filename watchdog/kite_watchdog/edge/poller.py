"""Asks modules for their health and has the launcher restart what fails; decides nothing that `core.health` decides.

One task a module; a hung module holds up nobody else. Source: spec 60-watchdog §1.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs
import trio

from kite_watchdog.core.answers import sample_of
from kite_watchdog.core.frames import plain
from kite_watchdog.core.health import AFTER_FAILURE_S, Change, Health, Kind, Sample, Step, Verdict
from kite_watchdog.core.options import HEALTH_S, Options
from kite_watchdog.edge.heartbeat import Heartbeat
from kite_watchdog.edge.launcher import Launcher
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.log import Log

DUE_S: Final = 5.0  # seconds, scaled; spec 60 §1
REFRESH_S: Final = 60.0  # seconds, scaled: methods that were registered late are found then
STATS_S: Final = 5.0  # seconds, scaled: whose pings are unanswered
STATS_PER_MODULE_S: Final = 0.02  # seconds: with very many modules the question itself is not free
SILENT_MAX: Final = 3  # questions in a row that the kernel left unanswered before the wire is given up
BACK_S: Final = 60.0  # seconds, not scaled: stop_timeout, back-off and ready_timeout are the module's own
ASK_S: Final = 30.0  # seconds: the launcher's answer to a restart
ASK_AGAIN: Final = 3  # times that a launcher which can't be reached is asked again
FIRST_SPREAD_S: Final = 2.0  # seconds, scaled: modules that became ready together are not asked together
MODULES_MAX: Final = 10_000
NOT_MODULES: Final = ("kernel", "launcher", "watchdog", "logkeeper", "operator")


class Stacks(Protocol):
    """Keeps the stacks of a hung module; gives the file's name or None."""

    async def keep(self, module_id: str, *, methods: tuple[str, ...], pid: int | None) -> str | None:
        """Never raises; bounded."""


@attrs.define(eq=False)
class _Module:
    id: str
    health: Health
    methods: tuple[str, ...] = ()
    on_purpose: bool = False
    wake: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    since: float = 0.0


class Poller:
    """The health of all modules."""

    def __init__(
        self,
        *,
        link: Link,
        launcher: Launcher,
        heartbeat: Heartbeat,
        stacks: Stacks,
        options: Options,
        log: Log,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._link, self._launcher, self._heartbeat, self._stacks = link, launcher, heartbeat, stacks
        self.options, self._log, self._rng = options, log, rng
        self._modules: dict[str, _Module] = {}
        self._nursery: trio.Nursery | None = None
        self._refresh = trio.Event()
        self.paused = False  # the instance ends: nobody is asked or restarted any more
        self.restarts = 0  # asked of the launcher since this process began

    async def run(self) -> None:
        """Ask for ever. Cancel: safe; a restart that was asked for may happen."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._refreshes)
            nursery.start_soon(self._pings)

    def verdicts(self) -> list[dict[str, Any]]:
        """Give what is known about each module, for `watchdog.status`."""
        return [
            {
                "module_id": m.id,
                "verdict": m.health.verdict.value,
                "why": m.health.why,
                "failures": m.health.failures,
                "restarts": m.health.restarts,
                "for_s": round(trio.current_time() - m.since, 3),
            }
            for m in self._modules.values()
        ]

    # ------------------------------------------------------------------ what the wire says

    def on_open(self) -> None:
        """The wire is open: the registry may have changed."""
        self._refresh.set()

    def tell_again(self) -> None:
        """Repeat what is not well: the launcher, which keeps it for `status`, may have been away when it was said."""
        for module in self._modules.values():
            health = module.health
            if health.verdict not in (Verdict.UNKNOWN, Verdict.HEALTHY, Verdict.RESTARTING):
                self._tell(module, Change(health.verdict, health.verdict, health.why, health.failures))

    def on_event(self, name: str, data: dict[str, Any]) -> None:
        """Follow a module's comings and goings."""
        module_id = data.get("module_id")
        module = self._modules.get(module_id) if isinstance(module_id, str) else None
        if name == "module.ready":
            self._refresh.set()
            if module is not None:
                away = module.health.verdict in (Verdict.GONE, Verdict.RESTARTING, Verdict.FAILED)
                module.on_purpose = False
                self._act(module, module.health.on_ready(restarted=away))
                module.wake.set()
        elif module is not None and name == "module.exiting":
            module.on_purpose = True
        elif module is not None and name == "module.offline":
            why = "left on purpose" if module.on_purpose else f"off the wire ({plain(str(data.get('reason', '')), 80)})"
            self._act(module, module.health.on_away(why))
            module.wake.set()

    # ------------------------------------------------------------------ registry and pings

    async def _refreshes(self) -> None:
        while True:
            with trio.move_on_after(REFRESH_S * self.options.scale):
                await self._refresh.wait()
            self._refresh = trio.Event()
            answer = await self._link.call("registry.list_modules", {}, timeout_s=max(1.0, DUE_S * self.options.scale))
            value = answer.value() if answer.error is None else None
            rows = value.get("modules") if isinstance(value, dict) else None
            for row in rows if isinstance(rows, list) else []:
                if isinstance(row, dict):
                    self._note(row)

    def _note(self, row: dict[str, Any]) -> None:
        module_id, listed = row.get("module_id"), row.get("methods")
        if not isinstance(module_id, str) or module_id in NOT_MODULES or self._nursery is None:
            return
        names = [m.get("name") if isinstance(m, dict) else m for m in listed] if isinstance(listed, list) else []
        methods = tuple(n.removeprefix(f"{module_id}.") for n in names if isinstance(n, str))
        interval_s = self.options.interval_of(module_id)
        asks = "health" in methods and interval_s is not None
        module = self._modules.get(module_id)
        if module is None:
            if not (asks or self.options.knows(module_id)) or len(self._modules) >= MODULES_MAX:
                return
            if row.get("state") == "offline" and not self.options.knows(module_id):
                return
            module = self._modules[module_id] = _Module(module_id, self._fresh(asks, interval_s))
            module.since = trio.current_time()
            self._nursery.start_soon(self._watch, module)
        elif module.health.asks is not asks and row.get("state") == "ready":
            module.health = self._fresh(asks, interval_s)
            module.wake.set()
        module.methods = methods

    def _fresh(self, asks: bool, interval_s: float | None) -> Health:
        scale = self.options.scale
        return Health(interval_s=interval_s or HEALTH_S * scale, scale=scale, asks=asks)

    async def _pings(self) -> None:
        silent = 0
        while True:
            pause_s = max(STATS_S * self.options.scale, STATS_PER_MODULE_S * len(self._modules))
            await trio.sleep(pause_s)
            if not self._link.is_open:
                silent = 0
                continue
            begin = trio.current_time()
            answer = await self._link.call(
                "kernel.get_connection_stats", {}, timeout_s=max(1.0, DUE_S * self.options.scale)
            )
            if answer.lost and self._link.is_open:
                self._heartbeat.beat()
                silent = 0 if self._heartbeat.gaps.since(begin) is not None else silent + 1
                if silent >= SILENT_MAX:
                    silent = 0
                    self._link.drop(f"the kernel left {SILENT_MAX} questions in a row unanswered")
                continue
            silent = 0
            value = answer.value() if answer.error is None else None
            rows = value.get("modules") if isinstance(value, dict) else None
            for row in rows if isinstance(rows, list) else []:
                self._note_pings(row)

    def _note_pings(self, row: object) -> None:
        if not isinstance(row, dict):
            return
        module, ping = self._modules.get(str(row.get("module_id"))), row.get("ping")
        unanswered = ping.get("unanswered") if isinstance(ping, dict) else None
        if module is not None and isinstance(unanswered, int):
            self._act(module, module.health.on_pings(unanswered))

    # ------------------------------------------------------------------ one module

    async def _watch(self, module: _Module) -> None:
        due = trio.current_time() + self._rng() * min(
            module.health.next_interval_s(), FIRST_SPREAD_S * self.options.scale
        )
        while True:
            with trio.move_on_at(due):
                await module.wake.wait()
            if module.wake.is_set():
                module.wake = trio.Event()
                due = min(due, trio.current_time() + module.health.next_interval_s())
                continue
            begin = trio.current_time()
            counted = await self._ask_health(module, begin)
            pause_s = module.health.next_interval_s()
            if not counted:
                pause_s = min(pause_s, AFTER_FAILURE_S * self.options.scale)
            due = max(begin + pause_s, trio.current_time())

    async def _ask_health(self, module: _Module, begin: float) -> bool:
        """Make one health call; True = it counted."""
        if self.paused or not self._link.is_open:
            return False
        if not module.health.asks and module.health.verdict is not Verdict.GONE:
            return False
        due_s = DUE_S * self.options.scale
        sample: Sample | None
        if module.health.asks:
            self._heartbeat.running[module] = begin
            try:
                answer = await self._link.call(f"{module.id}.health", {}, timeout_s=due_s, wait=False)
            finally:
                self._heartbeat.running.pop(module, None)
            sample = sample_of(answer, due_s=due_s)
        else:
            sample = Sample(Kind.AWAY, module.health.why)
        if sample is None or self.paused:
            return False
        if sample.kind is Kind.TIMEOUT and (gap := await self._heartbeat.stood_still(begin)) is not None:
            self._log.info("a missed health answer is not counted", module_id=module.id, stood_still=gap.kind)
            return False
        self._act(module, module.health.on_sample(sample))
        if sample.kind is Kind.AWAY:
            await self._look(module)
        return True

    async def _look(self, module: _Module) -> None:
        """Ask the launcher whether a module that is off the wire runs at all."""
        pid = await self._pid_of(module.id)
        if pid is None:
            module.health.on_not_alive()
        else:
            self._act(module, module.health.on_alive(pid, now=trio.current_time()))

    async def _pid_of(self, module_id: str) -> int | None:
        said = await self._launcher.ask("status", {}, timeout_s=max(1.0, DUE_S * self.options.scale))
        rows = said.result.get("modules") if isinstance(said.result, dict) else None
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and row.get("name") == module_id and row.get("state") == "running":
                pid = row.get("pid")
                return pid if isinstance(pid, int) and not isinstance(pid, bool) else None
        return None

    def _act(self, module: _Module, step: Step) -> None:
        if step.change is not None:
            self._tell(module, step.change)
        if step.gave_up is not None:
            self._log.error("gave up on a module", module_id=module.id, why=step.gave_up)
            self._link.publish("watchdog.gave_up", {"what": "module", "module_id": module.id, "why": step.gave_up})
        if step.restart is not None and self._nursery is not None:
            self._nursery.start_soon(self._restart, module, step.restart)

    def _tell(self, module: _Module, change: Change) -> None:
        module.since = trio.current_time()
        quiet = change.verdict in (Verdict.HEALTHY, Verdict.UNKNOWN)
        say = self._log.info if quiet else self._log.warning
        say("module", module_id=module.id, verdict=change.verdict.value, was=change.was.value, why=change.why)
        data = {
            "module_id": module.id,
            "verdict": change.verdict.value,
            "was": change.was.value,
            "why": change.why,
            "failures": change.failures,
        }
        self._link.publish("watchdog.module", data)

    async def _restart(self, module: _Module, reason: str) -> None:
        """Keep the stacks of a hung module, ask the launcher, and see whether it comes back."""
        health = module.health
        if reason.startswith((Verdict.HUNG.value, Verdict.GONE.value)):
            pid = await self._pid_of(module.id)
            kept = await self._stacks.keep(module.id, methods=module.methods, pid=pid)
            if kept is not None:
                reason = f"{reason}; stacks in {kept}"
        if self.paused or health.verdict is not Verdict.RESTARTING:
            return  # it came back while the stacks were taken
        self.restarts += 1
        self._log.warning("asks the launcher for a restart", module_id=module.id, reason=reason)
        self._link.publish("watchdog.restart", {"what": "module", "module_id": module.id, "reason": reason})
        params = {"module": module.id, "reason": reason}
        said = await self._launcher.order("restart", params, timeout_s=ASK_S)
        for _ in range(ASK_AGAIN):
            if said.reached or said.may_be or self.paused or health.verdict is not Verdict.RESTARTING:
                break
            await trio.sleep(AFTER_FAILURE_S * self.options.scale)  # its wire is away for a moment
            said = await self._launcher.order("restart", params, timeout_s=ASK_S)
        if said.refused is not None and said.reached:
            self._act(module, health.on_refused(f"the launcher refused a restart: {said.refused}"))
            return
        await trio.sleep(BACK_S)
        if module.health is health:
            self._act(module, health.on_not_back(BACK_S))
