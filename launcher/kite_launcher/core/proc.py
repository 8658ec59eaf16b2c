"""Who is who among the machine's processes: identities, one look at all of them, and whose tree each belongs to.

A process is its pid, its start ticks and the boot it lives in; a bare pid is never enough. A `Snapshot` is one look
at /proc; `members` says which of its rows belong to one module. A zombie counts as dead everywhere.
Laws: nothing outside a tree is ever a member of it; the launcher, the log keeper and their ancestors are never
members of a module's tree.
Source: spec 00 §27, §29; spec 50 §1 step 3; cases S-01 … S-11.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import attrs

ENDED_STATES: Final = frozenset("ZXx")
MARK: Final = "KITE_INSTANCE"
MODULE: Final = "KITE_MODULE_ID"


@attrs.frozen
class Identity:
    """One process for as long as the machine is up: pid and start ticks (field 22 of its stat)."""

    pid: int
    start_ticks: int


@attrs.frozen
class Proc:
    """One row of a look at /proc. `module` is its KITE_MODULE_ID if it carries this instance's mark, else None."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    start_ticks: int
    state: str
    module: str | None = None

    @property
    def alive(self) -> bool:
        """False for a zombie: it holds nothing and does nothing any more."""
        return self.state not in ENDED_STATES

    @property
    def identity(self) -> Identity:
        """The pid together with the start ticks."""
        return Identity(self.pid, self.start_ticks)


Snapshot = Mapping[int, Proc]


def parse_stat(text: str) -> Proc | None:
    """Read one /proc/PID/stat; None when it is not one.

    The command name stands in brackets and may itself hold blanks, brackets and newlines, so the fields are counted
    from its last closing bracket.
    """
    opening, closing = text.find("("), text.rfind(")")
    fields = text[closing + 1 :].split()
    if opening < 1 or closing < opening or len(fields) < 20:
        return None
    try:
        return Proc(
            pid=int(text[:opening]),
            state=fields[0],
            ppid=int(fields[1]),
            pgid=int(fields[2]),
            sid=int(fields[3]),
            start_ticks=int(fields[19]),
        )
    except ValueError:
        return None


def parse_environ(block: bytes, mark: str) -> str | None:
    """Return KITE_MODULE_ID of an environment block that carries `mark`, "" if it names none, None if it lacks it."""
    entries = block.split(b"\0")
    if f"{MARK}={mark}".encode() not in entries:
        return None
    prefix = f"{MODULE}=".encode()
    for entry in entries:
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return ""


def ancestors(snapshot: Snapshot, pid: int) -> set[int]:
    """Return `pid` and everything above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        row = snapshot.get(pid)
        pid = row.ppid if row is not None else 0
    return found


def descendants(snapshot: Snapshot, roots: Iterable[int]) -> set[int]:
    """Return `roots` and everything below them."""
    children: dict[int, list[int]] = {}
    for row in snapshot.values():
        children.setdefault(row.ppid, []).append(row.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children.get(pid, ()))
    return found


@attrs.frozen
class Tree:
    """What is known of one module's run: its name, its leader, and members that were seen before.

    `known` keeps helpers that left group, session and environment behind but were seen below the leader once.
    """

    name: str
    leader: Identity | None
    known: frozenset[Identity] = frozenset()


def members(snapshot: Snapshot, tree: Tree, *, spare: Collection[int]) -> tuple[Proc, ...]:
    """Return the live processes of `tree`, its leader first, then in order of their start.

    A process belongs to it if it is the leader, in the leader's group or session (and not older than the leader),
    carries the mark with the module's name, was seen in it before, or descends from one of these. `spare` are
    processes that are never members whatever they carry: the launcher, the keeper, their ancestors.
    """
    leader = tree.leader
    roots: set[int] = set()
    for row in snapshot.values():
        leads = leader is not None and _leads(row, leader)
        if leads or (row.module is not None and row.module == tree.name) or row.identity in tree.known:
            roots.add(row.pid)
    roots.difference_update(spare)
    found = [snapshot[pid] for pid in descendants(snapshot, roots) if pid in snapshot and pid not in spare]
    first = leader.pid if leader is not None else 0
    return tuple(
        sorted((row for row in found if row.alive), key=lambda row: (row.pid != first, row.start_ticks, row.pid))
    )


def _leads(row: Proc, leader: Identity) -> bool:
    if row.pid == leader.pid:
        return row.start_ticks == leader.start_ticks
    return leader.pid in (row.pgid, row.sid) and row.start_ticks >= leader.start_ticks


def marked(
    snapshot: Snapshot, *, spare: Collection[int], name: Callable[[str], bool] = lambda _: True
) -> tuple[Proc, ...]:
    """Return the live processes that carry this instance's mark, oldest first."""
    rows = (row for row in snapshot.values() if row.module is not None and row.alive and row.pid not in spare)
    return tuple(sorted((row for row in rows if name(row.module or "")), key=lambda row: (row.start_ticks, row.pid)))
