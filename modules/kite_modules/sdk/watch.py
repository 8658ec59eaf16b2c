"""Who waits for a session's state, and who looks at every one of them."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

import trio

from kite_modules.sdk.session import Session, State

_STATES_KEPT: Final = 100


class StateWatch:
    """An iterator of a session's states; who looks away long misses the oldest of a hundred."""

    def __init__(self, board: StateBoard) -> None:
        self.seen = deque([board.session.state], maxlen=_STATES_KEPT)
        self._board = board

    def __aiter__(self) -> StateWatch:
        return self

    async def __anext__(self) -> State:
        while not self.seen:
            await self._board.wait_changed()
        return self.seen.popleft()


class StateBoard:
    """Tells changes of one session's state; `announce` after each step that may have changed it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._changed = trio.Event()
        self._watchers: weakref.WeakSet[StateWatch] = weakref.WeakSet()
        self._last = session.state

    def announce(self) -> None:
        """Wake who waits; watches note a state that is new."""
        state = self.session.state
        if state is not self._last:
            self._last = state
            for watch in self._watchers:
                watch.seen.append(state)
        self._changed.set()
        self._changed = trio.Event()

    def watch(self) -> StateWatch:
        """Collect each state from the present one on, for as long as somebody holds the watch."""
        watch = StateWatch(self)
        self._watchers.add(watch)
        return watch

    async def wait_changed(self) -> None:
        """Wait for the next announcement. Cancel: safe."""
        await self._changed.wait()

    async def wait(self, *states: State) -> State:
        """Wait until the session is in one of these states, or stopped. Cancel: safe."""
        while self.session.state not in states and self.session.state is not State.STOPPED:
            await self._changed.wait()
        return self.session.state
