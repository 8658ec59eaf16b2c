"""Who starts after whom: layers, the longest chain, what a stop must end first, and circles as paths.

`wants` maps each name to the names that it starts after (`after` and `requires` together), in file order; a wanted
name that is no key is ignored, its module is not part of this run. All answers keep file order where the order
leaves a choice, so that two runs of one file do the same. Source: spec 50 §1.6, §3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

Wants = Mapping[str, Sequence[str]]


def start_layers(wants: Wants) -> list[list[str]]:
    """Return the names in layers: all of one layer may start at once when the layers before it are ready.

    Names that stand in a circle, or behind one, are in no layer; `circles` names them.
    """
    place = {name: index for index, name in enumerate(wants)}
    after = dependents(wants)
    missing = {name: sum(other in wants for other in dict.fromkeys(others)) for name, others in wants.items()}
    layer = [name for name, count in missing.items() if count == 0]
    layers: list[list[str]] = []
    while layer:
        layers.append(layer)
        free: list[str] = []
        for name in layer:
            for other in after[name]:
                missing[other] -= 1
                if missing[other] == 0:
                    free.append(other)
        layer = sorted(free, key=place.__getitem__)
    return layers


def stop_layers(wants: Wants) -> list[list[str]]:
    """Return the layers in the order of a stop: the last started first. A circle's names come first of all."""
    layers = start_layers(wants)
    placed = {name for layer in layers for name in layer}
    rest = [name for name in wants if name not in placed]
    return ([rest] if rest else []) + layers[::-1]


def dependents(wants: Wants) -> dict[str, list[str]]:
    """Return the reverse of `wants`: who starts directly after each name."""
    out: dict[str, list[str]] = {name: [] for name in wants}
    for name, others in wants.items():
        for other in dict.fromkeys(others):
            if other in out:
                out[other].append(name)
    return out


def closure(names: Iterable[str], edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Return `names` and everything that the edges reach from them, in the order of being reached."""
    seen = dict.fromkeys(names)
    queue = deque(seen)
    while queue:
        for other in edges.get(queue.popleft(), ()):
            if other not in seen:
                seen[other] = None
                queue.append(other)
    return list(seen)


def longest_chain(wants: Wants, weight_s: Mapping[str, float]) -> tuple[list[str], float]:
    """Return the critical path of a start: the chain whose weights add up to the most, and that sum in seconds.

    `weight_s` says how long each name takes; absent names take nothing.
    """
    ends: dict[str, tuple[float, str | None]] = {}
    for layer in start_layers(wants):
        for name in layer:
            before: tuple[float, str | None] = (0.0, None)
            for other in wants[name]:
                if other in ends and (before[1] is None or ends[other][0] > before[0]):
                    before = (ends[other][0], other)
            ends[name] = (before[0] + weight_s.get(name, 0.0), before[1])
    if not ends:
        return [], 0.0
    last = max(ends, key=lambda name: ends[name][0])
    total = ends[last][0]
    chain: list[str] = []
    step: str | None = last
    while step is not None:
        chain.append(step)
        step = ends[step][1]
    return chain[::-1], total


def circles(wants: Wants) -> list[list[str]]:
    """Return every circle as its path, the first name again at its end; [] when a start order exists.

    Each arrow that is part of a circle is in at least one path, each path is as short as its first arrow allows.
    """
    placed = {name for layer in start_layers(wants) for name in layer}
    left = {name: others for name, others in wants.items() if name not in placed}
    seen: set[tuple[str, str]] = set()
    found: list[list[str]] = []
    for name, others in left.items():
        for other in dict.fromkeys(others):
            if other not in left or (name, other) in seen:
                continue
            back = _shortest(left, other, name)
            if back is None:
                continue
            path = [name, *back]
            seen.update(pairwise(path))
            found.append(path)
    return found


def _shortest(wants: Wants, start: str, goal: str) -> list[str] | None:
    came: dict[str, str | None] = {start: None}
    queue = deque([start])
    while queue:
        name = queue.popleft()
        if name == goal:
            path: list[str] = []
            step: str | None = name
            while step is not None:
                path.append(step)
                step = came[step]
            return path[::-1]
        for other in wants[name]:
            if other in wants and other not in came:
                came[other] = name
                queue.append(other)
    return None
