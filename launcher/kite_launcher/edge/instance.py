"""One running instance: its units, in which order they start and stop, and what ties them together.

Kernel first, then the watchdog, then the modules as their order allows; the reverse at the end, with the proof that
nothing is left. What the kernel says over the wire reaches the units here.
Source: spec 50 §1–§3; 05 §8; cases S-15, S-19, S-34, S-67.
"""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import trio

from kite_launcher.core.child import State
from kite_launcher.core.gate import is_settled
from kite_launcher.core.keeper_orders import Exited
from kite_launcher.core.launch import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_PERMISSION, EXIT_UNAVAILABLE, EXIT_USAGE
from kite_launcher.core.spec import InstanceSpec
from kite_launcher.core.takeover import restore_child
from kite_launcher.core.unit_spec import UnitSpec, own_unit, units_of
from kite_launcher.edge.house import House
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.notify import NotifyRoom, hear
from kite_launcher.edge.orders import OrderMaker
from kite_launcher.edge.tokens import TokenTable
from kite_launcher.edge.unit import Unit
from kite_launcher.edge.wire import KernelWire

WIRE_WAIT_S: Final = 5.0  # a kernel that is ready but does not let the launcher in does not hold the modules up
STALE_S: Final = 0.5
HURRY_EVERY_S: Final = 0.1
# A kernel that ends with one of these before it was ever ready ends so the next time, too.
FATAL_EXITS: Final = frozenset({EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_PERMISSION, EXIT_CONFIG})


class Instance:
    """The units of one instance and what joins them. `stop(exit, cause)` asks for the end from anywhere."""

    def __init__(
        self,
        house: House,
        spec: InstanceSpec,
        orders: OrderMaker,
        tokens: TokenTable,
        notify: NotifyRoom,
        wire: KernelWire,
    ) -> None:
        self.house, self.spec, self.orders, self.tokens = house, spec, orders, tokens
        self.notify, self.wire = notify, wire
        self.units: dict[str, Unit] = {}
        self.kernel = self._make(own_unit("kernel", spec))
        self.watchdog: Unit | None = self._make(own_unit("watchdog", spec)) if spec.watchdog.enabled else None
        self.unwell: dict[str, str] = {}
        self.stopping = trio.Event()
        self.exit = EXIT_OK
        self.cause = ""
        self._stop_due: float | None = None
        self._nursery: trio.Nursery | None = None
        self._ears: dict[str, trio.CancelScope] = {}
        self.ears: dict[str, tuple[socket.socket, str]] = {}  # left by an earlier launcher, not yet taken
        self.sockets: dict[str, socket.socket] = {}
        self.restored = False
        self._dependents: dict[str, list[Unit]] = {}
        house.on_change = self._changed
        house.on_crash = self._crashed
        wire.on_event = self._heard

    @property
    def journal(self) -> Journal:
        """The launcher's voice."""
        return self.house.journal

    def modules(self) -> list[Unit]:
        """Return the module units in file order."""
        return [unit for unit in self.units.values() if unit.spec.role == "module"]

    # -- making and removing units ---------------------------------------------------------------------------

    def _make(self, spec: UnitSpec) -> Unit:
        unit = Unit(spec, self.house)
        self.units[spec.name] = unit
        self.house.specs[spec.name], self.house.children[spec.name] = spec, unit.child
        if spec.speaks_kite:
            self.tokens.token(spec.name, "watchdog" if spec.role == "watchdog" else "module")
        return unit

    def make_modules(self, by_hand: frozenset[str]) -> None:
        """Make the units of all modules; those in `by_hand` stay stopped."""
        for name, spec in units_of(self.spec).items():
            unit = self._make(spec)
            unit.child.by_hand = name in by_hand
            if unit.child.by_hand:
                unit.child.why = "stopped by hand"
        self.relate()

    def relate(self) -> None:
        """Learn anew who waits for whom."""
        self._dependents = {}
        for unit in self.units.values():
            for name in unit.spec.after:
                self._dependents.setdefault(name, []).append(unit)

    def launch(self, unit: Unit) -> None:
        """Start the unit's task and its notify socket."""
        assert self._nursery is not None, "the instance runs"
        if unit.spec.role == "module":
            try:
                ears = self.ears.pop(unit.name, None)
                bound, path = ears if ears is not None else self.notify.bind(unit.name)
            except OSError as error:
                self.journal.warning("no notify socket", name=unit.name, why=error.strerror)
            else:
                self.sockets[unit.name] = bound
                self.orders.notify_paths[unit.name] = path
                scope = self._ears[unit.name] = trio.CancelScope()
                self._nursery.start_soon(self._listen, unit, bound, scope)
        self._nursery.start_soon(unit.run)

    def restore(self, stories: dict[str, dict[str, Any]]) -> None:
        """Take over what an earlier launcher left: who runs is adopted, everybody else is where it was."""
        self.restored = True
        self.house.open = True
        for name, data in stories.items():
            unit = self.units.get(name)
            if unit is None:
                continue
            identity = restore_child(unit.child, data, now=trio.current_time())
            if identity is None:
                continue
            state = data["state"]
            unit.adopt(identity, int(data["run"]), ready=state == State.RUNNING.value)
            if state == State.STOPPING.value:
                unit.order_stop("upgrade", then="restart" if data["wanted"] else "stopped")

    async def _listen(self, unit: Unit, bound: Any, scope: trio.CancelScope) -> None:
        with scope, bound:
            await hear(bound, self.orders.uids(unit.spec), unit.heard_note)

    def add(self, spec: UnitSpec) -> Unit:
        """Add a unit while running (a reload)."""
        unit = self._make(spec)
        self.relate()
        self.launch(unit)
        return unit

    def remove(self, name: str) -> None:
        """Forget a unit whose task has returned or will: it was closed."""
        self.units.pop(name, None)
        self.house.specs.pop(name, None)
        self.house.children.pop(name, None)
        self.orders.notify_paths.pop(name, None)
        self.sockets.pop(name, None)
        scope = self._ears.pop(name, None)
        if scope is not None:
            scope.cancel()
        self.unwell.pop(name, None)
        self.relate()
        self.house.changed.beat()

    # -- start -----------------------------------------------------------------------------------------------

    async def run(self, nursery: trio.Nursery) -> None:
        """Start everything and attend it until `stopping`; then stop everything."""
        self._nursery = nursery
        for unit in list(self.units.values()):
            self.launch(unit)
        async with trio.open_nursery() as booting:
            booting.start_soon(self._boot)
            booting.start_soon(self._watch_kernel)
            await self.stopping.wait()
            booting.cancel_scope.cancel()

    async def _boot(self) -> None:
        if self.restored:
            return
        self.kernel.want("up")
        for unit in self.modules():
            if not unit.child.by_hand:
                unit.want("up")
        await self.house.changed.until(lambda: self.kernel.child.ready)
        await self.wire.pulse.until(lambda: self.wire.connected, trio.current_time() + WIRE_WAIT_S)
        if self.watchdog is not None:
            self.watchdog.want("up")
        self.house.open = True
        for unit in self.modules():
            unit.pulse.beat()

    async def _watch_kernel(self) -> None:
        """Stop the instance when its kernel can't be had."""
        child = self.kernel.child

        def lost() -> bool:
            fatal = child.exit_code in FATAL_EXITS and not self.house.open
            return child.state is State.FAILED or (fatal and child.state is State.BACKOFF)

        await self.house.changed.until(lost)
        code = child.exit_code
        lines = await self.house.keeper.tail("kernel", 5)
        why = f"the kernel can't be kept: {child.why}" + "".join(f"\n  {line}" for line in lines)
        self.stop(code if code is not None and code in FATAL_EXITS and not self.house.open else EXIT_NO, why)

    def settled(self) -> bool:
        """Say whether all enabled modules are ready or settled."""
        return self.house.open and all(
            is_settled(unit.name, self.house.specs, self.house.children) for unit in self.modules()
        )

    # -- what is heard ---------------------------------------------------------------------------------------

    def heard_exit(self, exited: Exited) -> None:
        """The keeper told of an end."""
        unit = self.units.get(exited.name)
        if unit is not None:
            unit.heard_exit(exited)

    def _heard(self, event: str, data: dict[str, Any]) -> None:
        name = data.get("module_id")
        unit = self.units.get(name) if isinstance(name, str) else None
        if unit is None or unit.spec.role == "kernel":
            return
        if event == "module.ready" and unit.spec.speaks_kite:
            unit.heard_ready()
        elif event == "module.exiting":
            unit.child.tell("said module.exiting", self.house.moment(), detail=str(data.get("reason") or ""))
        elif event.startswith("watchdog.module"):
            self._heard_health(unit, data)
        elif event == "watchdog.gave_up":
            self.house.alarm(unit.name, "gave_up", str(data.get("why") or ""))

    def _heard_health(self, unit: Unit, data: dict[str, Any]) -> None:
        verdict, why = str(data.get("verdict") or data.get("state") or ""), str(data.get("why") or "")
        # What is said of a module that is not up (gone, restarting) is the launcher's own doing, and known.
        if verdict in ("", "healthy", "ok", "good", "unknown") or unit.child.state is not State.RUNNING:
            if self.unwell.pop(unit.name, None) is not None:
                unit.child.tell("healthy again", self.house.moment(), cause="watchdog")
        else:
            text = f"{verdict}: {why}" if why else verdict
            if self.unwell.get(unit.name) != text:
                unit.child.tell("unwell", self.house.moment(), cause="watchdog", detail=text)
            self.unwell[unit.name] = text
        self.house.changed.beat()

    async def wire_opened(self) -> None:
        """The wire is open again: learn who became ready while it was away."""
        answer = await self.wire.call("registry.list_modules", {}, timeout_s=WIRE_WAIT_S)
        result = answer.get("result") if answer is not None else None
        for row in result.get("modules", []) if isinstance(result, dict) else []:
            unit = self.units.get(str(row.get("module_id")))
            run = unit.current if unit is not None else None
            if unit is None or run is None or not unit.spec.speaks_kite or row.get("state") != "ready":
                continue
            # A row older than this run speaks of the last one.
            if _wall(row.get("since")) >= run.started_wall - STALE_S:
                unit.heard_ready()

    def _changed(self, name: str) -> None:
        for dependent in self._dependents.get(name, ()):
            dependent.pulse.beat()
        unit = self.units.get(name)
        if unit is None or self.stopping.is_set():
            return
        child = unit.child
        if child.state is not State.RUNNING:
            self.unwell.pop(name, None)
        if child.state is State.FAILED and unit.spec.essential and child.next_try is None:
            self.stop(EXIT_NO, f"{name} is essential and failed: {child.why}")

    def _crashed(self, name: str) -> None:
        """Restart the others of its group, as the group's strategy says."""
        unit = self.units.get(name)
        group = self.spec.groups.get(unit.spec.group or "") if unit is not None else None
        if unit is None or group is None or group.strategy == "one_for_one" or self.stopping.is_set():
            return
        names = [other.name for other in self.modules() if other.spec.group == group.name]
        others = names if group.strategy == "one_for_all" else names[names.index(name) + 1 :]
        for member in others:
            if member != name:
                self.units[member].order_restart(f"group {group.name}: {name} ended")

    # -- orders to the whole ---------------------------------------------------------------------------------

    def stop(self, exit_code: int, cause: str, *, timeout_s: float | None = None) -> None:
        """Have the instance end; the first cause counts, a shorter time is taken over."""
        if not self.stopping.is_set():
            self.exit, self.cause = exit_code, cause
            self.journal.info("the instance stops", cause=cause)
            self.stopping.set()
        if timeout_s is not None:
            due = trio.current_time() + timeout_s
            self._stop_due = due if self._stop_due is None else min(due, self._stop_due)
            self.house.changed.beat()

    def press(self, level: int) -> None:
        """Hurry everything that is being stopped."""
        for unit in self.units.values():
            unit.press(level)

    def signal_kernel(self, number: int = signal.SIGHUP) -> None:
        """Have a ready kernel read its tokens and permissions again."""
        run = self.kernel.current
        if run is None or not self.kernel.child.ready:
            return  # a starting kernel reads them anyway, and would die of the signal
        handle = self.house.processes.open(run.identity)
        if handle is not None:
            handle.signal(number)
            handle.close()

    async def shut(self) -> list[str]:
        """Stop everything in order; returns who refuses to die."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hurry)
            modules = self.modules()
            for unit in modules:
                unit.freeze(self.cause)
            async with trio.open_nursery() as stops:
                for unit in modules:
                    stops.start_soon(self._close_in_turn, unit)
            if self.watchdog is not None:
                await self._close(self.watchdog)
            await self.wire.leave()
            await self._close(self.kernel)
            nursery.cancel_scope.cancel()
        return [f"{unit.name} ({unit.child.why})" for unit in self.units.values() if unit.busy]

    async def _hurry(self) -> None:
        """Kill what is left once the time that `down` was given is over."""
        while self._stop_due is None or trio.current_time() < self._stop_due:
            await self.house.changed.wait(math.inf if self._stop_due is None else self._stop_due)
        while True:
            self.press(2)
            await trio.sleep(HURRY_EVERY_S)

    async def _close_in_turn(self, unit: Unit) -> None:
        """Stop one module once nobody who needs it is left."""

        def free() -> bool:
            return not any(_here(other) for other in self._dependents.get(unit.name, ()))

        await self.house.changed.until(free)
        await self._close(unit)

    async def _close(self, unit: Unit) -> None:
        unit.close(self.cause)
        await self.house.changed.until(lambda: not _here(unit))

    # -- for reports -----------------------------------------------------------------------------------------

    def grades(self, rows: Iterable[dict[str, Any]]) -> dict[str, str]:
        """Return the grade of each module's connection from the kernel's rows."""
        return {str(row.get("module_id")): str(row["grade"]) for row in rows if row.get("grade") is not None}


def _here(unit: Unit) -> bool:
    return unit.busy and not unit.child.refusers


def _wall(since: object) -> float:
    if isinstance(since, int | float) and not isinstance(since, bool):
        return float(since)
    try:
        return datetime.fromisoformat(str(since)).timestamp()
    except ValueError:
        return 0.0
