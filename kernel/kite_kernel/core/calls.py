"""Calls from module to module: who answers, until when, and what everybody gets when something breaks.

Laws:
- Every call ends exactly once: an answer, or one error of the kernel with `reason` and `outcome`.
- Params, results and errors pass as bytes; ids are the caller's own text towards it, the kernel's towards the callee.
- Only the module that was asked may answer, progress or be cancelled under a kernel id.

Source: spec 10-wire §6, 00 §18-21, 05-surface §9, cases W-11 to W-25.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kite_kernel._contract import (
    E_CANCELLED,
    E_CONNECTION_LOST,
    E_DEADLINE,
    E_FORBIDDEN,
    E_INTERNAL_ERROR,
    E_INVALID_PARAMS,
    E_INVALID_REQUEST,
    E_METHOD_NOT_FOUND,
    E_OFFLINE,
    E_OVERLOADED,
)
from kite_kernel.core.near import nearest
from kite_kernel.core.peer import Call
from kite_kernel.core.registry import State
from kite_kernel.core.text import encode, error
from kite_kernel.core.websocket import text_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.board import Board
    from kite_kernel.core.frame import Envelope
    from kite_kernel.core.peer import Peer

_INF: Final = float("inf")
_MAX_TIMEOUT_S: Final = 86_400.0  # a longer wish is cut to a day: every wait has a bound


class _Meta(msgspec.Struct, gc=False):
    """What a caller may say beside `params`."""

    timeout: float | None = None
    wait: bool = True
    key: str | None = None
    credit: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class _ErrorMember(msgspec.Struct, gc=False):
    """The least that a callee's error must have."""

    code: int
    message: str = ""


_decode_meta: Final = msgspec.json.Decoder(_Meta).decode
_check_error: Final = msgspec.json.Decoder(_ErrorMember).decode
_PLAIN: Final = _Meta()


class Calls:
    """The table of calls in flight. `next_at` is when the next deadline may fall due (monotonic; inf: none)."""

    __slots__ = ("_board", "_heap", "_next_kid", "_services", "next_at", "pending")

    def __init__(self, board: Board) -> None:
        self._board = board
        self.pending: dict[bytes, Call] = {}
        self._heap: list[tuple[float, int, Call]] = []
        self._next_kid = 0
        self._services: dict[str, dict[str, Peer]] = {}
        self.next_at = _INF

    # --- the way there ---

    def request(
        self, caller: Peer, frame: Envelope, *, now: float, sink: Callable[[bytes], None] | None = None
    ) -> None:
        """Route a request or a notification `target.method`; every refusal is answered at once."""
        board = self._board
        method: str = frame.method  # type: ignore[assignment]
        ident = bytes(frame.id)
        meta = _PLAIN
        if frame.meta:
            try:
                meta = _decode_meta(frame.meta)
            except msgspec.DecodeError:
                self._answer(caller, ident, sink, error(ident, E_INVALID_PARAMS, "invalid_params", field="meta"))
                return
        target, _, name = method.partition(".")
        if caller.permissions is not None and not caller.permissions.may_call(method):
            self._refuse(caller, ident, sink, E_FORBIDDEN, "no_permission", method=method)
            return
        callee = board.peers.get(target)
        if callee is None:
            members = self._services.get(target)
            callee = self._pick(members) if members else None
        if callee is None or callee.state is not State.READY or (callee.link is None and not meta.wait):
            self._refuse_offline(caller, ident, sink, target, callee)
            return
        known = callee.methods.get(name)
        if known is None:
            self._refuse_unknown(caller, ident, sink, callee, name)
            return
        if ident and ident in caller.calls:
            self._refuse(caller, ident, sink, E_INVALID_REQUEST, "duplicate_id")
            return
        limit = board.settings.max_in_flight
        if callee.working >= limit or len(caller.calls) >= limit:
            self._refuse(caller, ident, sink, E_OVERLOADED, "too_many_in_flight", retry_after=self._retry_after())
            return
        board.last_call_at = now
        if not ident:
            extra = self._meta_member(caller, callee, meta, 0.0)
            body = (
                b"".join((b'{"jsonrpc":"2.0"', known.head, frame.params, extra))
                if frame.params
                else b"".join((b'{"jsonrpc":"2.0"', known.bare, extra))
            )
            if callee.link is not None or callee.resumable:
                board.send(callee, body)
            return
        self._next_kid += 1
        kid = b"%d" % self._next_kid
        call = Call(kid, caller, ident, callee, method, now)
        if sink is not None:
            call.sink = sink
        if meta is _PLAIN or meta.timeout is None:
            call.deadline_at = deadline_at = now + board.settings.timing.call
        else:
            call.deadline_at = deadline_at = now + min(max(meta.timeout, 0.0), _MAX_TIMEOUT_S)
            call.usual = False
            heappush(self._heap, (deadline_at, self._next_kid, call))
        if deadline_at < self.next_at:
            self.next_at = deadline_at
        call.credit = meta.credit
        extra = self._meta_member(caller, callee, meta, deadline_at)
        if frame.params:
            body = b"".join((b'{"jsonrpc":"2.0","id":', kid, known.head, frame.params, extra))
        else:
            body = b"".join((b'{"jsonrpc":"2.0","id":', kid, known.bare, extra))
        self.pending[kid] = call
        caller.calls[ident] = call
        callee.working += 1
        whole = text_header(len(body)) + body
        out = callee.out
        if callee.link is None:
            call.frame = whole
            callee.laned = True
            out.append(call)
            board.touch(callee)
            return
        if not callee.touched:
            callee.touched = True
            board.touched.append(callee)
        out.append(whole)

    def _meta_member(self, caller: Peer, callee: Peer, meta: _Meta, deadline_at: float) -> bytes:
        """Make the end of the forwarded frame: `meta` for those who asked for it, and the brace."""
        if not callee.accepts_meta:
            return b"}"
        told: dict[str, Any] = {"caller": caller.id}
        if deadline_at:
            told["deadline"] = round(self._board.utc(deadline_at), 6)
        if meta.traceparent is not None:
            told["traceparent"] = meta.traceparent
        if meta.tracestate is not None:
            told["tracestate"] = meta.tracestate
        if meta.credit is not None:
            told["credit"] = meta.credit
        return b',"meta":' + encode(told) + b"}"

    def _pick(self, members: dict[str, Peer]) -> Peer | None:
        """Choose the ready member with the fewest calls in flight; else any, to say why not."""
        best: Peer | None = None
        for peer in members.values():
            if peer.state is State.READY and peer.link is not None and (best is None or peer.working < best.working):
                best = peer
        return best or next(iter(members.values()), None)

    # --- refusals ---

    def _answer(self, caller: Peer, ident: bytes, sink: Callable[[bytes], None] | None, body: bytes) -> None:
        if sink is not None:
            sink(body)
        elif ident:
            self._board.send(caller, body)

    def _refuse(
        self, caller: Peer, ident: bytes, sink: Callable[[bytes], None] | None, code: int, reason: str, **data: Any
    ) -> None:
        self._board.counts[f"refused_{reason}"] += 1
        if ident:
            self._answer(caller, ident, sink, error(ident, code, reason, **data))

    def _refuse_offline(
        self, caller: Peer, ident: bytes, sink: Callable[[bytes], None] | None, target: str, callee: Peer | None
    ) -> None:
        if callee is None:
            reason, state, since = "unknown_module", "offline", None
        else:
            state, since = callee.state.value, callee.since
            reason = "debounce" if callee.state is State.READY else "not_ready"
        self._refuse(caller, ident, sink, E_OFFLINE, reason, module_id=target, state=state, since=since)

    def _refuse_unknown(
        self, caller: Peer, ident: bytes, sink: Callable[[bytes], None] | None, callee: Peer, name: str
    ) -> None:
        names = nearest(name, callee.methods)
        self._refuse(
            caller,
            ident,
            sink,
            E_METHOD_NOT_FOUND,
            "unknown_method",
            module_id=callee.id,
            near=[f"{callee.id}.{known}" for known in names],
        )

    def _retry_after(self) -> float:
        """Seconds after which an overloaded module is worth another try; grows with the hub's own load."""
        return round(0.1 + min(5.0, len(self.pending) / 20_000), 3)

    # --- the way back ---

    def answer(self, callee: Peer, frame: Envelope) -> bool:
        """Take an answer. Returns: False where it belongs to no call in this module's hands (dropped, counted)."""
        kid = bytes(frame.id)
        call = self.pending.get(kid)
        if call is None or call.callee is not callee or call.frame is not None:
            self._board.counts["dropped_answers"] += 1
            return False
        del self.pending[kid]
        callee.working -= 1
        caller = call.caller
        caller.calls.pop(call.caller_id, None)
        if frame.result and not frame.error:
            body = b"".join((b'{"jsonrpc":"2.0","id":', call.caller_id, b',"result":', frame.result, b"}"))
        elif frame.error and not frame.result and self._is_error(frame.error):
            body = b"".join((b'{"jsonrpc":"2.0","id":', call.caller_id, b',"error":', frame.error, b"}"))
        else:
            body = error(call.caller_id, E_INTERNAL_ERROR, "bad_answer", "unknown", module_id=callee.id)
        if call.sink is None:
            if not caller.touched:
                caller.touched = True
                self._board.touched.append(caller)
            caller.out.append(text_header(len(body)) + body)
        else:
            call.sink(body)
        return True

    @staticmethod
    def _is_error(member: msgspec.Raw) -> bool:
        try:
            _check_error(member)
        except msgspec.DecodeError:
            return False
        return True

    def bad_answer(self, callee: Peer, kid: bytes) -> bool:
        """A frame that is no JSON may still name the call that it answers: its caller gets -32603."""
        call = self.pending.get(kid)
        if call is None or call.callee is not callee or call.frame is not None:
            return False
        self._end(call, E_INTERNAL_ERROR, "bad_answer", "unknown", module_id=callee.id)
        return True

    def credit(self, caller: Peer, ident: bytes, count: int) -> None:
        """Take `$/credit`: the caller makes room for more progress; the callee is told under its own id."""
        call = caller.calls.get(ident)
        if call is None or count <= 0:
            self._board.counts["dropped_asides"] += 1
            return
        if call.credit is not None:
            call.credit += count
        if call.frame is None:
            body = b'{"jsonrpc":"2.0","method":"$/credit","params":{"id":%b,"n":%d}}' % (call.kid, count)
            self._board.send(call.callee, body)

    def progress(self, callee: Peer, kid: bytes, value: bytes) -> None:
        """Pass `$/progress` on to the one caller, under its own id."""
        call = self.pending.get(kid)
        if call is None or call.callee is not callee or call.frame is not None:
            self._board.counts["dropped_progress"] += 1
            return
        body = b'{"jsonrpc":"2.0","method":"$/progress","params":{"id":' + call.caller_id + b',"value":' + value + b"}}"
        self._board.send(call.caller, body)

    # --- ends ---

    def _end(self, call: Call, code: int, reason: str, outcome: str, **data: Any) -> None:
        """End a call with an error of the kernel's own. Idempotent by the table."""
        if self.pending.pop(call.kid, None) is None:
            return
        call.callee.working -= 1
        call.caller.calls.pop(call.caller_id, None)
        if call.frame is not None:
            call.void = True
            call.frame = None
        if call.caller.gone:
            return
        self._board.counts[f"ended_{reason}"] += 1
        self._answer(call.caller, call.caller_id, call.sink, error(call.caller_id, code, reason, outcome, **data))

    def _tell_cancelled(self, call: Call) -> None:
        """Tell the callee that nobody waits any more, if it knows of the call at all."""
        if call.frame is None and not call.callee.gone:
            body = b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":' + call.kid + b"}}"
            self._board.send(call.callee, body)

    def cancel(self, caller: Peer, ident: bytes) -> None:
        """Take a caller's `$/cancelRequest`; of an unknown or finished id it changes nothing."""
        call = caller.calls.get(ident)
        if call is not None:
            held = call.frame is not None
            self._tell_cancelled(call)
            self._end(call, E_CANCELLED, "cancelled", "not_sent" if held else "unknown")

    def on_time(self, now: float) -> None:
        """End the calls whose deadline is over."""
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].kid not in self.pending):
            call = heappop(heap)[2]
            if call.kid in self.pending:
                self._expire(call)
        due: list[Call] = []
        next_usual = _INF
        for call in self.pending.values():
            if call.usual:
                if call.deadline_at > now:
                    next_usual = call.deadline_at
                    break
                due.append(call)
        for call in due:
            self._expire(call)
        self.next_at = min(next_usual, heap[0][0] if heap else _INF)

    def _expire(self, call: Call) -> None:
        held = call.frame is not None
        self._tell_cancelled(call)
        self._end(call, E_DEADLINE, "deadline", "not_sent" if held else "unknown", module_id=call.callee.id)

    def drop_caller(self, caller: Peer) -> None:
        """A caller is gone: its calls are cancelled where they are worked on, its late answers dropped."""
        for call in list(caller.calls.values()):
            self._tell_cancelled(call)
            if self.pending.pop(call.kid, None) is not None:
                call.callee.working -= 1
                call.void = call.frame is not None
                call.frame = None
        caller.calls.clear()

    def fail_in_hand(self, callee: Peer, reason: str) -> None:
        """A callee's process is gone: what it had in its hands has an unknown outcome."""
        for call in [c for c in self.pending.values() if c.callee is callee and c.frame is None]:
            self._end(call, E_CONNECTION_LOST, reason, "unknown", module_id=callee.id)

    def fail_held(self, callee: Peer) -> None:
        """A callee turned offline (or lost its registration): held calls were never sent."""
        for call in [c for c in self.pending.values() if c.callee is callee and c.frame is not None]:
            self._end(
                call,
                E_OFFLINE,
                "offline",
                "not_sent",
                module_id=callee.id,
                state=callee.state.value,
                since=callee.since,
            )

    # --- services ---

    def join_service(self, peer: Peer, service: str) -> None:
        """Enter a member of a shared name."""
        self._services.setdefault(service, {})[peer.id] = peer

    def leave_service(self, peer: Peer) -> None:
        """Take a member out."""
        if peer.service is not None:
            members = self._services.get(peer.service, {})
            members.pop(peer.id, None)
            if not members:
                self._services.pop(peer.service, None)
            peer.service = None

    def is_service(self, name: str) -> bool:
        """Tell whether a shared name is in use."""
        return name in self._services
