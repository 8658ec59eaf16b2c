"""What was promised beside what was measured, and ears that note the moment of every event."""

from __future__ import annotations

from typing import Any, Final

import attrs
import trio

SLACK_S: Final = 3.0  # seconds that a busy machine, and Python's own start, may add to a promised time


@attrs.frozen
class Measure:
    """One promised time and what came of it. `exact` False: promised is the latest, not the moment."""

    what: str
    promised_s: float
    measured_s: float | None
    exact: bool = True

    @property
    def held(self) -> bool:
        """Say whether it came, not before its time and not much after it."""
        if self.measured_s is None:
            return False
        early = self.exact and self.measured_s < self.promised_s * 0.97 - 0.02
        return not early and self.measured_s <= self.promised_s * 1.1 + SLACK_S

    def line(self) -> str:
        """Say it in a line of a table."""
        measured = "never" if self.measured_s is None else f"{self.measured_s:6.2f} s"
        return f"  {self.what:<52} promised {self.promised_s:6.2f} s   measured {measured}"


@attrs.define
class Timeline:
    """One timeline's measures, and what else was wrong."""

    name: str
    title: str
    measures: list[Measure] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)

    @property
    def held(self) -> bool:
        """Say whether all of it was as promised."""
        return not self.faults and bool(self.measures) and all(m.held for m in self.measures)


class Ears:
    """Hears all events of an instance with the moment they came."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, str, dict[str, Any]]] = []

    def hear(self, event: str, data: Any) -> None:
        """Take one event in."""
        self.heard.append((trio.current_time(), event, data if isinstance(data, dict) else {}))

    async def wait(self, event: str, within_s: float, **members: Any) -> float | None:
        """Give the moment at which an event came, or None where it did not in time."""
        end = trio.current_time() + within_s
        while trio.current_time() < end:
            for at, name, data in self.heard:
                if name == event and all(data.get(k) == v for k, v in members.items()):
                    return at
            await trio.sleep(0.01)
        return None

    def about(self, module_id: str) -> list[str]:
        """Give the names of the events that told something about a module."""
        return [name for _, name, data in self.heard if data.get("module_id") == module_id]
