"""Event names and patterns: who hears what, found in time that does not grow with the number of patterns.

Names are dot-separated segments; in patterns `*` stands for one whole segment and `>`, at the end, for one or more.
Exact patterns are a dictionary, the others a tree by segments; the answer for a name is remembered until a
subscription or a permission changes. Source: spec 10-wire §5, 05-surface §9, cases W-33 to W-38.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kite_kernel._contract import MAX_EVENT_NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kite_kernel.core.peer import Lane, Peer

_REMEMBERED_NAMES: Final = 4096  # names whose audience is remembered; above it all are found anew

Audience = tuple[list["Peer"], list[tuple["Peer", "Lane"]]]
"""Peers that get the frame as it is, and those that get it by a lane (`drop_oldest`, `latest`)."""


def is_event_name(name: str) -> bool:
    """Tell whether `name` may be published: non-empty segments, no wildcards, at most 256 bytes."""
    return _is_dotted(name) and "*" not in name and ">" not in name


def is_pattern(pattern: str) -> bool:
    """Tell whether `pattern` may be subscribed to."""
    if not _is_dotted(pattern):
        return False
    segments = pattern.split(".")
    for at, segment in enumerate(segments):
        if segment == "*" or (segment == ">" and at == len(segments) - 1):
            continue
        if "*" in segment or ">" in segment:
            return False
    return True


def _is_dotted(name: str) -> bool:
    if not name or len(name) > MAX_EVENT_NAME_BYTES or len(name.encode("utf-8", "replace")) > MAX_EVENT_NAME_BYTES:
        return False
    return "" not in name.split(".") and name.isprintable() and " " not in name


def matches(pattern: str, name: str) -> bool:
    """Tell whether `pattern` covers `name` (or, segment by segment, the narrower pattern `name`)."""
    if pattern == name or pattern == ">":
        return True
    wanted, given = pattern.split("."), name.split(".")
    for at, segment in enumerate(wanted):
        if segment == ">":
            return len(given) > at
        if at >= len(given) or (segment != "*" and segment != given[at]) or (segment == "*" and given[at] == ">"):
            return False
    return len(wanted) == len(given)


class _Node:
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.here: dict[Peer, Lane | None] = {}
        self.rest: dict[Peer, Lane | None] = {}

    @property
    def empty(self) -> bool:
        return not (self.children or self.here or self.rest)


class Topics:
    """The index of all subscriptions. Law: it holds exactly the patterns in `Peer.subscriptions` of living peers."""

    __slots__ = ("_exact", "_known", "_tree", "count")

    def __init__(self) -> None:
        self._exact: dict[str, dict[Peer, Lane | None]] = {}
        self._tree = _Node()
        self._known: dict[str, Audience] = {}
        self.count = 0

    def add(self, peer: Peer, pattern: str, lane: Lane | None) -> None:
        """Enter a pattern (again with another lane: the new one holds)."""
        self._known.clear()
        self.count += 1
        if "*" not in pattern and ">" not in pattern:
            self._exact.setdefault(pattern, {})[peer] = lane
            return
        node = self._tree
        for segment in pattern.split("."):
            if segment == ">":
                node.rest[peer] = lane
                return
            node = node.children.setdefault(segment, _Node())
        node.here[peer] = lane

    def remove(self, peer: Peer, pattern: str) -> None:
        """Take a pattern out again and leave nothing of it behind."""
        self._known.clear()
        self.count -= 1
        if "*" not in pattern and ">" not in pattern:
            peers = self._exact.get(pattern)
            if peers is not None:
                peers.pop(peer, None)
                if not peers:
                    del self._exact[pattern]
            return
        path = [(self._tree, "")]
        node = self._tree
        for segment in pattern.split("."):
            if segment == ">":
                node.rest.pop(peer, None)
                break
            node = node.children.get(segment, _Node())
            path.append((node, segment))
        else:
            node.here.pop(peer, None)
        for at in range(len(path) - 1, 0, -1):
            if path[at][0].empty:
                path[at - 1][0].children.pop(path[at][1], None)

    def forget_audiences(self) -> None:
        """Find every audience anew: a permission or a peer changed."""
        self._known.clear()

    def audience(self, name: str) -> Audience:
        """Return who hears `name`, each peer once. A subscription that loses nothing wins over one that may."""
        known = self._known.get(name)
        if known is None:
            known = self._find(name)
            if len(self._known) >= _REMEMBERED_NAMES:
                self._known.clear()
            self._known[name] = known
        return known

    def _find(self, name: str) -> Audience:
        found: dict[Peer, Lane | None] = {}
        for peers in self._matching(name):
            for peer, lane in peers.items():
                if peer not in found or (found[peer] is not None and lane is None):
                    found[peer] = lane
        plain: list[Peer] = []
        laned: list[tuple[Peer, Lane]] = []
        for peer, lane in found.items():
            if peer.permissions is not None and not peer.permissions.may_hear(name):
                continue
            if lane is None:
                plain.append(peer)
            else:
                laned.append((peer, lane))
        return plain, laned

    def _matching(self, name: str) -> Iterator[dict[Peer, Lane | None]]:
        exact = self._exact.get(name)
        if exact:
            yield exact
        nodes = [self._tree]
        for segment in name.split("."):
            below: list[_Node] = []
            for node in nodes:
                if node.rest:
                    yield node.rest
                for key in (segment, "*"):
                    child = node.children.get(key)
                    if child is not None:
                        below.append(child)
            nodes = below
        for node in nodes:
            if node.here:
                yield node.here
