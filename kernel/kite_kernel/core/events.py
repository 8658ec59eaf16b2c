"""Events: what is published, who is told, what is kept for those who come late.

Laws:
- A publish makes its frame once, whatever the number of subscribers; nobody gets it twice.
- `source` is always the sender; system events are the kernel's alone.
- A subscribe's answer precedes its first event, and a retained value comes once, before the live ones.

Source: spec 10-wire §7, 05-surface §9, cases W-33 to W-38.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kite_kernel._contract import EVENTS, RETAINED_BYTES, RETAINED_NAMES
from kite_kernel.core.frame import ABSENT
from kite_kernel.core.peer import Laned
from kite_kernel.core.text import encode, event
from kite_kernel.core.topics import is_event_name, matches
from kite_kernel.core.websocket import text_frame

if TYPE_CHECKING:
    from kite_kernel.core.board import Board
    from kite_kernel.core.peer import Lane, Peer

_SWEEP_AT: Final = 64  # void entries that a queue may hold before it is swept
_KERNEL: Final = b'"kernel"'


class Publish(msgspec.Struct, gc=False):
    """The params of `event.publish`."""

    event: str
    data: msgspec.Raw = ABSENT
    exclude_self: bool = False
    retain: bool = False
    key: str | None = None


decode_publish: Final = msgspec.json.Decoder(Publish).decode


class Events:
    """Fan-out and the retained values."""

    __slots__ = ("_board", "_names", "_retained", "_retained_bytes")

    def __init__(self, board: Board) -> None:
        self._board = board
        self._retained: dict[str, tuple[bytes, int]] = {}
        self._retained_bytes = 0
        self._names: dict[str, bytes] = {}

    def quoted(self, name: str) -> bytes | None:
        """Return a valid event name as JSON text, None for one that may not be published."""
        known = self._names.get(name)
        if known is None:
            if not is_event_name(name):
                return None
            known = encode(name)
            if len(self._names) >= 4096:
                self._names.clear()
            self._names[name] = known
        return known

    def publish(self, source: Peer, wish: Publish, quoted: bytes, *, now: float) -> int:
        """Tell everybody who subscribed; return how many."""
        board = self._board
        name = wish.event
        frame = text_frame(event(quoted, bytes(wish.data) or b"null", source.quoted, board.utc(now)))
        if wish.retain:
            self._keep(name, frame, bytes(wish.data))
        plain, laned = board.topics.audience(name)
        count = len(plain) + len(laned)
        touched = board.touched
        if wish.exclude_self:
            delivered = 0
            for peer in plain:
                if peer is not source:
                    peer.topic = name
                    board.say(peer, frame)
                    delivered += 1
            for peer, lane in laned:
                if peer is not source:
                    self._say_laned(peer, lane, name, frame)
                    delivered += 1
            return delivered
        for peer in plain:
            if not peer.touched:
                peer.touched = True
                touched.append(peer)
            peer.topic = name
            peer.out.append(frame)
        for peer, lane in laned:
            self._say_laned(peer, lane, name, frame)
        return count

    def _say_laned(self, peer: Peer, lane: Lane, name: str, frame: bytes) -> None:
        """Queue an event on a lane that rather loses than grows."""
        waiting = lane.waiting
        if lane.policy == "latest":
            mark: int | str = name
            old = waiting.pop(mark, None)
            if old is not None:
                old.void = True
                lane.lost += 1
                peer.voided += 1
        else:
            lane.numbered += 1
            mark = lane.numbered
        if len(waiting) >= lane.limit:
            first = next(iter(waiting))
            waiting.pop(first).void = True
            lane.lost += 1
            peer.voided += 1
        entry = Laned(lane, mark, frame)
        waiting[mark] = entry
        peer.topic = name
        self._board.touch(peer)
        peer.laned = True
        peer.out.append(entry)
        if peer.voided > _SWEEP_AT and 2 * peer.voided > len(peer.out):
            peer.sweep()

    def _keep(self, name: str, frame: bytes, data: bytes) -> None:
        """Keep the last value of a name; `null` clears it."""
        old = self._retained.pop(name, None)
        if old is not None:
            self._retained_bytes -= old[1]
        if not data or data == b"null":
            return
        size = len(frame) + len(name)
        self._retained[name] = (frame, size)
        self._retained_bytes += size

    def may_keep(self, wish: Publish) -> bool:
        """Tell whether a retained value would stay within the bounds."""
        size = len(wish.data) + 2 * len(wish.event) + 200
        if wish.event in self._retained:
            return self._retained_bytes - self._retained[wish.event][1] + size <= RETAINED_BYTES
        return len(self._retained) < RETAINED_NAMES and self._retained_bytes + size <= RETAINED_BYTES

    def replay_retained(self, peer: Peer, patterns: list[str]) -> None:
        """Give a new subscription the last values of what it covers."""
        if not self._retained:
            return
        older = [p for p in peer.subscriptions if p not in patterns]
        exact = [p for p in patterns if "*" not in p and ">" not in p]
        wide = [p for p in patterns if "*" in p or ">" in p]
        names = [name for name in exact if name in self._retained]
        if wide:
            names += [n for n in self._retained if n not in names and any(matches(p, n) for p in wide)]
        for name in names:
            if any(matches(p, name) for p in older):
                continue  # it had this value already: no twin
            if peer.permissions is None or peer.permissions.may_hear(name):
                peer.topic = name
                self._board.say(peer, self._retained[name][0])

    def announce(self, name: str, data: dict[str, Any], *, now: float, only: Peer | None = None) -> None:
        """Say a system event to every connected module (or one), without a subscription."""
        frame = text_frame(event(encode(name), encode(data), _KERNEL, self._board.utc(now)))
        for peer in [only] if only is not None else list(self._board.peers.values()):
            if peer.link is not None or peer.replay is not None:
                peer.topic = name
                self._board.say(peer, frame)


def is_reserved(name: str) -> bool:
    """Tell whether only the kernel may publish this event."""
    return EVENTS.get(name) == "kernel"
