"""What a method that yields sends back: values in order, held back by the reader's credit, then the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from kite_modules.sdk.errors import CallError


class Values:
    """The values of one running call: `async for value in values`; afterwards `result` holds its result.

    Bounded by the credit: a callee that sends more than it may is cut short at twice the credit (counted in `refused`).
    """

    def __init__(self, credit: int, grant: Callable[[int, int], None]) -> None:
        self.call_id = 0
        self.result: Any = None
        self.refused = 0
        self._credit = credit
        self._grant = grant
        self._owed = 0
        self._queue: deque[Any] = deque()
        self._error: CallError | None = None
        self._ended = False
        self._wake = trio.Event()

    def put(self, value: Any) -> None:
        """Take a value off the wire; never blocks."""
        if len(self._queue) >= 2 * self._credit:
            self.refused += 1
            return
        self._queue.append(value)
        self._wake.set()

    def end(self, *, result: Any = None, error: CallError | None = None) -> None:
        """The call has ended."""
        self.result, self._error, self._ended = result, error, True
        self._wake.set()

    def __aiter__(self) -> Values:
        return self

    async def __anext__(self) -> Any:
        while not self._queue:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._wake = trio.Event()
            await self._wake.wait()
        value = self._queue.popleft()
        self._owed += 1
        if not self._ended and self._owed * 2 >= self._credit:
            self._grant(self.call_id, self._owed)
            self._owed = 0
        return value
