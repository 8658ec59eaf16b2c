"""What the keeper waits for: one epoll, timers, and streams that want a turn.

Every round gives streams that have something a turn (64 KiB) each, one behind the other, for at most 20 ms, then
looks at orders and ends again: a program that prints without a pause makes another wait for about a millisecond,
and a hundred of them never make the launcher wait.
"""

import heapq
import itertools
import select
import time
from collections.abc import Callable
from typing import Final

IDLE_S: Final = 2.0  # the longest sleep: the loop then looks after its socket and its records
TURNS_S: Final = 0.02
_READ: Final = select.EPOLLIN
_EDGE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Loop:
    """Calls back. A callback that raises ends the keeper: bugs are not hidden (its children don't notice)."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._turns: dict[int, Callable[[], bool]] = {}
        self._busy: dict[int, None] = {}
        self.ended = False

    @property
    def now(self) -> float:
        """Give the monotonic clock, in seconds."""
        return time.monotonic()

    def on_readable(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` while `fd` has something to read or is over."""
        self._handlers[fd] = handler
        self._epoll.register(fd, _READ)

    def want_write(self, fd: int, wanted: bool) -> None:
        """Call the handler of `fd` also when it can be written to."""
        self._epoll.modify(fd, _READ | select.EPOLLOUT if wanted else _READ)

    def add_stream(self, fd: int, turn: Callable[[], bool]) -> None:
        """Give a stream turns whenever bytes come; `turn` says whether it wants another one at once."""
        self._turns[fd] = turn
        self._epoll.register(fd, _EDGE)
        self._busy[fd] = None

    def wake(self, fd: int) -> None:
        """Give a stream a turn in the next round."""
        if fd in self._turns:
            self._busy[fd] = None

    def remove(self, fd: int) -> None:
        """Forget a descriptor. Call before it is closed."""
        self._handlers.pop(fd, None)
        self._turns.pop(fd, None)
        self._busy.pop(fd, None)
        self._epoll.unregister(fd)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call once, not before `when` (monotonic)."""
        heapq.heappush(self._timers, (when, next(self._count), call))

    def run(self) -> None:
        """Go round until `ended` is set."""
        while not self.ended:
            self.round()

    def round(self) -> None:
        """Go round once: wait, orders and ends, one turn for each stream, timers."""
        timeout = IDLE_S
        if self._busy:
            timeout = 0.0
        elif self._timers:
            timeout = min(IDLE_S, max(0.0, self._timers[0][0] - self.now))
        for fd, _ in self._epoll.poll(timeout, 256):
            if fd in self._turns:
                self._busy[fd] = None
            elif fd in self._handlers:
                self._handlers[fd]()
        stop_at = self.now + TURNS_S
        for _ in range(len(self._busy)):
            fd = next(iter(self._busy))
            del self._busy[fd]
            turn = self._turns.get(fd)
            if turn is not None and turn():
                self._busy[fd] = None  # behind all others
            if self.now >= stop_at:
                break
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Give the epoll back."""
        self._epoll.close()
