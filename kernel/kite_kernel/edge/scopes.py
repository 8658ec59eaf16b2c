"""One cancel scope for each module in debounce and one for the launcher's loss; told by Arm and Disarm.

Source: spec 20-kernel §1-2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kite_kernel.edge.logs import say_bug

if TYPE_CHECKING:
    from kite_kernel.core.effects import Clock
    from kite_kernel.edge.hand import Hand


class Scopes:
    """The running clocks by (clock, key)."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._running: dict[tuple[Clock, str], trio.CancelScope] = {}
        self._delays: dict[tuple[Clock, str], float] = {}

    def arm(self, clock: Clock, key: str, delay_s: float) -> None:
        """Start (or start anew) a clock."""
        self.disarm(clock, key)
        scope = trio.CancelScope(deadline=trio.current_time() + delay_s)
        self._running[clock, key] = scope
        self._delays[clock, key] = delay_s
        self._hand.nursery.start_soon(self._run, clock, key, scope)

    def disarm(self, clock: Clock, key: str) -> None:
        """Cancel a clock, if it runs."""
        self._delays.pop((clock, key), None)
        scope = self._running.pop((clock, key), None)
        if scope is not None:
            scope.cancel()

    def begin_anew(self) -> None:
        """The kernel itself was away: every clock gets its whole time again."""
        for (clock, key), delay_s in list(self._delays.items()):
            self.arm(clock, key, delay_s)

    async def _run(self, clock: Clock, key: str, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()  # until the scope's deadline, or until it is disarmed
        if self._running.get((clock, key)) is not scope:
            return
        if trio.current_time() - scope.deadline > self._hand.hub.settings.timing.late_s:
            self.arm(clock, key, self._delays[clock, key])  # the kernel was away: who knocked meanwhile is heard first
            return
        del self._running[clock, key]
        self._delays.pop((clock, key), None)
        hub, now = self._hand.hub, trio.current_time()
        try:
            if clock == "debounce":
                hub.on_away(key, now=now)
            else:
                hub.on_launcher_lost(now=now)
        except Exception as error:  # a fault met by one module must not end the others
            say_bug(f"fault as the {clock} of {key} ended", error)
        self._hand.settle()
