"""Events and who hears them: patterns, bounded subscriptions, what the kernel must be told.

Source: spec 10-wire §5 and §7 (`*` = one segment, `>` = the rest), 05-surface §7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeVar

import msgspec
import trio

from kite_modules.sdk import frames
from kite_modules.sdk.frames import EventParams

Policy = Literal["close", "drop_oldest", "latest"]
T = TypeVar("T")
QUEUE_MAX: Final = 1000
"""Events that one subscription holds for a slow handler; beyond it the oldest go, and the next one says how many."""
_CACHE_MAX: Final = 1000


def matches(pattern: str, name: str) -> bool:
    """Say whether a pattern hears an event's name."""
    wanted, given = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        return len(given) >= len(wanted) and _same(wanted[:-1], given)
    return len(wanted) == len(given) and _same(wanted, given)


def _same(wanted: list[str], given: list[str]) -> bool:
    return all(want in ("*", have) for want, have in zip(wanted, given, strict=False))


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that the kernel would refuse. Raises: ValueError."""
    segments = pattern.split(".") if isinstance(pattern, str) else [""]
    if "" in segments or ">" in segments[:-1] or any(("*" in s or ">" in s) and len(s) > 1 for s in segments):
        raise ValueError(f"{pattern!r} is no event pattern: `*` stands for one segment, a last `>` for the rest")


class Event:
    """One event. `lost`: how many events of this subscription were dropped right before it, because it was too slow."""

    __slots__ = ("_data", "_raw", "lost", "name", "source", "time")

    def __init__(self, params: EventParams) -> None:
        self.name = params.event
        self.source = params.source
        self.time = params.time
        self.lost = 0
        self._raw: msgspec.Raw | None = params.data
        self._data: Any = None

    @property
    def data(self) -> Any:
        """The event's data, decoded at the first look. Raises: msgspec.DecodeError for numbers that no reader holds."""
        if self._raw is not None:
            self._data = frames.value_of(self._raw)
            self._raw = None
        return self._data

    @property
    def raw(self) -> Any:
        """The event's data as its own JSON text (`msgspec.Raw`), to hand on; the value once it was read."""
        return self._data if self._raw is None else self._raw

    def into(self, type_: type[T]) -> T:
        """Return the data as a checked attrs class, dataclass or struct. Raises: msgspec.ValidationError."""
        return msgspec.convert(self.data, type_)

    def __repr__(self) -> str:
        return f"Event({self.name!r}, source={self.source!r})"


class Subscription:
    """What one listener wants and has not read yet: `async for event in subscription`.

    Bounded: when it is full the oldest event goes, is counted in `dropped` and told in the next event's `lost`.
    """

    def __init__(self, patterns: Iterable[str], *, queue_max: int = QUEUE_MAX, policy: Policy = "close") -> None:
        self.patterns = tuple(dict.fromkeys(patterns))
        for pattern in self.patterns:
            check_pattern(pattern)
        if queue_max < 1:
            raise ValueError(f"queue_max must be at least 1, not {queue_max}")
        self.policy: Policy = policy
        self.dropped = 0
        self._queue_max = queue_max
        self._queue: deque[Event] = deque()
        self._wake = trio.Event()
        self._closed = False
        self._gap = 0

    def wants(self, name: str) -> bool:
        """Say whether this subscription hears an event's name."""
        return any(matches(pattern, name) for pattern in self.patterns)

    def offer(self, params: EventParams) -> None:
        """Put an event in line; never blocks."""
        event = Event(params)
        event.lost, self._gap = self._gap, 0
        if len(self._queue) >= self._queue_max:
            oldest = self._queue.popleft()
            self.dropped += 1
            (self._queue[0] if self._queue else event).lost += oldest.lost + 1
        self._queue.append(event)
        self._wake.set()

    def gap(self, lost: int) -> None:
        """The kernel dropped events of this subscription: the next one says so."""
        self._gap += max(0, lost)

    def close(self) -> None:
        """End the iteration once what is in line was read."""
        self._closed = True
        self._wake.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake = trio.Event()
            await self._wake.wait()
        return self._queue.popleft()


class Dispatcher:
    """All subscriptions of one client; hands each event to those who want it, in the order of the wire."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._cache: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> None:
        """Hear from now on."""
        self._subscriptions.append(subscription)
        self._cache.clear()

    def remove(self, subscription: Subscription) -> list[str]:
        """Hear no more. Returns the patterns that nobody wants any longer."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        self._cache.clear()
        wanted = {pattern for other in self._subscriptions for pattern in other.patterns}
        return [pattern for pattern in subscription.patterns if pattern not in wanted]

    def dispatch(self, params: EventParams) -> None:
        """Hand one event on; never blocks."""
        listeners = self._cache.get(params.event)
        if listeners is None:
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            listeners = [s for s in self._subscriptions if s.wants(params.event)]
            self._cache[params.event] = listeners
        for subscription in listeners:
            subscription.offer(params)

    def gap(self, pattern: str, lost: int) -> None:
        """The kernel dropped events for this pattern."""
        for subscription in self._subscriptions:
            if pattern in subscription.patterns:
                subscription.gap(lost)

    def wishes(self) -> list[dict[str, Any]]:
        """Return the params of the `event.subscribe` calls that bring a fresh session in step (at least one)."""
        by_policy: dict[Policy, dict[str, None]] = {}
        for subscription in self._subscriptions:
            by_policy.setdefault(subscription.policy, {}).update(dict.fromkeys(subscription.patterns))
        wishes: list[dict[str, Any]] = [{"events": list(by_policy.pop("close", {}))}]
        wishes += [{"events": list(patterns), "policy": policy} for policy, patterns in by_policy.items()]
        return wishes

    def close(self) -> None:
        """End every iteration once what is in line was read."""
        for subscription in self._subscriptions:
            subscription.close()
