"""What a module publishes: events for others, and the four that it says about itself.

Source: spec 10-wire §7, 05-surface §8-9, cases W-25, W-30, W-38, X-14, X-16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kite_kernel._contract import (
    E_FORBIDDEN,
    E_INVALID_PARAMS,
    E_INVALID_REQUEST,
    E_OVERLOADED,
    IDEMPOTENCY_S,
    MAX_ID_BYTES,
    METHODS,
)
from kite_kernel.core.asking import Refused, read_params
from kite_kernel.core.events import Publish, decode_publish, is_reserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.board import Board
    from kite_kernel.core.events import Events
    from kite_kernel.core.frame import Envelope
    from kite_kernel.core.liveness import Liveness
    from kite_kernel.core.members import Members
    from kite_kernel.core.once import Once
    from kite_kernel.core.peer import Peer

_decode_positions: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_POSITIONS: Final = tuple(METHODS["event.publish"].params)
_DELIVERED: Final = b'{"delivered":%d}'


class Speech:
    """Judges and carries out what modules publish."""

    __slots__ = ("_board", "_events", "_liveness", "_members", "_once", "own")

    def __init__(self, board: Board, events: Events, members: Members, liveness: Liveness, once: Once) -> None:
        self._board = board
        self._events = events
        self._members = members
        self._liveness = liveness
        self._once = once
        self.own: dict[str, Callable[[Peer, Any, float], bytes | Refused]] = {
            "module.ready": self._ready,
            "module.exiting": self._exiting,
            "module.shutdown_ack": self._acknowledged,
            "system.pong": self._pong,
        }

    def publish(self, peer: Peer, frame: Envelope, *, now: float) -> bytes | Refused:
        """Carry out one `event.publish`. Returns: the result as JSON bytes, or why not."""
        wish = read_publish(frame.params)
        if isinstance(wish, Refused):
            return wish
        own = self.own.get(wish.event)
        if own is not None:
            return own(peer, wish.data, now)
        quoted = self._events.quoted(wish.event)
        if quoted is None:
            return Refused(E_INVALID_PARAMS, "invalid_params", field="event")
        if is_reserved(wish.event):
            return Refused(E_FORBIDDEN, "reserved_event", event=wish.event)
        if peer.permissions is not None and not peer.permissions.may_publish(wish.event):
            return Refused(E_FORBIDDEN, "no_permission", event=wish.event)
        if wish.retain and not self._events.may_keep(wish):
            return Refused(E_OVERLOADED, "queue_full", retry_after=IDEMPOTENCY_S, what="retained values")
        if wish.key is None:
            return _DELIVERED % self._events.publish(peer, wish, quoted, now=now)
        return self._publish_once(peer, wish, wish.key, quoted, now)

    def _publish_once(self, peer: Peer, wish: Publish, name: str, quoted: bytes, now: float) -> bytes | Refused:
        if len(name) > MAX_ID_BYTES:
            return Refused(E_INVALID_PARAMS, "invalid_params", field="key")
        key = (peer.id, f"event {wish.event}", name)
        entry = self._once.find(key, now=now)
        if entry is not None and entry.tail is not None:
            return entry.tail
        self._once.begin(key, now=now)
        answer = _DELIVERED % self._events.publish(peer, wish, quoted, now=now)
        self._once.settle(key, answer)
        return answer

    # --- what a module says about itself: it counts for its sender, whatever `module_id` it claims ---

    def _ready(self, peer: Peer, data: Any, now: float) -> bytes | Refused:
        del data
        if self._members.said_ready(peer, now=now):
            return _DELIVERED % len(self._board.peers)
        why = "subscribe and register come before module.ready"
        return Refused(E_INVALID_REQUEST, "not_request", message=why, state=peer.state.value)

    def _exiting(self, peer: Peer, data: Any, now: float) -> bytes | Refused:
        reason = _plain(data).get("reason")
        self._members.said_exiting(peer, reason if isinstance(reason, str) else None, now=now)
        return _DELIVERED % len(self._board.peers)

    def _acknowledged(self, peer: Peer, data: Any, now: float) -> bytes | Refused:
        del data, now
        self._board.counts["shutdown_acks"] += 1
        peer.acknowledged = True
        return _DELIVERED % 0

    def _pong(self, peer: Peer, data: Any, now: float) -> bytes | Refused:
        told = _plain(data)
        self._liveness.pong(peer, told.get("ping_time"), told.get("pong_time"), told.get("received"), now=now)
        return _DELIVERED % 0


def read_publish(params: msgspec.Raw) -> Publish | Refused:
    """Read the params of a publish; `data` keeps its exact bytes, by name and by position."""
    try:
        return decode_publish(params)
    except msgspec.DecodeError:
        pass
    try:
        values = _decode_positions(params)
        if len(values) > len(_POSITIONS):
            return Refused(E_INVALID_PARAMS, "invalid_params", field="params")
        body = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in zip(_POSITIONS, values, strict=False))
        return decode_publish(b"{" + body + b"}")
    except msgspec.DecodeError:
        found = read_params("event.publish", bytes(params))
        return found if isinstance(found, Refused) else Refused(E_INVALID_PARAMS, "invalid_params", field="params")


def _plain(data: Any) -> dict[str, Any]:
    """Read the data of an own event; anything strange is an empty object."""
    try:
        value = msgspec.json.decode(data) if data else {}
    except (msgspec.DecodeError, RecursionError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
