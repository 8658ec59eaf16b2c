"""The ping rounds: who is asked when, what counts as life, and when silence ends a connection.

Laws:
- Misses are counted one by one, never by the age of the last answer.
- A round whose own check came late says nothing about others: it is thrown away and everybody gets a fresh period.
- Any text frame since the ping is life; a launcher's silence is `degraded`, never a close.

Source: spec 20-kernel §3, 00 §13-14, 05-surface §9, cases W-43 to W-45.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kite_kernel._contract import CLOSE_PING_TIMEOUT
from kite_kernel.core.text import encode, event
from kite_kernel.core.websocket import ping_frame, text_frame

if TYPE_CHECKING:
    from kite_kernel.core.board import Board
    from kite_kernel.core.peer import Peer

_INF: Final = float("inf")


class Liveness:
    """When to ping whom. `round_at` is the next round for everybody, `check_at` the next verdict."""

    __slots__ = ("_board", "_suspects", "_waiting", "check_at", "round_at")

    def __init__(self, board: Board, *, now: float) -> None:
        self._board = board
        self.round_at = now + board.settings.timing.ping_active
        self.check_at = _INF
        self._waiting: dict[Peer, None] = {}  # pinged, verdict outstanding
        self._suspects: dict[Peer, None] = {}

    def next_at(self) -> float:
        """Return when `on_time` has something to do (monotonic)."""
        return min(self.round_at, self.check_at)

    def on_time(self, now: float) -> None:
        """Give the verdicts that are due, then ping those whose turn it is."""
        timing = self._board.settings.timing
        if self.check_at <= now:
            self._check(now)
            self.check_at = _INF
        if self._waiting:
            self.round_at = max(self.round_at, self.check_at)  # one question at a time: its verdict comes first
            return
        due = self.round_at <= now
        again = [peer for peer in self._board.peers.values() if peer.link is not None] if due else list(self._suspects)
        self._suspects.clear()
        if due:
            self.round_at = now + self.interval(now)
        for peer in again:
            self._ping(peer, now)
        if self._waiting:
            self.check_at = now + timing.pong
            if abs(self.round_at - self.check_at) < 0.25 * timing.pong:
                self.round_at = self.check_at  # one wake for both: the verdict, then the next round

    def interval(self, now: float) -> float:
        """Return the interval of the rounds: quick while calls ran lately."""
        timing = self._board.settings.timing
        active = now - self._board.last_call_at < timing.rpc_active_s
        return timing.ping_active if active else timing.ping_idle

    def call_began(self, now: float) -> None:
        """The first call after a quiet time: the quick interval holds from now."""
        self.round_at = min(self.round_at, now + self._board.settings.timing.ping_active)

    def _ping(self, peer: Peer, now: float) -> None:
        link = peer.link
        if link is None or link.closing:
            return
        pulse = peer.pulse
        pulse.pinged_at = now
        pulse.ping_time = round(self._board.utc(now), 6)
        pulse.heard = peer.received
        self._waiting[peer] = None
        link.urgent += ping_frame()
        self._say_ping(peer, now)

    def _say_ping(self, peer: Peer, now: float) -> None:
        data: dict[str, Any] = {"ping_time": round(self._board.utc(now), 6)}
        if peer.replay is not None:
            data["received"] = peer.received
        self._board.say(peer, text_frame(event(b'"system.ping"', encode(data), b'"kernel"', self._board.utc(now))))

    def _check(self, now: float) -> None:
        timing = self._board.settings.timing
        for peer in list(self._waiting):
            pulse = peer.pulse
            link = peer.link
            if link is None or link.closing or pulse.pinged_at is None:
                continue
            if peer.received > pulse.heard:
                pulse.unanswered = 0
                pulse.pinged_at = None
                if pulse.status != "ok":
                    pulse.status = "ok"
                continue
            pulse.unanswered += 1
            pulse.status = "timeout"
            count = pulse.unanswered
            self._board.counts["ping_timeouts"] += 1
            self._board.log(
                "warning",
                "ping_timeout",
                f"[kernel] {peer.id} ping timeout {count} times",
                module_id=peer.id,
                attempt=count,
                max=timing.ping_misses,
            )
            if count >= timing.ping_misses:
                if peer.role == "launcher":
                    self._say_degraded(peer, count, now)
                else:
                    self._board.close(link, CLOSE_PING_TIMEOUT, f"{count} pings in a row unanswered", now=now)
                    continue
            self._suspects[peer] = None
        self._waiting.clear()

    def _say_degraded(self, peer: Peer, count: int, now: float) -> None:
        """A silent launcher on a standing wire is told loudly and kept (00 §14): its closed wire starts the clocks."""
        text = f"[kernel] {peer.id} is silent on a standing wire: degraded"
        self._board.log_seldom("error", "launcher_silent", peer.id, text, now=now, module_id=peer.id, unanswered=count)

    def on_stall(self, now: float) -> None:
        """The kernel itself was late: no verdict on anybody, and a fresh period for all."""
        self._waiting.clear()
        self._suspects.clear()
        self.check_at = _INF
        self.round_at = now

    def keep_bounded(self, peer: Peer, *, now: float) -> None:
        """Keep a peer's replay buffer within its bound; half full it is asked what it has, out of turn."""
        replay = peer.replay
        settings = self._board.settings
        max_frames = settings.replay_frames
        if replay is None or (2 * replay.frames <= max_frames and 2 * replay.size_bytes <= settings.queue_bytes):
            return
        replay.trim(max_frames, settings.queue_bytes)
        if not peer.ack_asked:
            peer.ack_asked = True
            self._say_ping(peer, now)

    @staticmethod
    def _acknowledged(peer: Peer, received: int) -> None:
        if peer.replay is not None:
            peer.replay.acknowledge(peer.sent - received)
            peer.ack_asked = False

    def pong(self, peer: Peer, ping_time: Any, pong_time: Any, received: Any, *, now: float) -> None:
        """Take a `system.pong`: latencies, and how much the peer has."""
        pulse = peer.pulse
        if isinstance(received, int) and not isinstance(received, bool) and 0 <= received <= peer.sent:
            self._acknowledged(peer, received)
        if pulse.pinged_at is not None and ping_time == pulse.ping_time:
            pulse.note(now - pulse.pinged_at, ping_time, pong_time, self._board.utc(now))
            pulse.unanswered = 0
            pulse.status = "ok"
            pulse.pinged_at = None
