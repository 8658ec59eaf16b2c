"""What every unit shares: the seams to the machine, the book, the wire, the voice. One object, made once.

The seams are protocols, so that tests run whole supervisions on the virtual clock with an in-line process table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from typing import Any, Protocol

import attrs
import trio

from kite_launcher.core.child import Child, Moment
from kite_launcher.core.keeper_orders import Forked, Spawned, SpawnFailed, SpawnOrder
from kite_launcher.core.unit_spec import UnitSpec
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.processes import Processes
from kite_launcher.edge.pulse import Pulse
from kite_launcher.edge.record_book import RecordBook

OnForked = Callable[[Forked], Awaitable[None]]


class Keeping(Protocol):
    """The log keeper as the units use it: it outlives any single keeper process."""

    async def spawn(self, order: SpawnOrder, on_forked: OnForked) -> Spawned | SpawnFailed:
        """Start a program; see `KeeperLink.spawn`. Waits for a keeper while there is none."""
        ...

    async def wait_log(self, name: str, run: int, regex: str) -> str:
        """Wait for a line of this run that matches. Cancel: safe."""
        ...

    async def tail(self, name: str, n: int) -> list[str]:
        """Return the last lines of a module, nothing when there is no keeper to ask."""
        ...


class Wire(Protocol):
    """The launcher's connection to the kernel; it may be away at any time."""

    @property
    def connected(self) -> bool:
        """True while calls can be made."""
        ...

    async def shutdown_module(self, name: str, reason: str, deadline_s: float) -> bool:
        """Ask one module over the wire to leave; False when that could not be said."""
        ...

    def publish(self, event: str, data: dict[str, Any]) -> None:
        """Publish an event now or not at all; never waits."""
        ...


class Orders(Protocol):
    """Makes the spawn order of a unit: environment, descriptors, files."""

    def prepare(self, spec: UnitSpec) -> Prepared:
        """Return what to start. Raises RefusedError (the user's or the machine's fault) or OSError."""
        ...


@attrs.define
class Prepared:
    """A spawn order and the descriptors that are ours only until it has been given.

    `kernel_ready` is the reading end of the kernel's ready line; whoever takes the order closes it.
    """

    order: SpawnOrder
    fds: list[int]
    close: Callable[[], None]
    kernel_ready: int | None = None


@attrs.define(eq=False)
class House:
    """Everything that one instance's units share."""

    mark: str
    processes: Processes
    keeper: Keeping
    book: RecordBook
    orders: Orders
    journal: Journal
    random: Callable[[], float]
    spare: Callable[[], Collection[int]]
    alarm: Callable[[str, str, str], None]
    lock_holders: Callable[[str], tuple[int, ...]]
    wire: Wire
    specs: dict[str, UnitSpec] = attrs.field(factory=dict[str, UnitSpec])
    children: dict[str, Child] = attrs.field(factory=dict[str, Child])
    # Anything of any unit changed: for the few who wait for the whole (`wait`, `up`, `down`).
    changed: Pulse = attrs.field(factory=Pulse)
    on_change: Callable[[str], None] = lambda _name: None
    on_crash: Callable[[str], None] = lambda _name: None
    on_progress: Callable[[str, str], None] = lambda _name, _text: None
    # Modules start only once the kernel was ready and the launcher spoke to it.
    open: bool = False

    def moment(self) -> Moment:
        """Return this instant: trio's clock for decisions, the wall clock as a stamp for people."""
        return Moment(trio.current_time(), datetime.now(UTC).isoformat(timespec="milliseconds"))
