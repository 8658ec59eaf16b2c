"""Calls from module to module: who answers, until when, and what everybody gets when something breaks.

Laws:
- Every call ends exactly once: an answer, or one error of the kernel with `reason` and `outcome`.
- Params, results and errors pass as bytes; ids are the caller's own text towards it, the kernel's towards the callee.
- Only the module that was asked may answer, progress or be cancelled under a kernel id.

Source: spec 10-wire §6, 00 §18-21, 05-surface §9, cases W-11 to W-25.
"""

from __future__ import annotations

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
    MAX_ID_BYTES,
)
from kite_kernel.core.meta import PLAIN, Meta, decode_meta, meta_member
from kite_kernel.core.near import nearest
from kite_kernel.core.once import Once
from kite_kernel.core.peer import ASKED_MAX, Call
from kite_kernel.core.pending import Pending
from kite_kernel.core.registry import State
from kite_kernel.core.services import Services
from kite_kernel.core.text import error
from kite_kernel.core.websocket import text_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.board import Board
    from kite_kernel.core.frame import Envelope
    from kite_kernel.core.peer import Method, Peer

    Sink = Callable[[bytes], None] | None

_MAX_RETRY_S: Final = 10.0
_MAX_TIMEOUT_S: Final = 86_400.0  # a longer wish is cut to a day: every wait has a bound


class _ErrorMember(msgspec.Struct, gc=False):
    """The least that a callee's error must have."""

    code: int
    message: str = ""


_check_error: Final = msgspec.json.Decoder(_ErrorMember).decode


class Calls:
    """Routes calls and ends them. `pending` is the table, `services` the shared names, `once` the idempotency keys."""

    __slots__ = ("_board", "_next_kid", "once", "pending", "services")

    def __init__(self, board: Board) -> None:
        self._board = board
        self._next_kid = 0
        self.pending = Pending()
        self.services = Services()
        self.once = Once()

    # --- the way there ---

    def request(self, caller: Peer, frame: Envelope, *, now: float, sink: Sink = None) -> None:
        """Route a request or a notification `target.method`; every refusal is answered at once."""
        method: str = frame.method  # type: ignore[assignment]
        ident = bytes(frame.id)
        meta = PLAIN
        if frame.meta:
            try:
                meta = decode_meta(frame.meta)
            except msgspec.DecodeError:
                self._refuse(caller, ident, sink, E_INVALID_PARAMS, "invalid_params", field="meta")
                return
            if meta.key is not None and len(meta.key) > MAX_ID_BYTES:
                self._refuse(caller, ident, sink, E_INVALID_PARAMS, "invalid_params", field="meta")
                return
        if ident and ident in caller.calls:
            self._refuse(caller, ident, sink, E_INVALID_REQUEST, "duplicate_id")
            return
        if meta.key is not None and self._was_asked(caller, ident, sink, method, meta.key, now):
            return
        target, _, name = method.partition(".")
        if caller.permissions is not None and not caller.permissions.may_call(method):
            self._refuse(caller, ident, sink, E_FORBIDDEN, "no_permission", method=method)
            return
        board = self._board
        callee = board.peers.get(target) or self.services.pick(target, name)
        if (
            callee is None
            or callee.state is not State.READY
            or (not meta.wait and (callee.link is None or callee.link.closing))
        ):
            self._refuse_offline(caller, ident, sink, target, callee)
            return
        known = callee.methods.get(name)
        if known is None:
            near = [f"{callee.id}.{other}" for other in nearest(name, callee.methods)]
            self._refuse(caller, ident, sink, E_METHOD_NOT_FOUND, "unknown_method", module_id=callee.id, nearest=near)
            return
        limit = board.settings.max_in_flight
        if callee.working >= limit or len(caller.calls) >= limit:
            caller.overloads += 1
            self._refuse(caller, ident, sink, E_OVERLOADED, "too_many_in_flight", retry_after=self.retry_after())
            return
        board.last_call_at = now
        if not ident:
            self._forward_note(caller, callee, known, frame, meta, now)
            return
        self._next_kid += 1
        call = Call(b"%d" % self._next_kid, caller, ident, callee, method, now)
        if sink is not None:
            call.sink = sink
        if meta is not PLAIN:
            self._heed(call, meta, now)
        else:
            call.deadline_at = now + board.settings.timing.call
        self._hand_out(call, known, frame, meta)

    def _heed(self, call: Call, meta: Meta, now: float) -> None:
        """Take over what the caller wished for one call."""
        if meta.timeout is None:
            call.deadline_at = now + self._board.settings.timing.call
        else:
            call.deadline_at = now + min(max(meta.timeout, 0.0), _MAX_TIMEOUT_S)
            call.usual = False
        if meta.key is not None:
            call.key = (call.caller.id, call.method, meta.key)
            self.once.begin(call.key, now=now)

    def _hand_out(self, call: Call, known: Method, frame: Envelope, meta: Meta) -> None:
        """Enter a call and queue it for its callee, or hold it while that is in debounce."""
        callee = call.callee
        end = meta_member(call.caller.id, meta, self._board.utc(call.deadline_at)) if callee.accepts_meta else b"}"
        if frame.params:
            body = b"".join((b'{"jsonrpc":"2.0","id":', call.kid, known.head, frame.params, end))
        else:
            body = b"".join((b'{"jsonrpc":"2.0","id":', call.kid, known.bare, end))
        self.pending.add(call)
        call.caller.calls[call.caller_id] = call
        callee.working += 1
        asked = call.caller.asked
        if callee.id in asked or len(asked) < ASKED_MAX:
            asked[callee.id] = asked.get(callee.id, 0) + 1
        whole = text_header(len(body)) + body
        if callee.link is None or callee.link.closing:
            call.frame = whole
            callee.laned = True
            callee.out.append(call)
        else:
            callee.out.append(whole)
        if not callee.touched:
            callee.touched = True
            self._board.touched.append(callee)

    def _forward_note(self, caller: Peer, callee: Peer, known: Method, frame: Envelope, meta: Meta, now: float) -> None:
        """Pass a notification on; with a key it counts once, as a call does."""
        if meta.key is not None:
            key = (caller.id, frame.method or "", meta.key)
            self.once.begin(key, now=now)
            self.once.settle(key, b'"result":null}')
        end = meta_member(caller.id, meta, None) if callee.accepts_meta else b"}"
        if callee.link is not None or callee.resumable:
            params = (known.head, frame.params) if frame.params else (known.bare,)
            self._board.send(callee, b"".join((b'{"jsonrpc":"2.0"', *params, end)))

    def _was_asked(self, caller: Peer, ident: bytes, sink: Sink, method: str, key: str, now: float) -> bool:
        """Answer a repeated key from what is known, or let it wait for the first one's answer."""
        entry = self.once.find((caller.id, method, key), now=now)
        if entry is None:
            return False
        if not ident:
            return True
        if entry.tail is not None:
            self._answer(caller, ident, sink, b'{"jsonrpc":"2.0","id":' + ident + b"," + entry.tail)
            return True
        waiter = Call(b"", caller, ident, caller, method, now)
        waiter.sink = sink
        entry.waiters.append(waiter)
        caller.calls[ident] = waiter
        return True

    # --- refusals ---

    def _answer(self, caller: Peer, ident: bytes, sink: Sink, body: bytes) -> None:
        if sink is not None:
            sink(body)
        elif ident and not caller.gone:
            self._board.send(caller, body)

    def _refuse(self, caller: Peer, ident: bytes, sink: Sink, code: int, reason: str, **data: Any) -> None:
        self._board.counts[f"refused_{reason}"] += 1
        if ident:
            self._answer(caller, ident, sink, error(ident, code, reason, **data))

    def _refuse_offline(self, caller: Peer, ident: bytes, sink: Sink, target: str, callee: Peer | None) -> None:
        if callee is None:
            reason, state, since = self._board.why_absent(target)
        else:
            state, since = callee.state.value, callee.since
            reason = "debounce" if callee.state is State.READY else "not_ready"
        self._refuse(caller, ident, sink, E_OFFLINE, reason, module_id=target, state=state, since=since)

    def retry_after(self) -> float:
        """Seconds after which an overloaded module is worth another try; grows with the hub's own load."""
        load = len(self.pending.calls) / 20_000 + 5 * self._board.lag_s
        return round(0.1 + min(_MAX_RETRY_S, load), 3)

    # --- the way back ---

    def answer(self, callee: Peer, frame: Envelope) -> bool:
        """Take an answer. Returns: False where it belongs to no call in this module's hands (dropped, counted)."""
        kid = bytes(frame.id)
        calls = self.pending.calls
        call = calls.get(kid)
        if call is None or call.callee is not callee or call.frame is not None:
            self._board.counts["dropped_answers"] += 1
            return False
        del calls[kid]
        callee.working -= 1
        caller = call.caller
        caller.calls.pop(call.caller_id, None)
        ident = call.caller_id
        if frame.result and not frame.error:
            body = b"".join((b'{"jsonrpc":"2.0","id":', ident, b',"result":', frame.result, b"}"))
        elif frame.error and not frame.result and _is_error(frame.error):
            body = b"".join((b'{"jsonrpc":"2.0","id":', ident, b',"error":', frame.error, b"}"))
        else:
            body = error(ident, E_INTERNAL_ERROR, "bad_answer", "unknown", module_id=callee.id)
        if call.sink is not None:
            call.sink(body)
        else:
            if not caller.touched:
                caller.touched = True
                self._board.touched.append(caller)
            caller.out.append(text_header(len(body)) + body)
        if call.key is not None:
            self._settle_key(call, body)
        return True

    def bad_answer(self, callee: Peer, kid: bytes) -> bool:
        """A frame that is no JSON may still name the call that it answers: its caller gets -32603."""
        call = self.pending.calls.get(kid)
        if call is None or call.callee is not callee or call.frame is not None:
            return False
        self._end(call, E_INTERNAL_ERROR, "bad_answer", "unknown", module_id=callee.id)
        return True

    def progress(self, callee: Peer, kid: bytes, value: bytes) -> bool:
        """Pass `$/progress` on to the one caller, under its own id. Returns: False where it was dropped."""
        call = self.pending.calls.get(kid)
        if call is None or call.callee is not callee or call.frame is not None:
            self._board.counts["dropped_progress"] += 1
            return False
        body = b'{"jsonrpc":"2.0","method":"$/progress","params":{"id":' + call.caller_id + b',"value":' + value + b"}}"
        self._board.send(call.caller, body)
        return True

    def credit(self, caller: Peer, ident: bytes, count: int) -> None:
        """Take `$/credit`: the caller has room for more progress; the callee is told under its own id."""
        call = caller.calls.get(ident)
        if call is None or not call.kid or count <= 0 or call.frame is not None:
            self._board.counts["dropped_asides"] += 1
            return
        body = b'{"jsonrpc":"2.0","method":"$/credit","params":{"id":%b,"n":%d}}' % (call.kid, count)
        self._board.send(call.callee, body)

    # --- ends ---

    def _end(self, call: Call, code: int, reason: str, outcome: str, **data: Any) -> None:
        """End a call with an error of the kernel's own. Idempotent by the table."""
        if self.pending.calls.pop(call.kid, None) is None:
            return
        self._let_go(call)
        body = error(call.caller_id, code, reason, outcome, **data)
        self._board.counts[f"ended_{reason}"] += 1
        self._answer(call.caller, call.caller_id, call.sink, body)
        if call.key is not None:
            self._settle_key(call, body, keep=outcome != "not_sent")

    def _let_go(self, call: Call) -> None:
        """Take a call that left the table out of both modules' hands."""
        call.callee.working -= 1
        call.caller.calls.pop(call.caller_id, None)
        if call.frame is not None:
            call.void = True
            call.frame = None

    def _settle_key(self, call: Call, body: bytes, *, keep: bool = True) -> None:
        """Remember how a keyed call ended, and give the same answer to those who asked it again meanwhile."""
        key = call.key
        if key is None:
            return
        tail = body[len(b'{"jsonrpc":"2.0","id":,') + len(call.caller_id) :]
        for waiter in self.once.settle(key, tail) if keep else self.once.forget(key):
            if waiter.caller.calls.get(waiter.caller_id) is waiter:
                del waiter.caller.calls[waiter.caller_id]
                whole = b'{"jsonrpc":"2.0","id":' + waiter.caller_id + b"," + tail
                self._answer(waiter.caller, waiter.caller_id, waiter.sink, whole)

    def _tell_cancelled(self, call: Call) -> None:
        """Tell the callee that nobody waits any more, if it knows of the call at all."""
        if call.kid and call.frame is None and not call.callee.gone:
            body = b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":' + call.kid + b"}}"
            self._board.send(call.callee, body)

    def cancel(self, caller: Peer, ident: bytes) -> None:
        """Take a caller's `$/cancelRequest`; of an unknown or finished id it changes nothing."""
        call = caller.calls.get(ident)
        if call is None:
            return
        if not call.kid:
            del caller.calls[ident]
            self._answer(caller, ident, call.sink, error(ident, E_CANCELLED, "cancelled", "unknown"))
            return
        held = call.frame is not None
        self._tell_cancelled(call)
        self._end(call, E_CANCELLED, "cancelled", "not_sent" if held else "unknown")

    def on_time(self, now: float) -> None:
        """End the calls whose deadline is over."""
        for call in self.pending.take_due(now):
            held = call.frame is not None
            self._tell_cancelled(call)
            self._end(call, E_DEADLINE, "deadline", "not_sent" if held else "unknown", module_id=call.callee.id)

    def drop_caller(self, caller: Peer) -> None:
        """A caller is gone: its calls are cancelled where they are worked on, its late answers dropped."""
        for call in list(caller.calls.values()):
            self._tell_cancelled(call)
            if call.kid and self.pending.calls.pop(call.kid, None) is not None:
                self._let_go(call)
            if call.key is not None:
                self.once.forget(call.key)
        caller.calls.clear()

    def fail_in_hand(self, callee: Peer, reason: str) -> None:
        """A callee's process is gone: what it had in its hands has an unknown outcome."""
        for call in self.pending.in_hands_of(callee):
            self._end(call, E_CONNECTION_LOST, reason, "unknown", module_id=callee.id)

    def fail_held(self, callee: Peer) -> None:
        """A callee turned offline (or lost its registration): held calls were never sent."""
        state = callee.state
        reason = "offline" if state is State.OFFLINE else "not_ready"
        told = {"module_id": callee.id, "state": state.value, "since": callee.since}
        for call in self.pending.held_for(callee):
            self._end(call, E_OFFLINE, reason, "not_sent", **told)


def _is_error(member: msgspec.Raw) -> bool:
    """Tell whether a callee's error has the least that JSON-RPC asks for."""
    try:
        _check_error(member)
    except msgspec.DecodeError:
        return False
    return True
