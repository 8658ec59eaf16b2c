"""A pulse: wake everybody who waits for something about one thing to change, then let them look again."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio


class Pulse:
    """`beat` wakes all; `until` waits for a condition. Nothing is queued, so nothing can overflow."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def beat(self) -> None:
        """Wake everybody who waits."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self, deadline: float = math.inf) -> None:
        """Wait for one beat, at most until `deadline` (trio's clock). Cancel: safe."""
        with trio.move_on_at(deadline):
            await self._event.wait()

    async def until(self, condition: Callable[[], bool], deadline: float = math.inf) -> bool:
        """Wait until the condition holds; False when the deadline came first. Cancel: safe."""
        while not condition():
            if trio.current_time() >= deadline:
                return False
            await self.wait(deadline)
        return True
