"""The composed decision: one event goes to the rooms, frames and effects come out. Owns no timer, no socket, no task.

The edge calls, never waits in between, and afterwards flushes `touched` and carries out `effects`:
`on_open`, `on_text`, `on_fault`, `on_cut`, `on_time`, `on_stall`, `on_away`, `on_launcher_lost`, `on_tokens`, `stop`.
`now` is monotonic seconds everywhere. Source: spec 00 §8a, 10-wire, 20-kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kite_kernel._contract import (
    CLOSE_NORMAL,
    E_FORBIDDEN,
    E_INVALID_REQUEST,
    E_METHOD_NOT_FOUND,
    E_PARSE_ERROR,
    METHODS,
)
from kite_kernel.core.asking import Ask, Later, Refused, answer_text, read_params
from kite_kernel.core.batch import Batch
from kite_kernel.core.board import Board
from kite_kernel.core.calls import Calls
from kite_kernel.core.events import Events
from kite_kernel.core.frame import BadFrame, Envelope, is_batch, parse, split_batch, spot_id
from kite_kernel.core.gate import Gate
from kite_kernel.core.liveness import Liveness
from kite_kernel.core.members import Members
from kite_kernel.core.near import nearest
from kite_kernel.core.queues import Queues
from kite_kernel.core.speech import Speech
from kite_kernel.core.text import error, result

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.asking import Handler
    from kite_kernel.core.auth import Tokens
    from kite_kernel.core.peer import Link, Peer
    from kite_kernel.core.permissions import Permissions
    from kite_kernel.core.settings import Settings

    Sink = Callable[[bytes], None] | None

FAMILIES: Final = frozenset(name.partition(".")[0] for name in METHODS) | {"fact", "replica", "ownership", "recovery"}
"""First segments that are the kernel's own, whatever a module is called."""
_STALL_TOLD_S: Final = 0.5  # shorter pauses of the kernel itself are a busy machine, not news
_ADMIN: Final = frozenset(name for name, row in METHODS.items() if row.access != "all")


class Hub:
    """The rooms, joined. `handlers` are the kernel's own methods, given by the composition root."""

    def __init__(
        self,
        settings: Settings,
        *,
        epoch: str,
        version: str,
        fresh_id: Callable[[], str],
        now: float,
        handlers: dict[str, Handler] | None = None,
    ) -> None:
        self.settings = settings
        self.version = version
        self.started_at = now
        self.board = Board(settings, epoch)
        self.calls = Calls(self.board)
        self.events = Events(self.board)
        self.members = Members(self.board, self.calls, self.events, fresh_id)
        self.liveness = Liveness(self.board, now=now)
        self.queues = Queues(self.board, self.calls)
        self.speech = Speech(self.board, self.events, self.members, self.liveness, self.calls.once)
        kernel = {"id": fresh_id(), "epoch": epoch, "version": version}
        self.gate = Gate(self.board, self.calls, self.members, kernel)
        self.handlers: dict[str, Handler] = handlers if handlers is not None else {}
        self.draining = False

    @property
    def tokens(self) -> Tokens:
        """The tokens that hold now."""
        return self.gate.tokens

    # --- wires ---

    def on_open(self, addr: str, wire: Any, *, now: float) -> Link:
        """A wire of the module plane is open; its first frame is due."""
        return self.gate.open(addr, wire, now=now)

    def on_cut(self, link: Link, *, code: int | None, clean: bool, why: str, now: float) -> None:
        """A wire is gone: by the peer's close frame (`clean`), by the network, or after our own close."""
        self.gate.strangers.pop(link.id, None)
        peer = link.peer
        if not link.closing:
            self.board.note_closed(link, code, why, now=now)
            self._log_cut(link, code, why, now)
        link.closing = True
        if peer is not None and peer.link is link:
            self.queues.forget(peer)
        self.members.on_cut(link, clean=clean, now=now)

    def _log_cut(self, link: Link, code: int | None, why: str, now: float) -> None:
        """Say who left by itself: a line for a module, one a minute for strangers of an address."""
        peer = link.peer
        if peer is None:
            text = "[kernel] connection ended before authentication"
            self.board.log_seldom("info", "stranger_left", link.addr, text, now=now, address=link.addr, code=code)
        elif code != CLOSE_NORMAL:  # a normal close is no news
            self.board.log("info", "disconnected", f"[kernel] {peer.id} {why}", module_id=peer.id, code=code)

    def on_fault(self, link: Link, code: int, reason: str, *, now: float) -> None:
        """The peer broke the protocol of the wire: close with 1002, 1003, 1007 or 1009."""
        who = link.peer.id if link.peer is not None else None
        text = f"[kernel] {who or 'a stranger'} broke the protocol: {reason}"
        self.board.log_seldom("warning", "fault", link.addr, text, now=now, module_id=who, code=code, address=link.addr)
        self.board.close(link, code, reason, now=now)

    def on_text(self, link: Link, payload: bytes, *, now: float) -> None:
        """Take one text message."""
        peer = link.peer
        if peer is None:
            if not link.closing:
                self.gate.first_frame(link, payload, now)
            return
        if peer.link is not link or link.closing:
            return
        peer.received += 1
        frame = parse(payload)
        if frame.__class__ is Envelope:
            method = frame.method
            if method is None:
                if not self.calls.answer(peer, frame):
                    self._stray_answer(peer, frame, now)
            elif method == "event.publish":
                self._publish(peer, frame, now, None)
            else:
                self._request(peer, frame, now, None)
        elif is_batch(payload):
            self._batch(peer, payload, now)
        else:
            self._bad(peer, payload, frame)  # type: ignore[arg-type]

    def _bad(self, peer: Peer, payload: bytes, bad: BadFrame, sink: Sink = None) -> None:
        self.board.counts["bad_frames"] += 1
        kid = spot_id(payload) if bad.code == E_PARSE_ERROR else None
        if kid is not None:
            self.calls.bad_answer(peer, kid)
        body = error(bad.id, bad.code, bad.reason, **({"limit": bad.detail} if bad.detail else {}))
        if sink is not None:
            sink(body)
        else:
            self.board.send(peer, body)

    def _log_dropped(self, peer: Peer, what: str, now: float) -> None:
        text = f"[kernel] dropped: {what} of {peer.id} for no call in its hands"
        self.board.log_seldom("warning", "dropped", f"{peer.id} {what}", text, now=now, module_id=peer.id, what=what)

    def _stray_answer(self, peer: Peer, frame: Envelope, now: float) -> None:
        self._log_dropped(peer, "answer", now)
        if not frame.result and not frame.error:
            self.board.refuse(peer, bytes(frame.id), E_INVALID_REQUEST, "not_request")

    # --- requests ---

    def _request(self, peer: Peer, frame: Envelope, now: float, sink: Sink) -> None:
        method: str = frame.method  # type: ignore[assignment]
        family = method.partition(".")[0]
        if family in FAMILIES:
            self._own(peer, frame, method, now, sink)
        elif method[:2] == "$/":
            self._aside(peer, frame, method, now, sink)
        elif method == "event":
            self._said(peer, frame, now, sink)
        elif method in self.speech.own:
            outcome = self.speech.own[method](peer, frame.params, now)
            if frame.id:
                ident = bytes(frame.id)
                self._reply(peer, ident, sink)(answer_text(ident, outcome))
        elif "." not in method:
            self._unframed(peer, frame, method, sink)
        else:
            before = self.board.last_call_at
            self.calls.request(peer, frame, now=now, sink=sink)
            if now - before > self.settings.timing.rpc_active_s:
                self.liveness.call_began(now)

    def _unframed(self, peer: Peer, frame: Envelope, method: str, sink: Sink) -> None:
        """A method without a dot: a second `auth`, or a name that nobody has."""
        ident = bytes(frame.id)
        if method == "auth":
            self._reply(peer, ident, sink)(error(ident, E_INVALID_REQUEST, "already_authenticated"))
        else:
            names = nearest(method, METHODS)
            self._reply(peer, ident, sink)(error(ident, E_METHOD_NOT_FOUND, "unknown_method", nearest=names))

    def _own(self, peer: Peer, frame: Envelope, method: str, now: float, sink: Sink) -> None:
        """Answer one of the kernel's own methods."""
        if method == "event.publish":
            self._publish(peer, frame, now, sink)
            return
        ident = bytes(frame.id)
        reply = self._reply(peer, ident, sink)
        handler = self.handlers.get(method)
        if handler is None:
            names = nearest(method, self.handlers)
            reply(error(ident, E_METHOD_NOT_FOUND, "unknown_method", nearest=names))
            return
        if now - self.board.last_call_at > self.settings.timing.rpc_active_s:
            self.liveness.call_began(now)
        self.board.last_call_at = now
        if (not peer.admin and method in _ADMIN) or not self._may_call_own(peer, method):
            reply(error(ident, E_FORBIDDEN, "no_permission", method=method))
            return
        params = read_params(method, bytes(frame.params))
        if isinstance(params, Refused):
            reply(answer_text(ident, params))
            return
        ask = Ask(peer, method, params, now, ident, bytes(frame.params), reply)
        outcome = handler(ask)
        if not isinstance(outcome, Later):
            ask.answer(outcome)
            for act in ask.after:
                act()

    @staticmethod
    def _may_call_own(peer: Peer, method: str) -> bool:
        """A call list narrows calls to modules and to the kernel's wider methods, never what every client needs."""
        if peer.permissions is None or method.startswith(("registry.", "event.", "kernel.get_", "kernel.info")):
            return True
        return peer.permissions.may_call(method)

    def _reply(self, peer: Peer, ident: bytes, sink: Sink) -> Callable[[bytes], None]:
        if sink is not None:
            return sink
        if not ident:
            return _drop
        session = peer.session

        def reply(body: bytes) -> None:
            if peer.session == session and not peer.gone:
                self.board.send(peer, body)

        return reply

    def _aside(self, peer: Peer, frame: Envelope, method: str, now: float, sink: Sink) -> None:
        """`$/cancelRequest`, `$/progress`, `$/credit`: notifications beside the calls; strange ones are dropped.

        Whoever asks one with an id is answered like any request.
        """
        ident = bytes(frame.id)
        if not self._take_aside(peer, frame, method, now):
            self.board.counts["dropped_asides"] += 1
            if ident:
                self._reply(peer, ident, sink)(error(ident, E_METHOD_NOT_FOUND, "unknown_method"))
        elif ident:
            self._reply(peer, ident, sink)(result(ident, b"null"))

    def _take_aside(self, peer: Peer, frame: Envelope, method: str, now: float) -> bool:
        """Do what an aside says. Returns: False for one that says nothing."""
        try:
            aside = _decode_aside(frame.params)
        except msgspec.DecodeError:
            return False
        if method == "$/cancelRequest":
            self.calls.cancel(peer, bytes(aside.id))
        elif method == "$/progress":
            if not self.calls.progress(peer, bytes(aside.id), bytes(aside.value) or b"null"):
                self._log_dropped(peer, "progress", now)
        elif method == "$/credit":
            self.calls.credit(peer, bytes(aside.id), aside.n)
        else:
            return False
        return True

    def _said(self, peer: Peer, frame: Envelope, now: float, sink: Sink) -> None:
        """An `event` frame from a module is taken like a publish."""
        self._publish(peer, frame, now, sink)

    def _publish(self, peer: Peer, frame: Envelope, now: float, sink: Sink) -> None:
        """`event.publish`, the hot one of the kernel's own methods."""
        ident = bytes(frame.id)
        outcome = self.speech.publish(peer, frame, now=now)
        if ident or sink is not None:
            self._reply(peer, ident, sink)(answer_text(ident, outcome))

    # --- batches ---

    def _batch(self, peer: Peer, payload: bytes, now: float) -> None:
        members = split_batch(payload)
        if isinstance(members, BadFrame):
            self._bad(peer, payload, members)
            return
        batch = Batch(self._reply(peer, b"[]", None))
        for member in members:
            frame = parse(member)
            if isinstance(frame, BadFrame):
                self._bad(peer, member, frame, batch.slot())
            elif frame.method is None:
                if self.calls.answer(peer, frame):
                    continue
                self._log_dropped(peer, "answer", now)
                if not frame.result and not frame.error:
                    batch.slot()(error(bytes(frame.id), E_INVALID_REQUEST, "not_request"))
            elif frame.id:
                self._request(peer, frame, now, batch.slot())
            else:
                self._request(peer, frame, now, None)
        batch.seal()

    # --- time ---

    def next_at(self) -> float:
        """Return when `on_time` must be called next (monotonic)."""
        return min(self.calls.pending.next_at, self.liveness.next_at(), self.queues.next_at(), self.gate.next_at())

    def on_time(self, *, now: float) -> None:
        """Do what fell due."""
        if self.calls.pending.next_at <= now:
            self.calls.on_time(now)
        if self.queues.next_at() <= now:
            self.queues.on_time(now)
        if self.liveness.next_at() <= now:
            self.liveness.on_time(now)
        if self.gate.next_at() <= now:
            self.gate.on_time(now)

    def on_stall(self, late_s: float, *, now: float) -> None:
        """The kernel itself was away for `late_s`: whatever it would judge others by begins anew."""
        text = f"[kernel] was away for {late_s:.1f}s: everybody gets a fresh period"
        self.board.log("warning" if late_s >= _STALL_TOLD_S else "debug", "stalled", text, seconds=round(late_s, 3))
        self.liveness.on_stall(now)
        self.queues.on_stall(now)
        self.gate.on_stall(now)

    def on_away(self, module_id: str, *, now: float) -> None:
        """A debounce is over."""
        self.members.on_away(module_id, now=now)

    def on_launcher_lost(self, *, now: float) -> None:
        """The launcher's grace is over."""
        self.members.on_launcher_lost(now=now)

    # --- from outside ---

    def on_tokens(self, tokens: Tokens, *, now: float) -> None:
        """Other tokens hold from now; wires whose token is gone are closed 4001."""
        self.gate.set_tokens(tokens)
        self.gate.revoke(now=now)

    def use_config(self, settings: Settings, permissions: dict[str, Permissions]) -> None:
        """Other limits and permissions hold from now; times of running clocks stay."""
        self.settings = self.board.settings = settings
        self.gate.rates.window_s = settings.timing.rate_window
        self.gate.rates.max = settings.timing.rate_max
        self.members.permissions = permissions
        for peer in self.board.peers.values():
            peer.permissions = permissions.get(peer.token) if peer.role == "module" else None
        self.board.topics.forget_audiences()

    def stop(self, reason: str, *, now: float) -> None:
        """Begin the graceful end."""
        self.draining = True
        self.members.stop(reason, now=now)


class _Aside(msgspec.Struct, gc=False):
    id: msgspec.Raw
    value: msgspec.Raw = msgspec.Raw(b"")
    n: int = 0


_decode_aside: Final = msgspec.json.Decoder(_Aside).decode


def _drop(body: bytes) -> None:
    """Notifications are never answered."""
    del body
