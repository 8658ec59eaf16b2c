"""A machine in memory: processes, a log keeper and a wire for the supervisor's own code on the virtual clock.

A program is a `Program`: what it does when it is started, told by the virtual clock. Real processes and a virtual
clock lie to each other; here hours of supervision pass in milliseconds, with the real units, trees and budgets.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from kite_launcher.core.keeper_orders import Exited, Forked, Spawned, SpawnFailed, SpawnOrder
from kite_launcher.core.proc import Identity, Proc, Snapshot
from kite_launcher.core.restart import Policy
from kite_launcher.core.unit_spec import UnitSpec
from kite_launcher.edge.house import House, Prepared
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.record_book import RecordBook
from kite_launcher.edge.statedir import StateDir
from kite_launcher.edge.unit import Unit

LAUNCHER_PID = 2
KEEPER_PID = 3


@attrs.define
class Program:
    """What one run does. None lets it live until a signal ends it.

    `ends_after_s`: it ends by itself with `status` (a raw wait status). `term_s`: how long it takes to end on its
    stop signal, None ignores it. `immortal`: KILL is refused. `ready_after_s`: when it says `module.ready`, None for
    never. `memory`: bytes it holds. `child`: a further process of its tree that ignores everything but KILL.
    """

    ends_after_s: float | None = None
    status: int = 0
    term_s: float | None = 0.0
    immortal: bool = False
    ready_after_s: float | None = 0.0
    memory: int = 0
    child: bool = False
    fails: SpawnFailed | None = None


@attrs.define(eq=False)
class FakeProcess:
    """One row of the table."""

    pid: int
    ppid: int
    ticks: int
    name: str
    program: Program
    ended: trio.Event = attrs.field(factory=trio.Event)
    signals: list[int] = attrs.field(factory=list[int])
    status: int = 0

    @property
    def identity(self) -> Identity:
        """Pid and ticks."""
        return Identity(self.pid, self.ticks)


@attrs.define(eq=False)
class FakeHandle:
    """A hold on one process."""

    machine: Machine
    process: FakeProcess
    identity: Identity

    def signal(self, number: int) -> str | None:
        """Deliver a signal."""
        return self.machine.deliver(self.process, number)

    async def wait_ended(self) -> None:
        """Wait for its end."""
        await self.process.ended.wait()

    def close(self) -> None:
        """Nothing to close."""


class Machine:
    """The process table, the keeper and the clock's tasks. `run` it in a nursery."""

    boot_id = "boot"

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._next = 100
        self.table: dict[int, FakeProcess] = {}
        self.programs: dict[str, Callable[[int], Program]] = {}
        self.starts: dict[str, list[float]] = {}
        self.on_exit: Callable[[Exited], None] = lambda _exited: None
        self.on_ready: Callable[[str], None] = lambda _name: None
        self.lines: dict[str, list[str]] = {}

    # -- the process table (edge.processes.Processes) --------------------------------------------------------

    def find(self, pid: int) -> Proc | None:
        """Read one row."""
        return self._rows().get(pid)

    def open(self, identity: Identity) -> FakeHandle | None:
        """Take hold of a live process."""
        process = self.table.get(identity.pid)
        if process is None or process.identity != identity or process.ended.is_set():
            return None
        return FakeHandle(self, process, identity)

    async def snapshot(self) -> Snapshot:
        """Look at all."""
        await trio.sleep(0.01)
        return self._rows()

    def _rows(self) -> dict[int, Proc]:
        rows = {
            process.pid: Proc(process.pid, process.ppid, process.pid, process.pid, process.ticks, "S", process.name)
            for process in self.table.values()
            if not process.ended.is_set()
        }
        rows[LAUNCHER_PID] = Proc(LAUNCHER_PID, 1, LAUNCHER_PID, LAUNCHER_PID, 1, "S")
        rows[KEEPER_PID] = Proc(KEEPER_PID, LAUNCHER_PID, KEEPER_PID, KEEPER_PID, 2, "S")
        return rows

    def memory_bytes(self, pids: tuple[int, ...]) -> int:
        """Sum what they hold."""
        return sum(self.table[pid].program.memory for pid in pids if pid in self.table)

    # -- the keeper (edge.house.Keeping) ---------------------------------------------------------------------

    async def spawn(self, order: SpawnOrder, on_forked: Callable[[Forked], Awaitable[None]]) -> Spawned | SpawnFailed:
        """Start the next run of a name's program."""
        runs = self.starts.setdefault(order.name, [])
        runs.append(trio.current_time())
        program = self.programs[order.name](len(runs))
        if program.fails is not None:
            return program.fails
        leader = self._make(order.name, KEEPER_PID, program)
        await on_forked(Forked(order.name, len(runs), leader.pid, leader.ticks))
        if program.child:
            self._make(order.name, leader.pid, Program(term_s=None, memory=program.memory))
        self._nursery.start_soon(self._live, leader, len(runs))
        return Spawned(order.name, len(runs), leader.pid, leader.ticks)

    def _make(self, name: str, ppid: int, program: Program) -> FakeProcess:
        self._next += 1
        process = FakeProcess(self._next, ppid, self._next * 10, name, program)
        self.table[process.pid] = process
        return process

    async def _live(self, process: FakeProcess, run: int) -> None:
        program = process.program
        if program.ready_after_s is not None:
            self._nursery.start_soon(self._say_ready, process, program.ready_after_s)
        if program.ends_after_s is not None:
            with trio.move_on_after(program.ends_after_s):
                await process.ended.wait()
            self._end(process, program.status)
        await process.ended.wait()
        at = f"{trio.current_time():.3f}"
        self.on_exit(Exited(process.name, run, process.pid, process.ticks, process.status, at))

    async def _say_ready(self, process: FakeProcess, after_s: float) -> None:
        await trio.sleep(after_s)
        if not process.ended.is_set():
            self.on_ready(process.name)

    def deliver(self, process: FakeProcess, number: int) -> str | None:
        """Deliver a signal as the program takes it."""
        if process.ended.is_set():
            return None
        process.signals.append(number)
        if number == signal.SIGKILL:
            if process.program.immortal:
                return "signal 9: Operation not permitted"
            self._end(process, number)
        elif number != signal.SIGCONT and process.program.term_s is not None:
            self._nursery.start_soon(self._end_later, process, number, process.program.term_s)
        return None

    async def _end_later(self, process: FakeProcess, number: int, after_s: float) -> None:
        await trio.sleep(after_s)
        self._end(process, number)

    def _end(self, process: FakeProcess, status: int) -> None:
        if not process.ended.is_set():
            process.status = status
            process.ended.set()

    async def wait_log(self, name: str, run: int, regex: str) -> str:
        """Logs are another room's business."""
        await trio.sleep_forever()
        return ""

    async def tail(self, name: str, n: int) -> list[str]:
        """Return the last lines."""
        return self.lines.get(name, [])[-n:]

    def living(self, name: str) -> list[FakeProcess]:
        """Return the live processes of a name."""
        return [process for process in self.table.values() if process.name == name and not process.ended.is_set()]


class FakeWire:
    """A wire to the kernel that can be away; a module told to leave ends after `polite_s`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.connected = True
        self.deaf: set[str] = set()
        self.said: list[tuple[str, Any]] = []

    async def shutdown_module(self, name: str, reason: str, deadline_s: float) -> bool:
        """Have one module leave."""
        self.said.append(("module.shutdown", (name, reason)))
        if name not in self.deaf:
            for process in self._machine.living(name):
                self._machine._end(process, 0)  # the fake's own other half
        return True

    def publish(self, event: str, data: dict[str, Any]) -> None:
        """Remember what was said."""
        self.said.append((event, data))


class FakeOrders:
    """Orders without environment, descriptors or files."""

    def prepare(self, spec: UnitSpec) -> Prepared:
        """Return a bare order."""
        return Prepared(SpawnOrder(name=spec.name, argv=(spec.name,), env={}, cwd="/"), [], lambda: None)


@attrs.define(eq=False)
class World:
    """A house with its machine; `add` units, `start` them, look at `machine` and the units' children."""

    house: House
    machine: Machine
    wire: FakeWire
    nursery: trio.Nursery
    alarms: list[tuple[str, str, str]] = attrs.field(factory=list[tuple[str, str, str]])
    units: dict[str, Unit] = attrs.field(factory=dict[str, Unit])

    def add(self, name: str, program: Program | Callable[[int], Program], **keys: Any) -> Unit:
        """Add one unit that runs this program, or what it returns for each run number."""
        self.machine.programs[name] = program if callable(program) else lambda _run: program
        policy = {
            "restart": "always",
            "max_restarts": 5,
            "within_s": 60.0,
            "backoff_s": 0.05,
            "backoff_max_s": 30.0,
            "healthy_reset_s": 60.0,
            **{key: keys.pop(key) for key in list(keys) if key in attrs.fields_dict(Policy)},
        }
        values: dict[str, Any] = {
            "stop_signal": "TERM",
            "stop_timeout_s": 1.0,
            "ready_timeout_s": 30.0,
            "speaks_kite": True,
            **keys,
        }
        spec = UnitSpec(name=name, role="module", policy=Policy(**policy), **values)
        unit = self.units[name] = Unit(spec, self.house)
        self.house.specs[name], self.house.children[name] = spec, unit.child
        return unit

    def start(self, *names: str) -> None:
        """Start the tasks of all units (or these) and want them up."""
        for name in names or tuple(self.units):
            self.nursery.start_soon(self.units[name].run)
            self.units[name].want("up")

    def changed(self, name: str) -> None:
        """Wake who waits for this one, as the instance does."""
        for unit in self.units.values():
            if name in unit.spec.after:
                unit.pulse.beat()


@contextmanager
def world(nursery: trio.Nursery, state: StateDir) -> Iterator[World]:
    """Make a world whose tasks live in this nursery."""
    machine = Machine(nursery)
    wire = FakeWire(machine)
    alarms: list[tuple[str, str, str]] = []
    house = House(
        mark="m" * 32,
        processes=machine,
        keeper=machine,
        book=RecordBook(state, boot_id="boot", instance="m" * 32),
        orders=FakeOrders(),
        journal=Journal(),
        random=lambda: 0.0,
        spare=lambda: {LAUNCHER_PID, KEEPER_PID},
        alarm=lambda name, kind, why: alarms.append((name, kind, why)),
        lock_holders=lambda _name: (),
        wire=wire,
        open=True,
    )
    made = World(house, machine, wire, nursery, alarms)
    machine.on_exit = lambda exited: made.units[exited.name].heard_exit(exited)
    machine.on_ready = lambda name: made.units[name].heard_ready()
    house.on_change = made.changed
    yield made
