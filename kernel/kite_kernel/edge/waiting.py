"""The waiting room: connections whose request or first frame has not come yet, and who has to go when it is full.

Laws:
- The slots are strangers' own: they never take a module's, and a module never waits for one of theirs.
- Who is young is not silent: a whole fleet that comes back at once fits in and has time to speak.
- Above the cap the oldest silent ones go first, 4002; above the bound newcomers wait in the backlog.

Source: spec 00 §11, 05-surface §9, 20-kernel §6, cases W-50, W-57.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from kite_kernel._contract import CLOSE_AUTH_TIMEOUT, PRE_AUTH_CONNECTIONS

if TYPE_CHECKING:
    from kite_kernel.core.peer import Link
    from kite_kernel.edge.hand import Hand
    from kite_kernel.edge.port import Port

_BOUND: Final = 8 * PRE_AUTH_CONNECTIONS  # young and silent ones together
_LOOK_S: Final = 0.1  # how often a room above its cap is looked through
_SILENT_S: Final = 0.8  # a stranger younger than this is no silent one: its next frame may be on its way
_CROWD_S: Final = 2.5  # the same while others do get in: then it is a crowd coming back, and its client is busy
_HURRY_S: Final = 0.25  # the least time that even a room at its bound gives
_INF: Final = float("inf")


class WaitingRoom:
    """Who waits before the gate of one hand's hub: heads that are not whole, and wires that have not spoken."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._heads: dict[int, tuple[float, Port]] = {}
        self._next = 0
        self._looking = False

    def __len__(self) -> int:
        return len(self._heads) + len(self._hand.hub.gate.strangers)

    def enter(self, port: Port) -> int:
        """Let a connection wait for the rest of its request; return its mark."""
        self._next += 1
        self._heads[self._next] = (trio.current_time(), port)
        return self._next

    def leave(self, mark: int) -> None:
        """Its request is whole, or it is gone."""
        self._heads.pop(mark, None)

    def has_room(self) -> bool:
        """Tell whether another one may be accepted now; above the cap somebody may have to go for it."""
        count = len(self)
        if count < PRE_AUTH_CONNECTIONS:
            return True
        if not self._looking:
            self._looking = True
            self._hand.nursery.start_soon(self._look_through)
        return count < _BOUND or self._send_away(_HURRY_S)

    async def _look_through(self) -> None:
        """Send the oldest silent ones away until the room is within its cap."""
        while len(self) > PRE_AUTH_CONNECTIONS:
            await trio.sleep(_LOOK_S)
            crowd = trio.current_time() - self._hand.hub.gate.last_in_at < _SILENT_S
            while len(self) > PRE_AUTH_CONNECTIONS and self._send_away(_CROWD_S if crowd else _SILENT_S):
                pass
            self._hand.settle()
        self._looking = False

    def _send_away(self, patience_s: float) -> bool:
        """Send the oldest one away. Returns: False where even that one is younger than `patience_s`."""
        now = trio.current_time()
        strangers = self._hand.hub.gate.strangers
        mark = next(iter(self._heads), 0)
        link: Link | None = next(iter(strangers.values()), None)
        head_at = self._heads[mark][0] if mark else _INF
        link_at = link.opened_at if link is not None else _INF
        if now - min(head_at, link_at) < patience_s:
            return False
        if link is not None and link_at < head_at:
            del strangers[link.id]
            self._hand.hub.board.close(link, CLOSE_AUTH_TIMEOUT, "silent while others wait", now=now)
        else:
            self._heads.pop(mark)[1].close()
        return True
