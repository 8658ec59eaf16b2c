"""What the rooms of the hub share: who is here, whose queues were touched, what the edge shall do.

A room may put frames into queues only by `send` and `say`; so every queue that has something new is in `touched`,
and the edge flushes each of them once per read batch. Source: spec 00 §8a.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

from kite_kernel._contract import CLOSE, CLOSED_KEPT
from kite_kernel.core.effects import CloseWire, Effect, Log
from kite_kernel.core.quality import Comings
from kite_kernel.core.text import bye, closing_error, error, iso, wire_code
from kite_kernel.core.topics import Topics
from kite_kernel.core.websocket import text_frame, text_header

if TYPE_CHECKING:
    from kite_kernel.core.peer import Link, Peer
    from kite_kernel.core.settings import Settings

_SELDOM_S: Final = 60.0  # cases: an attempt is logged once per address and minute
_SELDOM_KEPT: Final = 1024
_LEFT_KEPT: Final = 10_000  # modules whose going is remembered


class Board:
    """The shared state of the hub's rooms. `utc_offset_s` turns monotonic seconds into seconds since 1970."""

    __slots__ = (
        "_seldom",
        "closed",
        "comings",
        "counts",
        "effects",
        "epoch",
        "known_ids",
        "lag_s",
        "last_call_at",
        "left",
        "links",
        "peers",
        "settings",
        "topics",
        "touched",
        "utc_offset_s",
    )

    def __init__(self, settings: Settings, epoch: str) -> None:
        self.settings = settings
        self.epoch = epoch
        self.peers: dict[str, Peer] = {}
        self.links: dict[int, Link] = {}
        self.topics = Topics()
        self.touched: list[Peer] = []
        self.effects: list[Effect] = []
        self.counts: Counter[str] = Counter()
        self.closed: deque[dict[str, Any]] = deque(maxlen=CLOSED_KEPT)
        self._seldom: dict[tuple[str, str], list[float]] = {}
        self.comings: OrderedDict[str, Comings] = OrderedDict()
        self.lag_s = 0.0  # how late the kernel's own timers come lately, smoothed
        self.left: dict[str, float] = {}  # since when a module that was here is offline
        self.known_ids: frozenset[str] = frozenset()  # modules that have a token
        self.last_call_at = float("-inf")
        self.utc_offset_s = 0.0

    # --- queues ---

    def say(self, peer: Peer, frame: bytes) -> None:
        """Queue a whole frame (header included) for a peer."""
        if not peer.touched:
            peer.touched = True
            self.touched.append(peer)
        peer.out.append(frame)

    def send(self, peer: Peer, body: bytes) -> None:
        """Queue one text message for a peer."""
        if not peer.touched:
            peer.touched = True
            self.touched.append(peer)
        peer.out.append(text_header(len(body)) + body)

    def refuse(self, peer: Peer, ident: bytes, code: int, reason: str, outcome: str = "not_sent", **data: Any) -> None:
        """Answer a request with an error of the kernel's own."""
        self.send(peer, error(ident, code, reason, outcome, **data))

    def touch(self, peer: Peer) -> None:
        """Have the edge look after a peer's queue at the next settling."""
        if not peer.touched:
            peer.touched = True
            self.touched.append(peer)

    # --- effects ---

    def close(
        self,
        link: Link,
        code: int,
        why: str,
        *,
        now: float,
        ident: bytes = b"null",
        retry_after_s: float | None = None,
        before: list[bytes] | None = None,
    ) -> None:
        """Close a wire the proper way: the JSON-RPC error (400x), `bye`, the close frame. Idempotent.

        `before` are whole text frames that still go first.
        """
        if link.closing:
            return
        link.closing = True
        protocol = link.peer.protocol if link.peer is not None else link.protocol
        parts = list(before or ())
        if code >= 4000:
            parts.append(text_frame(closing_error(ident, code, protocol)))
        if code not in (1002, 1007):  # after a framing fault the wire does not work any more
            parts.append(text_frame(bye(code, protocol, why, retry_after_s)))
        frames = b"".join(parts)
        if parts and link.peer is not None and link.peer.link is link:
            link.peer.count_outside(len(parts), frames)  # the farewell counts like every text message (10-wire §8)
        self.note_closed(link, code, why, now=now)
        self.effects.append(CloseWire(link, wire_code(code, protocol), why, frames))

    def note_closed(self, link: Link, code: int | None, why: str, *, now: float) -> None:
        """Remember a closed connection for `kernel.closed`."""
        if code is not None and code in CLOSE:
            self.counts[f"closed_{code}"] += 1
        self.closed.append(
            {
                "module_id": link.peer.id if link.peer is not None else None,
                "address": link.addr,
                "code": code,
                "why": why,
                "when": self.utc(now),
                "open_s": round(now - link.opened_at, 3),
            }
        )

    def log(self, level: Any, event: str, text: str, **fields: object) -> None:
        """Ask for a log line."""
        self.effects.append(Log(level, event, text, fields))

    def log_seldom(self, level: Any, event: str, who: str, text: str, *, now: float, **fields: object) -> None:
        """Ask for a line that a peer could ask for endlessly: once a minute for each, with a count of the rest."""
        seldom = self._seldom
        row = seldom.get((event, who))
        if row is not None and now < row[0]:
            row[1] += 1
            return
        if row is not None and row[1]:
            fields["left_out"] = row[1]
        seldom.pop((event, who), None)
        seldom[event, who] = [now + _SELDOM_S, 0]
        if len(seldom) > _SELDOM_KEPT:
            del seldom[next(iter(seldom))]
        self.effects.append(Log(level, event, text, fields))

    def why_absent(self, module_id: str) -> tuple[str, str, str | None]:
        """Return reason, state and since of a module that is not here (05 §9)."""
        peer = self.peers.get(module_id)
        if peer is not None:
            return "debounce", peer.state.value, peer.since
        known = module_id in self.known_ids or module_id in self.left
        return "offline" if known else "unknown_module", "offline", iso(self.left.get(module_id))

    def note_left(self, module_id: str, since: float) -> None:
        """Remember since when a module is offline."""
        self.left.pop(module_id, None)
        self.left[module_id] = since
        if len(self.left) > _LEFT_KEPT:
            del self.left[next(iter(self.left))]

    def note_coming(self, module_id: str, *, now: float) -> None:
        """Remember that a module came; every time but the first is a reconnect."""
        known = self.comings.get(module_id)
        if known is None:
            self.comings[module_id] = Comings()
            if len(self.comings) > _LEFT_KEPT:
                self.comings.popitem(last=False)
        else:
            known.note(now)
            self.comings.move_to_end(module_id)

    # --- time ---

    def utc(self, now: float) -> float:
        """Return seconds since 1970 for a monotonic instant."""
        return now + self.utc_offset_s
