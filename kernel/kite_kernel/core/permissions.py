"""What a module may call, publish and hear: `[permissions.NAME]`, deny by default once a list is given.

Source: spec 05-surface §9, cases X-19, X-20.
"""

from __future__ import annotations

from typing import Final

from kite_kernel.core.topics import matches

_REMEMBERED: Final = 1024


class Permissions:
    """The allow-lists of one name. A list that is None allows everything that roles allow."""

    __slots__ = ("_call", "_calls_known", "_publish", "_subscribe")

    def __init__(
        self,
        call: tuple[str, ...] | None = None,
        publish: tuple[str, ...] | None = None,
        subscribe: tuple[str, ...] | None = None,
    ) -> None:
        self._call = call
        self._publish = publish
        self._subscribe = subscribe
        self._calls_known: dict[str, bool] = {}

    def may_call(self, method: str) -> bool:
        """Judge a full method name, `model.run`."""
        if self._call is None:
            return True
        known = self._calls_known.get(method)
        if known is None:
            known = any(matches(pattern, method) for pattern in self._call)
            if len(self._calls_known) >= _REMEMBERED:
                self._calls_known.clear()
            self._calls_known[method] = known
        return known

    def may_publish(self, event: str) -> bool:
        """Judge an event name."""
        return self._publish is None or any(matches(pattern, event) for pattern in self._publish)

    def may_hear(self, event: str) -> bool:
        """Judge an event name at delivery."""
        return self._subscribe is None or any(matches(pattern, event) for pattern in self._subscribe)

    def may_subscribe(self, pattern: str) -> bool:
        """Judge a pattern: one that could never bring an allowed event is refused, a wider one is narrowed later."""
        return self._subscribe is None or any(overlaps(allowed, pattern) for allowed in self._subscribe)


def overlaps(one: str, other: str) -> bool:
    """Tell whether any event name is covered by both patterns."""
    left, right = one.split("."), other.split(".")
    at = 0
    while True:
        if at < len(left) and left[at] == ">":
            return len(right) > at
        if at < len(right) and right[at] == ">":
            return len(left) > at
        if at >= len(left) or at >= len(right):
            return len(left) == len(right)
        if left[at] != right[at] and "*" not in (left[at], right[at]):
            return False
        at += 1
