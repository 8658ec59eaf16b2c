"""How much may wait for one peer, and what happens above it.

Judged after the flush, never inside a read batch: what the wire took at once was no queue. `normal` below half of
either bound, `warning` above, `critical` above nine tenths; critical for `[timing] critical` without relief, or full,
closes 4011. A peer without a wire keeps its frames for resume until the bound; then they are gone and `resumed:false`
says so. Source: spec 20-kernel §4, 10-wire §8, 05-surface §9, cases W-39 to W-42.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kite_kernel._contract import CLOSE_QUEUE_PRESSURE
from kite_kernel.core.peer import Call, Laned
from kite_kernel.core.text import notice
from kite_kernel.core.websocket import text_frame

if TYPE_CHECKING:
    from kite_kernel.core.board import Board
    from kite_kernel.core.peer import Peer

NORMAL: Final = 0
WARNING: Final = 1
CRITICAL: Final = 2
LEVELS: Final = ("normal", "warning", "critical")


class Queues:
    """The law of the outgoing queues. Holds the peers that are critical now."""

    __slots__ = ("_board", "critical")

    def __init__(self, board: Board) -> None:
        self._board = board
        self.critical: dict[Peer, None] = {}

    def judge(self, peer: Peer, *, now: float) -> None:
        """Judge a queue that the wire could not take whole, right after the flush."""
        self.measure(peer)
        settings = self._board.settings
        messages, size = len(peer.out), peer.judged_bytes
        if peer.link is None:
            if messages > settings.queue_messages or size > settings.queue_bytes:
                self._overrun(peer)
            return
        share = max(messages / settings.queue_messages, size / settings.queue_bytes)
        level = NORMAL if share < 0.5 else WARNING if share < 0.9 else CRITICAL
        if share >= 1.0:
            self._close(peer, messages, size, "full", now=now)
            return
        if level != peer.pressure:
            rises = level > peer.pressure
            peer.pressure = level
            if level == CRITICAL:
                peer.critical_at = now
                self.critical[peer] = None
            else:
                self.critical.pop(peer, None)
            if rises:
                self._warn(peer, messages, size, LEVELS[level])

    def relieved(self, peer: Peer) -> None:
        """The wire took everything that waited."""
        if peer.pressure:
            peer.pressure = NORMAL
            self.critical.pop(peer, None)

    def measure(self, peer: Peer) -> None:
        """Bring `judged_bytes` up to date with the queue."""
        out = peer.out
        if peer.judged > len(out):
            peer.judged = 0
            peer.judged_bytes = 0
        size = peer.judged_bytes
        for entry in out[peer.judged :]:
            if entry.__class__ is bytes:
                size += len(entry)
            elif isinstance(entry, Laned):
                size += len(entry.frame)
            elif isinstance(entry, Call):
                size += len(entry.frame or b"")
        peer.judged = len(out)
        peer.judged_bytes = size

    def next_at(self) -> float:
        """Return when the next critical queue runs out of time (monotonic; inf: none)."""
        if not self.critical:
            return float("inf")
        return min(peer.critical_at for peer in self.critical) + self._board.settings.timing.critical

    def on_time(self, now: float) -> None:
        """Close those that stayed critical for the whole countdown."""
        limit = self._board.settings.timing.critical
        for peer in [p for p in self.critical if p.critical_at + limit <= now]:
            self._close(peer, len(peer.out), peer.judged_bytes, "critical", now=now)

    def on_stall(self, now: float) -> None:
        """The kernel itself was away: every countdown begins again."""
        for peer in self.critical:
            peer.critical_at = now

    def forget(self, peer: Peer) -> None:
        """Its wire is gone."""
        peer.pressure = NORMAL
        self.critical.pop(peer, None)

    def _warn(self, peer: Peer, messages: int, size: int, level: str) -> None:
        body = notice("pressure", {"messages": messages, "bytes": size, "topic": peer.topic, "level": level})
        peer.out.append(text_frame(body))
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
        self._board.close(link, CLOSE_QUEUE_PRESSURE, why, now=now)

    def _overrun(self, peer: Peer) -> None:
        """More waited than may wait: what is lost is lost aloud, by `resumed:false`."""
        peer.overrun = True
        held = [e for e in peer.out if isinstance(e, Call) and not e.void]
        peer.drop_queue()
        peer.forget_replay()
        for lane in peer.subscriptions.values():
            if lane is not None:
                lane.waiting.clear()
        if held and peer.link is None:
            peer.laned = True
            peer.out.extend(held)
        self._board.counts["overruns"] += 1
