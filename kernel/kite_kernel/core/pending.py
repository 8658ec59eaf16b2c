"""The table of calls in flight, and which deadline falls due next.

Calls with the default deadline fall due in the order in which they began, which a dictionary keeps for nothing; the
others stand in a heap besides. Source: spec 10-wire §6, 20-kernel; case W-20.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kite_kernel.core.peer import Call, Peer

_INF: Final = float("inf")
_HEAP_SLACK: Final = 1024  # entries of finished calls that the heap may hold before it is swept


class Pending:
    """Kernel id -> call. `next_at` is when a deadline may fall due (monotonic; inf: none); early is harmless."""

    __slots__ = ("_heap", "calls", "next_at")

    def __init__(self) -> None:
        self.calls: dict[bytes, Call] = {}
        self._heap: list[tuple[float, bytes, Call]] = []
        self.next_at = _INF

    def add(self, call: Call) -> None:
        """Enter a call whose `deadline_at` and `usual` are set."""
        self.calls[call.kid] = call
        if not call.usual:
            heap = self._heap
            heappush(heap, (call.deadline_at, call.kid, call))
            if len(heap) > _HEAP_SLACK + 2 * len(self.calls):
                self._heap = [row for row in heap if row[1] in self.calls]
                heapify(self._heap)
        if call.deadline_at < self.next_at:
            self.next_at = call.deadline_at

    def take_due(self, now: float) -> list[Call]:
        """Return the calls whose deadline is over, the most urgent kind first, and find the next deadline."""
        heap, calls = self._heap, self.calls
        due: list[Call] = []
        while heap and (heap[0][0] <= now or heap[0][1] not in calls):
            call = heappop(heap)[2]
            if call.kid in calls:
                due.append(call)
        self.next_at = heap[0][0] if heap else _INF
        for call in calls.values():
            if call.usual:
                if call.deadline_at > now:
                    self.next_at = min(self.next_at, call.deadline_at)
                    break
                due.append(call)
        return due

    def in_hands_of(self, callee: Peer) -> list[Call]:
        """Return the calls that were handed to a module."""
        return [call for call in self.calls.values() if call.callee is callee and call.frame is None]

    def held_for(self, callee: Peer) -> list[Call]:
        """Return the calls that wait for a module in debounce."""
        return [call for call in self.calls.values() if call.callee is callee and call.frame is not None]
