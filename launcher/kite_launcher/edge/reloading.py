"""Carries a reload's plan out: only what changed is touched, a bad file changes nothing.

The plan is the core's; here each row becomes deeds, bounded by the times of the modules concerned. A crash half-way
leaves a launcher that reads the new file as a whole at its next start.
Source: spec 50 §4; 05 §3; cases S-61 … S-65.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from kite_launcher.core.child import State
from kite_launcher.core.keeper_orders import KeeperSettings
from kite_launcher.core.launch import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_PERMISSION, EXIT_UNAVAILABLE, RefusedError
from kite_launcher.core.reload import Change, Plan, plan_reload
from kite_launcher.core.spec import InstanceSpec, Loaded
from kite_launcher.core.unit_spec import UnitSpec, own_unit, units_of
from kite_launcher.edge.alarms import Alarms
from kite_launcher.edge.instance import Instance
from kite_launcher.edge.keeper import KeeperHouse
from kite_launcher.edge.listen import open_listener
from kite_launcher.edge.unit import Unit

SETTLE_S: Final = 2.5
TOKENS_S: Final = 1.0  # a kernel reads its tokens again within it (05 §2)


class Reloading:
    """Reloads one at a time."""

    def __init__(
        self,
        instance: Instance,
        keeper: KeeperHouse,
        alarms: Alarms,
        *,
        load: Callable[[], Loaded],
        keeper_settings: Callable[[InstanceSpec], KeeperSettings],
    ) -> None:
        self._instance, self._keeper, self._alarms = instance, keeper, alarms
        self._load, self._keeper_settings = load, keeper_settings
        self._turn = trio.Lock()

    async def file_changed(self) -> bool:
        """Say whether kite.toml now asks for something else than what runs."""
        loaded = await trio.to_thread.run_sync(self._load)
        return loaded.spec is None or not plan_reload(self._instance.spec, loaded.spec).empty

    async def run(self, dry_run: bool, caller: str) -> dict[str, Any]:
        """Make the plan and, unless `dry_run`, carry it out. Raises RefusedError 78 for a bad file."""
        async with self._turn:
            spec = await self._read()
            plan = plan_reload(self._instance.spec, spec)
            answer: dict[str, Any] = {**plan.to_json(), "exit": EXIT_OK}
            if dry_run:
                return answer
            self._instance.journal.info("reload", by=caller, changes=sum(row.action != "keep" for row in plan.changes))
            bad = await self._carry_out(plan, spec, caller)
            if bad:
                answer["exit"] = EXIT_NO
                answer["text"] = "\n".join(bad)
            return answer

    async def _read(self) -> InstanceSpec:
        loaded = await trio.to_thread.run_sync(self._load)
        if loaded.spec is not None:
            return loaded.spec
        file = "kite.toml"
        lines = tuple(mistake.line(file) for mistake in loaded.mistakes)
        denied = all(mistake.fault == "permission" for mistake in loaded.mistakes)
        self._instance.journal.error("reload refused", mistakes=len(lines), first=lines[0] if lines else "")
        raise RefusedError(
            EXIT_PERMISSION if denied else EXIT_CONFIG,
            lines[0] if len(lines) == 1 else f"{len(lines)} mistakes; the running configuration stays",
            "" if len(lines) == 1 else "mend the file and reload again",
            lines,
        )

    async def _carry_out(self, plan: Plan, spec: InstanceSpec, caller: str) -> list[str]:
        instance = self._instance
        rows = {row.name: row for row in plan.changes}
        self._new_address(rows.get("kernel"), spec)
        new_units = units_of(spec)
        instance.spec = instance.orders.spec = spec
        touched = [
            await self._own("kernel", rows.get("kernel"), spec),
            await self._watchdog(rows.get("watchdog"), spec),
        ]
        await self._stop_gone(plan, new_units, caller)
        fresh = self._take_specs(new_units)
        if fresh or rows.get("kernel") is not None:
            await self._new_tokens(new_units)
        touched += [self._change(rows.get(name), name, caller) for name in new_units if name not in fresh]
        touched += [self._begin(new_units[name]) for name in fresh]
        self._reorder(new_units)
        if "launcher" in rows:
            self._alarms.configure(spec.notify)
            await self._keeper.configure(self._keeper_settings(spec))
        return await self._settle([unit for unit in touched if unit is not None])

    def _new_address(self, row: Change | None, spec: InstanceSpec) -> None:
        """Take the new address first: when it is not to be had, nothing else has changed yet."""
        if row is None or not {"kernel.host", "kernel.port", "kernel.tls"}.intersection(row.keys):
            return
        instance = self._instance
        old = instance.orders.listener
        try:
            listener = open_listener(spec.kernel, {})
        except RefusedError as refused:
            it = refused.refusal
            exit_code = EXIT_UNAVAILABLE if it.exit == EXIT_UNAVAILABLE else EXIT_CONFIG
            raise RefusedError(exit_code, it.text, f"the running configuration stays; {it.hint}") from refused
        instance.orders.listener = listener
        instance.wire.url = listener.url
        old.close()

    async def _own(self, name: str, row: Change | None, spec: InstanceSpec) -> Unit | None:
        unit = self._instance.units.get(name)
        if unit is None:
            return None
        self._give(unit, own_unit("kernel" if name == "kernel" else "watchdog", spec))
        if row is None:
            return None
        if row.action == "restart":
            unit.order_restart(f"reload: {', '.join(row.keys)}")
            return unit
        if name == "kernel":
            self._instance.signal_kernel()
        return None

    async def _watchdog(self, row: Change | None, spec: InstanceSpec) -> Unit | None:
        instance = self._instance
        if row is not None and row.action == "start":
            instance.watchdog = instance.add(own_unit("watchdog", spec))
            instance.tokens.write()
            instance.watchdog.want("reload")
            return instance.watchdog
        if row is not None and row.action == "stop" and instance.watchdog is not None:
            unit, instance.watchdog = instance.watchdog, None
            unit.close("reload", reason="module_stop")
            await self._gone([unit])
            instance.remove("watchdog")
            return None
        return await self._own("watchdog", row, spec)

    async def _stop_gone(self, plan: Plan, new_units: dict[str, UnitSpec], caller: str) -> None:
        gone = [unit for unit in self._instance.modules() if unit.name not in new_units]
        for unit in gone:
            unit.close(f"{caller}: reload", reason="module_stop")
        await self._gone(gone)
        for unit in gone:
            if not unit.busy:
                self._instance.remove(unit.name)

    async def _gone(self, units: list[Unit]) -> None:
        if units:
            bound = trio.current_time() + max(unit.spec.stop_timeout_s for unit in units) + SETTLE_S
            await self._instance.house.changed.until(
                lambda: all(not unit.busy or unit.child.refusers for unit in units), bound
            )

    def _take_specs(self, new_units: dict[str, UnitSpec]) -> list[str]:
        """Give every unit that stays its new spec; returns the names that are new."""
        instance = self._instance
        fresh = []
        for name, spec in new_units.items():
            unit = instance.units.get(name)
            if unit is None:
                fresh.append(name)
            else:
                self._give(unit, spec)
        instance.relate()
        return fresh

    def _give(self, unit: Unit, spec: UnitSpec) -> None:
        unit.spec = spec
        unit.child.tally.policy = spec.policy
        self._instance.house.specs[unit.name] = spec
        unit.pulse.beat()

    async def _new_tokens(self, new_units: dict[str, UnitSpec]) -> None:
        """Make the kernel know everybody before anybody knocks: a stranger is refused for good."""
        instance = self._instance
        for name, spec in new_units.items():
            if spec.speaks_kite:
                instance.tokens.token(name, "module")
        instance.tokens.keep_only(frozenset(new_units))
        await self.tell_tokens()

    async def tell_tokens(self) -> None:
        """Have the kernel read the token table again; returns when it has, or can't be asked."""
        instance = self._instance
        instance.tokens.write()
        instance.signal_kernel()
        # Two answered calls after the signal: its handler has run before the second one is read.
        for _ in range(2):
            await instance.wire.call("kernel.info", {}, timeout_s=TOKENS_S)

    def _change(self, row: Change | None, name: str, caller: str) -> Unit | None:
        unit = self._instance.units[name]
        if row is None or row.action != "restart" or unit.child.by_hand:
            return None
        if not unit.order_restart(f"{caller}: reload ({', '.join(row.keys)})"):
            unit.want(f"{caller}: reload", fresh=True)
        return unit

    def _begin(self, spec: UnitSpec) -> Unit:
        unit = self._instance.add(spec)
        unit.want("reload")
        return unit

    def _reorder(self, new_units: dict[str, UnitSpec]) -> None:
        """Bring the units into the new file's order."""
        instance = self._instance
        own = {name: unit for name, unit in instance.units.items() if name not in new_units}
        instance.units.update({name: instance.units.pop(name) for name in (*own, *new_units) if name in instance.units})
        children = instance.house.children
        children.update({name: children.pop(name) for name in list(instance.units)})

    async def _settle(self, units: list[Unit]) -> list[str]:
        """Wait until what was touched runs again or shows why not; returns the latter in words."""
        if not units:
            return []
        bound = trio.current_time() + SETTLE_S + max(unit.spec.stop_timeout_s for unit in units)

        def done(unit: Unit) -> bool:
            state = unit.child.state
            return state in (State.RUNNING, State.DONE, State.FAILED, State.BACKOFF) and not unit.ordered

        await self._instance.house.changed.until(lambda: all(done(unit) for unit in units), bound)
        bad = [unit for unit in units if unit.child.state in (State.FAILED, State.BACKOFF) or unit.child.refusers]
        return [f"{unit.name}: {unit.child.state.value}: {unit.child.why}" for unit in bad]
