"""How much may wait for one peer, and what happens above it.

Judged after the flush, never inside a read batch: what the wire took at once was no queue. `normal` below half of
either bound, `warning` above, `critical` above nine tenths; critical for `[timing] critical` without relief, or full,
closes 4011. A peer without a wire keeps its frames for resume until the bound; then they are gone and `resumed:false`
says so. Source: spec 20-kernel §4, 10-wire §8, 05-surface §9, cases W-39 to W-42.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kite_kernel._contract import CLOSE_QUEUE_PRESSURE
from kite_kernel.core.peer import Call
from kite_kernel.core.text import notice
from kite_kernel.core.websocket import text_frame

if TYPE_CHECKING:
    from kite_kernel.core.board import Board
    from kite_kernel.core.calls import Calls
    from kite_kernel.core.peer import Peer

NORMAL: Final = 0
WARNING: Final = 1
CRITICAL: Final = 2
LEVELS: Final = ("normal", "warning", "critical")
_LEVELS_TOLD: Final = 2
_PATIENCE: Final = 0.05  # of `[timing] critical`: how long a full queue may give its wire nothing
_HEADROOM_BYTES: Final = 8 << 20  # above the bound, for a burst to a reader that does read; then even it is cut


class Queues:
    """The law of the outgoing queues. Holds the peers that are critical or full now."""

    __slots__ = ("_board", "_calls", "_critical", "_full", "_told")

    def __init__(self, board: Board, calls: Calls) -> None:
        self._board = board
        self._calls = calls
        self._critical: dict[Peer, None] = {}
        self._full: dict[Peer, tuple[int, float]] = {}  # bytes that its wire had taken, and since when no more
        self._told: dict[Peer, list[bytes]] = {}  # warnings that may still wait in the queue

    def judge(self, peer: Peer, *, now: float) -> None:
        """Judge a queue that the wire could not take whole, right after the flush."""
        messages, size = self.measure(peer)
        settings = self._board.settings
        link = peer.link
        if link is None or link.closing:
            if peer.overrun or messages > settings.queue_messages or size > settings.queue_bytes:
                self._overrun(peer)
            return
        share = max(messages / settings.queue_messages, size / settings.queue_bytes)
        level = NORMAL if share < 0.5 else WARNING if share < 0.9 else CRITICAL
        if level != peer.pressure:
            self._enter(peer, level, messages, size, now)
        if share < 1.0:
            self._full.pop(peer, None)
        elif self._stands_still(peer, now) or size > settings.queue_bytes + _HEADROOM_BYTES:
            self._close(peer, messages, size, "full", now=now)

    def _enter(self, peer: Peer, level: int, messages: int, size: int, now: float) -> None:
        """Go to another level; each one that is risen through is told."""
        for risen in range(peer.pressure + 1, level + 1):
            self._warn(peer, messages, size, LEVELS[risen])
        peer.pressure = level
        if level == CRITICAL:
            peer.critical_at = now
            self._critical[peer] = None
        else:
            self._critical.pop(peer, None)

    def _stands_still(self, peer: Peer, now: float) -> bool:
        """Tell whether a full queue has given its wire nothing for a moment: a burst alone is no slow reader."""
        taken, since = self._full.get(peer, (-1, now))
        if taken != peer.bytes_out:
            self._full[peer] = (peer.bytes_out, now)
            return False
        return now - since >= self._patience_s

    @property
    def _patience_s(self) -> float:
        return self._board.settings.timing.critical * _PATIENCE

    def relieved(self, peer: Peer) -> None:
        """The wire took everything that waited."""
        if peer.pressure:
            self.forget(peer)

    def measure(self, peer: Peer) -> tuple[int, int]:
        """Return how many messages and bytes wait; of a plain queue only what is new is looked at."""
        out = peer.out
        if peer.laned:
            alive = [entry for entry in out if entry.__class__ is bytes or not entry.void]
            size = sum(len(entry) if entry.__class__ is bytes else len(entry.frame or b"") for entry in alive)
            peer.judged, peer.judged_bytes = len(out), size
            return len(alive), size
        if peer.judged > len(out):
            peer.judged = 0
            peer.judged_bytes = 0
        peer.judged_bytes += sum(map(len, out[peer.judged :]))
        peer.judged = len(out)
        return len(out), peer.judged_bytes

    def next_at(self) -> float:
        """Return when the next queue runs out of time (monotonic; inf: none)."""
        at = float("inf")
        if self._critical:
            at = min(peer.critical_at for peer in self._critical) + self._board.settings.timing.critical
        if self._full:
            at = min(at, min(since for _, since in self._full.values()) + self._patience_s)
        return at

    def on_time(self, now: float) -> None:
        """Close those that stayed critical for the whole countdown, or full without taking anything."""
        limit = self._board.settings.timing.critical
        for peer in [p for p in self._critical if p.critical_at + limit <= now]:
            messages, size = self.measure(peer)
            self._close(peer, messages, size, "critical", now=now)
        for peer in [p for p, (_, since) in self._full.items() if since + self._patience_s <= now]:
            self.judge(peer, now=now)

    def on_stall(self, now: float) -> None:
        """The kernel itself was away: every countdown begins again."""
        for peer in self._critical:
            peer.critical_at = now
        self._full = dict.fromkeys(self._full, (-1, now))

    def forget(self, peer: Peer) -> None:
        """Its wire is gone, or free again."""
        peer.pressure = NORMAL
        self._critical.pop(peer, None)
        self._full.pop(peer, None)
        self._told.pop(peer, None)

    def _warn(self, peer: Peer, messages: int, size: int, level: str) -> None:
        told = {"messages": messages, "bytes": size, "topic": peer.topic, "level": level}
        frame = text_frame(notice("pressure", told))
        before = self._told.setdefault(peer, [])
        place = sum(any(entry is old for old in before) for entry in peer.out[: len(before)])
        peer.out.insert(place, frame)  # ahead of what it warns of, behind the warning before it
        before.append(frame)
        peer.judged += 1
        peer.judged_bytes += len(frame)
        self._board.log(
            "warning",
            "pressure",
            f"[kernel] {peer.id} queue {level}: {messages} messages, {size} bytes",
            module_id=peer.id,
            pressure=level,
            messages=messages,
            bytes=size,
            topic=peer.topic,
        )

    def _close(self, peer: Peer, messages: int, size: int, what: str, *, now: float) -> None:
        link = peer.link
        told = [old for old in self._told.get(peer, ()) if any(entry is old for entry in peer.out[:_LEVELS_TOLD])]
        self.forget(peer)
        if link is None:
            return
        why = f"queue {what}: {messages} messages, {size} bytes behind, topic {peer.topic or '-'}"
        self._board.log(
            "warning",
            "queue_pressure",
            f"[kernel] {peer.id} {why}",
            module_id=peer.id,
            code=CLOSE_QUEUE_PRESSURE,
            messages=messages,
            bytes=size,
            topic=peer.topic,
        )
        self._overrun(peer)
        self._board.close(link, CLOSE_QUEUE_PRESSURE, why, now=now, before=told)
        self._calls.fail_in_hand(peer, "connection_lost")  # calls may have waited in what is dropped here

    def _overrun(self, peer: Peer) -> None:
        """More waited than may wait: what is lost is lost aloud, by `resumed:false`."""
        self._board.counts["overruns"] += not peer.overrun
        peer.overrun = True
        held = [e for e in peer.out if isinstance(e, Call) and not e.void]
        peer.drop_queue()
        if peer.replay is not None:
            peer.replay.clear()
        for lane in peer.subscriptions.values():
            if lane is not None:
                lane.waiting.clear()
        if held and peer.link is None:
            peer.laned = True
            peer.out.extend(held)
