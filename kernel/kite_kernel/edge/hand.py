"""The hand of the hub: flushes what was touched, carries out effects, keeps its clock.

`settle` is called after every event that went into the hub, and nothing may stand between an event and its `settle`:
no await. Source: spec 00 §8a.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, assert_never

import structlog
import trio

from kite_kernel._contract import READ_BATCH_BYTES
from kite_kernel.core.effects import Arm, CloseWire, Disarm, Log, Revoke, Stop
from kite_kernel.edge.logs import say_bug
from kite_kernel.edge.scopes import Scopes

if TYPE_CHECKING:
    from kite_kernel.core.effects import Effect
    from kite_kernel.core.hub import Hub
    from kite_kernel.core.peer import Peer
    from kite_kernel.edge.wire import Wire

_log = structlog.get_logger()
_HEARTBEAT_S = 1.0  # how long the timer task sleeps at most: a pause of the kernel itself is noticed within this


class Hand:
    """Joins one hub to one nursery. `stopping` is set once the hub asked for the end."""

    def __init__(self, hub: Hub, nursery: trio.Nursery) -> None:
        self.hub = hub
        self.nursery = nursery
        self.scopes = Scopes(self)
        self.stopping = trio.Event()
        self.stop_reason = ""
        self.stop_deadline_s = 0.0
        self.revoked: list[frozenset[str]] = []
        self._flusher: trio.lowlevel.Task | None = None  # while it waits to be woken
        self._woken = False
        self._unsettled_bytes = 0
        self._timer_at = float("-inf")
        self._timer_scope: trio.CancelScope | None = None
        self.tell_wall_clock()

    def tell_wall_clock(self) -> None:
        """Let the hub know what time it is outside."""
        self.hub.board.utc_offset_s = time.time() - trio.current_time()

    # --- after every event ---

    def settle_soon(self, read_bytes: int) -> None:
        """Settle once all readers that have something now were heard: a queue that many touch is flushed once.

        At once, where an effect waits, or where more than a read batch has come in since the last time. Args: what
        the caller has just given to the hub.
        """
        self._unsettled_bytes += read_bytes
        if self._unsettled_bytes > READ_BATCH_BYTES or self.hub.board.effects or self._flusher is None:
            self.settle()
        elif not self._woken:
            self._woken = True
            trio.lowlevel.reschedule(self._flusher)

    async def run_flusher(self) -> None:
        """Settle when `settle_soon` asked for it: after all tasks that were due together with the asking one."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._flusher = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._flusher = trio.lowlevel.current_task()
            self._woken = False
            await trio.lowlevel.wait_task_rescheduled(abort)
            self.settle()

    def settle(self) -> None:
        """Flush every touched queue once and carry out the effects."""
        self._unsettled_bytes = 0
        board = self.hub.board
        while board.touched or board.effects:
            touched = board.touched
            board.touched = []
            for peer in touched:
                peer.touched = False
                try:
                    self._flush(peer)
                except Exception as error:  # a fault met by one peer must not end the others
                    say_bug(f"fault while flushing {peer.id}", error)
            if board.effects:
                effects = board.effects
                board.effects = []
                for effect in effects:
                    try:
                        self._carry_out(effect)
                    except Exception as error:
                        say_bug(f"fault while doing {type(effect).__name__}", error)
        if self._timer_scope is not None and self.hub.next_at() < self._timer_at:
            self._timer_scope.cancel()

    def _flush(self, peer: Peer) -> None:
        link = peer.link
        hub = self.hub
        if link is None or link.closing:
            if peer.out:
                hub.queues.judge(peer, now=trio.current_time())
            return
        if not link.wire.flush() and peer.out:
            hub.queues.judge(peer, now=trio.current_time())
        if peer.replay is not None:
            hub.liveness.keep_bounded(peer, now=trio.current_time())

    def on_drained(self, wire: Wire, everything: bool) -> None:
        """A blocked wire took something: relieve or judge its queue anew."""
        peer = wire.source.peer  # type: ignore[attr-defined]
        if peer is None or peer.link is None or peer.link.wire is not wire:
            return
        if everything or not peer.out:
            self.hub.queues.relieved(peer)
        self.hub.board.touch(peer)
        self.settle()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case CloseWire():
                effect.link.wire.close(effect.code, effect.reason, effect.frames)
            case Log():
                getattr(_log, effect.level)(effect.text, key=effect.event, **effect.fields)
            case Arm():
                self.scopes.arm(effect.clock, effect.key, effect.delay_s)
            case Disarm():
                self.scopes.disarm(effect.clock, effect.key)
            case Stop():
                self.stop_reason = effect.reason
                self.stop_deadline_s = effect.deadline_s
                self.stopping.set()
            case Revoke():
                self.revoked.append(effect.names)
            case _:
                assert_never(effect)

    # --- the clock ---

    async def run_timers(self) -> None:
        """Sleep until the hub has something to do, again and again; notice when this very task came late."""
        hub = self.hub
        late_s = hub.settings.timing.late_s
        while True:
            self._timer_at = min(hub.next_at(), trio.current_time() + _HEARTBEAT_S)
            with trio.CancelScope() as scope:
                self._timer_scope = scope
                await trio.sleep_until(self._timer_at)
            self._timer_scope = None
            if scope.cancelled_caught:
                continue
            late = trio.current_time() - self._timer_at
            self.tell_wall_clock()
            hub.board.lag_s += (late - hub.board.lag_s) * 0.2
            if late > late_s:
                self.scopes.begin_anew()
                hub.on_stall(late, now=trio.current_time())
                await trio.lowlevel.checkpoint()
            # Whatever arrived while this task slept is read first: an answer in the buffer is no silence.
            await trio.lowlevel.checkpoint()
            try:
                hub.on_time(now=trio.current_time())
            except Exception as error:  # whatever it was, the clock goes on; not at once, it may be the same again
                say_bug("fault at a due time", error)
                await trio.sleep(_HEARTBEAT_S)
            self.settle()
