"""Whether a module may start now, and if not, for whom it waits.

`after` waits until the other one is ready or settled (a failed or stopped one holds nobody up); `requires` waits
until it is ready, and a required one that stays away takes its dependents back to waiting.
Laws: a module never starts before what it requires is ready; who waits for something that can't come is `hopeless`,
so that `up -d` and `wait` need not sit it out.
Source: spec 50 §1 step 6; cases S-13, S-54, S-57.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kite_launcher.core.child import Child, State
from kite_launcher.core.unit_spec import UnitSpec


@attrs.frozen
class Gate:
    """`waits_for` is empty when the way is free. `hopeless`: waiting alone will never open it."""

    waits_for: tuple[str, ...] = ()
    hopeless: bool = False

    @property
    def open(self) -> bool:
        """True when nothing is waited for."""
        return not self.waits_for


def gate(unit: UnitSpec, specs: Mapping[str, UnitSpec], children: Mapping[str, Child]) -> Gate:
    """Judge one unit. The graph has no cycle (checked when the file was read)."""
    waits_for: list[str] = []
    hopeless = False
    for name in unit.after:
        other = children.get(name)
        if other is None or other.ready:
            continue
        stuck = other.settled or (other.state is State.WAITING and _hopeless(name, specs, children))
        if name in unit.requires:
            waits_for.append(name)
            hopeless = hopeless or stuck
        elif not stuck:
            waits_for.append(name)
    return Gate(tuple(waits_for), hopeless)


def _hopeless(name: str, specs: Mapping[str, UnitSpec], children: Mapping[str, Child]) -> bool:
    spec = specs.get(name)
    return spec is not None and gate(spec, specs, children).hopeless


def lost_requirement(unit: UnitSpec, children: Mapping[str, Child]) -> str | None:
    """Name a required module that is away for good, None while all may still come or are there."""
    for name in unit.requires:
        other = children.get(name)
        if other is not None and other.state in (State.STOPPED, State.FAILED):
            return name
    return None


def is_settled(name: str, specs: Mapping[str, UnitSpec], children: Mapping[str, Child]) -> bool:
    """Say whether waiting longer changes nothing for this unit by itself."""
    child = children[name]
    return child.settled or (child.state is State.WAITING and _hopeless(name, specs, children))
