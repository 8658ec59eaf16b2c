"""Ends what an earlier instance left: watchdog first, then modules, then the kernel, then its log keeper.

A record counts only with its boot, its start ticks and this instance's mark; everything else is left alone and said
once. What carries the mark without a record is ended too: records may be damaged, marks can't.
Source: spec 50 §1 step 3; cases S-01 … S-04, S-09, S-78, S-89.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Final

import attrs
import trio

from kite_launcher.core.keeper_orders import KeptRecord
from kite_launcher.core.proc import Identity, Proc, Snapshot, Tree, marked, members
from kite_launcher.core.records import CLEANUP_ORDER, Damaged, ProcessRecord, Role, parse_processes
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.keeper_link import KeeperLink
from kite_launcher.edge.processes import Processes
from kite_launcher.edge.statedir import StateDir

TERM_MAX_S: Final = 3600.0
TERM_S: Final = 10.0  # what a leftover gets to end by itself when its own stop_timeout is not known
KILL_S: Final = 2.0
KEEPER_S: Final = 3.0
POLL_S: Final = 0.05
KEEPER: Final = "logkeeper"
OWN_NAMES: Final[dict[str, Role]] = {"watchdog": "watchdog", "kernel": "kernel", "logkeeper": "logkeeper"}


@attrs.define
class Leftover:
    """One process tree that an earlier instance left."""

    name: str
    role: Role
    tree: Tree
    term_s: float = TERM_S


def read_records(state: StateDir, journal: Journal) -> tuple[tuple[ProcessRecord, ...], str]:
    """Read `processes.json`; a damaged one is set aside and said. Returns the records and their boot id."""
    try:
        data = state.read("processes.json")
    except OSError as error:
        journal.warning("processes.json can't be read", why=str(error))
        return (), ""
    if data is None:
        return (), ""
    found = parse_processes(data)
    if isinstance(found, Damaged):
        try:
            aside = state.set_aside("processes.json")
        except OSError as error:
            aside = f"left where it is ({error.strerror})"
        journal.error("processes.json is damaged", why=found.why, aside=aside)
        return (), ""
    return found.records, found.boot_id


def read_times(state: StateDir) -> dict[str, float]:
    """Read from the keeper's own book how long each module may take to end; the rest has the default."""
    try:
        document = json.loads(state.read("keeper.json") or b"{}")
        rows = [KeptRecord.from_wire(row) for row in document["records"]]
        return {row.name: min(max(float(row.stop_timeout_s), 0.0), TERM_MAX_S) for row in rows}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def plan(
    records: tuple[ProcessRecord, ...],
    boot_id: str,
    snapshot: Snapshot,
    processes: Processes,
    spare: set[int],
    journal: Journal,
) -> list[Leftover]:
    """Say what is left, in the order in which it is to be ended."""
    found: list[Leftover] = []
    if boot_id == processes.boot_id:
        for record in records:
            row = snapshot.get(record.pid)
            if row is None or not row.alive:
                # Its leader is dead; children of its group may live on (they carry the mark, or are in its group).
                found.append(Leftover(record.name, record.role, Tree(record.name, record.identity)))
            elif row.identity != record.identity or row.module is None:
                _foreign(record, row, journal)
            else:
                found.append(Leftover(record.name, record.role, Tree(record.name, record.identity)))
    known = {item.name for item in found}
    for row in marked(snapshot, spare=spare):
        name = row.module or KEEPER
        if name not in known:
            known.add(name)
            leader = row.identity if name == KEEPER else None
            found.append(Leftover(name, OWN_NAMES.get(name, "module"), Tree(name, leader)))
    return sorted(found, key=lambda item: CLEANUP_ORDER.index(item.role))


def _foreign(record: ProcessRecord, row: Proc, journal: Journal) -> None:
    journal.warning(
        "a record names a process that is not ours; left alone",
        name=record.name,
        pid=record.pid,
        recorded_ticks=record.start_ticks,
        found_ticks=row.start_ticks,
        marked=row.module is not None,
    )


async def clean_up(
    state: StateDir,
    processes: Processes,
    journal: Journal,
    *,
    spare: set[int],
) -> list[str]:
    """End everything that is left, one class after the other. Returns who refuses to die. Cancel: safe."""
    records, boot_id = read_records(state, journal)
    items = plan(records, boot_id, await processes.snapshot(), processes, spare, journal)
    times = read_times(state)
    for item in items:
        item.term_s = times.get(item.name, TERM_S)
    refused: list[str] = []
    for role in CLEANUP_ORDER:
        group = [item for item in items if item.role == role]
        if role == "logkeeper" and group:
            await _quit_keeper(state)
        async with trio.open_nursery() as nursery:
            for item in group:
                nursery.start_soon(_end, item, processes, journal, spare, refused)
    return refused


async def _end(item: Leftover, processes: Processes, journal: Journal, spare: set[int], refused: list[str]) -> None:
    """TERM, wait, KILL, wait until nothing of this tree is left."""
    begin = trio.current_time()
    sent: dict[Identity, int] = {}
    told = False
    while True:
        rows = _rows(item, await processes.snapshot(), spare)
        if not rows:
            break
        if not told:
            told = True
            journal.info("ending a leftover", name=item.name, role=item.role, pids=[row.pid for row in rows])
        age = trio.current_time() - begin
        # The keeper ends when it is asked to, and takes no signal for an order: what did not end by now never does.
        number = signal.SIGTERM if age < item.term_s and item.role != "logkeeper" else signal.SIGKILL
        for row in rows:
            if sent.get(row.identity) != number:
                sent[row.identity] = number
                _send(processes, row.identity, number)
        if age > item.term_s + KILL_S:
            refused += [f"{item.name} (pid {row.pid})" for row in rows]
            break
        await trio.sleep(POLL_S)


async def _quit_keeper(state: StateDir) -> None:
    """Have the old keeper write what still stands in its pipes and end."""
    with trio.move_on_after(KEEPER_S):
        async with trio.open_nursery() as nursery:
            link = await KeeperLink.connect(nursery, Path(state.path))
            if link is not None:
                await link.close(quit_keeper=True, timeout_s=KEEPER_S)
            nursery.cancel_scope.cancel()


def _rows(item: Leftover, snapshot: Snapshot, spare: set[int]) -> tuple[Proc, ...]:
    """Return the tree's live rows: in a leader's old group only what carries the mark is ours for certain."""
    found = members(snapshot, item.tree, spare=spare)
    leader = item.tree.leader
    if leader is None:
        return found
    first = snapshot.get(leader.pid)
    if first is not None and first.identity == leader and first.module is not None:
        return found
    return tuple(row for row in found if row.module is not None)


def _send(processes: Processes, identity: Identity, number: int) -> None:
    handle = processes.open(identity)
    if handle is not None:
        handle.signal(number)
        if number == signal.SIGTERM:
            handle.signal(signal.SIGCONT)
        handle.close()
