"""Keeps a log keeper alive: starts it, starts the next one within a second, and reaps what falls to the launcher.

The keeper is the parent of every child, so that their exit statuses outlive the launcher. When the keeper itself
dies its children fall to the launcher (a subreaper), which reaps them until the next keeper reads their pipes on.
Its budget is its own; used up, the instance stops. Source: spec 00 §28, §28a; 05 §6; case S-22.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from kite_launcher.core.keeper_orders import Exited, Forked, KeeperSettings, LogState, Spawned, SpawnFailed, SpawnOrder
from kite_launcher.core.proc import Identity
from kite_launcher.core.records import ProcessRecord
from kite_launcher.core.restart import GiveUp, Policy, RestartAt, Tally
from kite_launcher.core.spec import OWN_RESTARTS, OWN_WITHIN_S
from kite_launcher.edge.house import OnForked
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.keeper_link import KeeperGone, KeeperLink
from kite_launcher.edge.processes import Processes
from kite_launcher.edge.pulse import Pulse
from kite_launcher.edge.record_book import RecordBook

NAME: Final = "logkeeper"
KEEPER_BACKOFF_S: Final = 0.05  # a keeper is back within a second, whatever happened…
KEEPER_BACKOFF_MAX_S: Final = 0.2  # …also the fifth time, on a busy machine
ASK_TIMEOUT_S: Final = 2.0
SPAWNS: Final = 16  # at once: enough to share a write of the records, few enough that a keeper answers in between
LAST_WORD_S: Final = 5.0


class KeeperHouse:
    """One keeper after another; see `house.Keeping` for what units ask of it."""

    def __init__(
        self, *, state_dir: str, settings: KeeperSettings, journal: Journal, book: RecordBook, processes: Processes
    ) -> None:
        self._state_dir, self._settings = Path(state_dir), settings
        self._journal, self._book, self._processes = journal, book, processes
        self._link: KeeperLink | None = None
        self._former: KeeperLink | None = None
        self._identity: Identity | None = None
        self._pulse = Pulse()
        self._spawns = trio.CapacityLimiter(SPAWNS)
        self._tally = Tally(
            Policy("always", OWN_RESTARTS, OWN_WITHIN_S, KEEPER_BACKOFF_S, KEEPER_BACKOFF_MAX_S, healthy_reset_s=60.0)
        )
        self.closing = False
        self.adopt = False  # the keeper of an earlier image of this process is still there
        self.restarts = 0
        self.since_utc = ""
        self.on_exit: Callable[[Exited], None] = lambda _exited: None

    @property
    def identity(self) -> Identity | None:
        """The keeper that lives, None while there is none."""
        return self._identity

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> str | None:
        """Keep a keeper until `closing`. Returns why the instance can't go on, None for a normal end."""
        first = True
        while not self.closing:
            try:
                async with trio.open_nursery() as nursery:
                    link = await self._begin(nursery)
                    if first:
                        first = False
                        task_status.started()
                    await self._forward(link)
                    nursery.cancel_scope.cancel()
            except* (KeeperGone, OSError) as group:
                if first:
                    raise
                self._journal.error("log keeper failed", why=str(group.exceptions[0]))
            if self.closing:
                return None
            verdict = self._tally.ended(cause="exit", good=False, up_s=0.0, unit_random=0.0, now=trio.current_time())
            if isinstance(verdict, GiveUp):
                return f"the log keeper: {verdict.why}"
            if isinstance(verdict, RestartAt):
                self._journal.warning("log keeper ended", again_in_s=verdict.delay_s)
                await trio.sleep(verdict.delay_s)
            self.restarts += 1
        return None

    async def _begin(self, nursery: trio.Nursery) -> KeeperLink:
        former, self._link, self._identity = self._former, None, None
        link = None
        if self.adopt:
            self.adopt = False
            link = await KeeperLink.connect(nursery, self._state_dir, self._settings)
        if link is None:
            link = await KeeperLink.start(nursery, self._state_dir, self._settings)
        link.on_said = lambda text: self._journal.warning("log keeper", says=text)
        self._former, self._identity = link, Identity(link.pid, link.start_ticks)
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.since_utc = stamp
        self._book.put(ProcessRecord(NAME, "logkeeper", link.pid, link.start_ticks, link.pid, (), stamp))
        await self._book.flush()
        if former is None:
            # The pipe of the launcher's own log lives over keepers, as every child's does.
            self._journal.attach(await link.open_log("launcher"))
        self._link = link
        self._pulse.beat()
        return link

    async def _forward(self, link: KeeperLink) -> None:
        """Hand every exit on until the keeper is gone; first those that nobody heard of."""
        for exited in await link.missed_exits():
            self.on_exit(exited)
        async for exited in link.exits:
            self.on_exit(exited)
        await link.gone.wait()

    @property
    def logs(self) -> LogState:
        """Whether every line finds its place, as the keeper last said."""
        return self._former.log_trouble if self._former is not None else LogState()

    def note_status(self, pid: int, status: int) -> None:
        """Hand on the wait status of a child that fell to the launcher."""
        if self._former is not None:
            self._former.note_status(pid, status)

    async def _living(self) -> KeeperLink:
        while self._link is None or self._link.gone.is_set():
            await self._pulse.wait(trio.current_time() + 0.1)
        return self._link

    async def spawn(self, order: SpawnOrder, on_forked: OnForked) -> Spawned | SpawnFailed:
        """Start a program; when the keeper dies over it, say how far it had come."""
        seen: list[Spawned] = []

        async def note(forked: Forked) -> None:
            seen.append(Spawned(forked.name, forked.run, forked.pid, forked.start_ticks))
            await on_forked(forked)

        async with self._spawns:
            while True:
                link = await self._living()
                try:
                    return await link.spawn(order, note)
                except KeeperGone:
                    # Before exec it ends with the keeper; after exec it runs on and falls to us.
                    await trio.sleep(ASK_TIMEOUT_S / 4)
                    last = seen.pop() if seen else None
                    handle = self._processes.open(Identity(last.pid, last.start_ticks)) if last is not None else None
                    if handle is not None and last is not None:
                        handle.close()
                        return last

    async def wait_log(self, name: str, run: int, regex: str) -> str:
        """Wait for a line; a new keeper is asked again."""
        while True:
            link = await self._living()
            try:
                return await link.wait_log(name, run, regex)
            except (KeeperGone, KeyError):
                await trio.sleep(0.05)

    async def tail(self, name: str, n: int) -> list[str]:
        """Return the last lines, nothing when no keeper answers in time."""
        link = self._link
        if link is None:
            return []
        with trio.move_on_after(ASK_TIMEOUT_S):
            try:
                return await link.tail(name, n)
            except KeeperGone:
                pass
        return []

    async def configure(self, settings: KeeperSettings) -> None:
        """Give new settings to this keeper and all later ones."""
        self._settings = settings
        link = self._link
        if link is not None:
            with trio.move_on_after(ASK_TIMEOUT_S), contextlib.suppress(KeeperGone):
                await link.configure(settings)

    async def finish(self) -> bool:
        """Let the keeper write what is left and end; False when something of it is left."""
        self.closing = True
        link, self._link = self._former, None
        self._journal.detach()
        if link is None:
            return True
        await link.close(quit_keeper=True, timeout_s=LAST_WORD_S)
        identity = self._identity
        row = self._processes.find(identity.pid) if identity is not None else None
        return row is None or row.identity != identity or not row.alive

    def forget(self) -> None:
        """Drop the record of the keeper that has ended."""
        if self._identity is not None:
            self._book.drop(NAME, self._identity.pid)
