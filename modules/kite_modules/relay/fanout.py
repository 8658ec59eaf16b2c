"""Events for all browsers out of one subscription: each is encoded once, and who hears it is looked up once a name.

Source: issue of the relay (200 open consoles cost the kernel one connection), spec 10 §7, 05 §9 (event.gap).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kite_modules.relay import frames
from kite_modules.sdk.events import matches

if TYPE_CHECKING:
    from kite_modules.relay.wire import Wire

PATTERNS_MAX: Final = 256  # of one browser
CACHE_MAX: Final = 1000
SYSTEM: Final = ("module.ready", "module.offline", "module.exiting")  # go to everybody, as on the module plane


class Ear:
    """What one browser hears: pattern → policy."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.patterns: dict[str, str] = {}
        self.lost = 0

    def wants(self, name: str) -> bool:
        """Say whether it hears an event's name."""
        return name in SYSTEM or any(matches(pattern, name) for pattern in self.patterns)

    def hear(self, text: str) -> None:
        """Put an event in line, or count it as lost where its policy allows that."""
        if self.wire.half_full and self.patterns and "close" not in self.patterns.values():
            self.lost += 1
            return
        if self.lost:
            gap = {"pattern": next(iter(self.patterns), ">"), "lost": self.lost}
            self.lost = 0
            self.wire.send(frames.notice("event.gap", gap))
        self.wire.send(text)


class Fanout:
    """All ears."""

    def __init__(self) -> None:
        self._ears: set[Ear] = set()
        self._cache: dict[str, list[Ear]] = {}

    def add(self, ear: Ear) -> None:
        """Hear from now on."""
        self._ears.add(ear)
        self._cache.clear()

    def remove(self, ear: Ear) -> None:
        """Hear no more."""
        self._ears.discard(ear)
        self._cache.clear()

    def changed(self) -> None:
        """An ear's patterns are others now."""
        self._cache.clear()

    def send(self, event: dict[str, Any]) -> None:
        """Hand one event (`event`, `data`, `source`, `time`) to all who want it."""
        name = event["event"]
        ears = self._cache.get(name)
        if ears is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            ears = self._cache[name] = [ear for ear in self._ears if ear.wants(name)]
        if not ears:
            return
        text = frames.notice("event", event)
        for ear in ears:
            ear.hear(text)
