"""What must hold, whatever was done to the instance; each breach is a value with its evidence.

Invariants: one launcher · one kernel · one process a module · whole again in time · nothing left after the stop · no
acknowledged thing lost · no healthy peer closed. Source: spec 60-watchdog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

INVARIANTS: Final = (
    "one launcher",
    "one kernel",
    "one process a module",
    "whole again in time",
    "nothing left after the stop",
    "no acknowledged thing lost",
    "no healthy peer closed",
)
# Close codes that a peer which answers everything may see: the kernel went away, or said that it would.
INNOCENT_CODES: Final = (None, 1001, 1006, 1012)


@attrs.frozen
class Breach:
    """An invariant that did not hold, the evidence, and the number of the fault before it."""

    invariant: str
    evidence: str
    fault: int


@attrs.frozen
class Leader:
    """A live process that leads a group and carries the instance's mark."""

    pid: int
    name: str


def doubles(before: Iterable[Leader], now: Iterable[Leader]) -> dict[str, list[int]]:
    """Give the names that two processes have in two looks, one after the other.

    One look is not enough: between fork and exec a child still looks like its parent.
    """
    lasting = set(before) & set(now)
    pids: dict[str, list[int]] = {}
    for leader in sorted(lasting, key=lambda each: each.pid):
        pids.setdefault(leader.name, []).append(leader.pid)
    return {name: found for name, found in pids.items() if len(found) > 1}


def breach_of_double(name: str, pids: Sequence[int], fault: int) -> Breach:
    """Name the invariant that two processes of one name break."""
    invariant = f"one {name}" if name in ("launcher", "kernel") else "one process a module"
    return Breach(invariant, f"{name} runs as {', '.join(map(str, pids))}", fault)


def lost_records(acknowledged: Mapping[int, str], found: Mapping[int, str]) -> list[int]:
    """Give the sequence numbers that were acknowledged and are not there, or not as they were said."""
    return sorted(seq for seq, data in acknowledged.items() if found.get(seq) != data)


def gaps_and_twins(numbers: Sequence[int], *, first: int) -> tuple[list[int], list[int]]:
    """Give what is missing and what came more than once in numbers that should be first, first+1, …"""
    seen: set[int] = set()
    twins = []
    for number in numbers:
        if number in seen:
            twins.append(number)
        seen.add(number)
    last = max(seen, default=first - 1)
    return [n for n in range(first, last + 1) if n not in seen], twins


def guilty_close(code: int | None) -> bool:
    """Say whether a close code may not come to a peer that reads and answers."""
    return code not in INNOCENT_CODES


def summary(breaches: Sequence[Breach], unchecked: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give each invariant with `held`, `broken` or why it was not looked at."""
    broken = {breach.invariant for breach in breaches}
    return [(name, "broken" if name in broken else unchecked.get(name, "held")) for name in INVARIANTS]
