"""What an open browser asks for: each request judged by the user's present role, told to the audit trail, then done.

Source: spec 80 §1, 05 §9 (Relay), cases X-29, X-31 … X-34.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import trio

from kite_modules import _contract
from kite_modules.relay import frames, local, roles
from kite_modules.relay.fanout import Ear
from kite_modules.sdk import CallError

if TYPE_CHECKING:
    from kite_modules.relay.accounts import User
    from kite_modules.relay.frames import Answered, Bad, Request
    from kite_modules.relay.house import House
    from kite_modules.relay.wire import Wire

IN_FLIGHT_MAX: Final = 32  # of one browser
TIMEOUT_MAX_S: Final = 3600.0
KEY_MAX: Final = 128
RENEW_S: Final = 60.0  # a session that is used is renewed this often
HASTE_PAUSE_S: Final = 0.02  # whoever asks too fast is read more slowly, too
HASTE_MAX: Final = 250  # refusals without a calm second between them, about 5 s of them: then the wire is cut
_FORBIDDEN: Final = _contract.E_FORBIDDEN
Reply = Callable[[str], None]


class Desk:
    """One open browser."""

    def __init__(self, house: House, wire: Wire, user: User, session: str, address: str, nursery: trio.Nursery) -> None:
        self.house = house
        self.wire = wire
        self.user = user
        self.session = session
        self.address = address
        self.nursery = nursery
        self.ear = Ear(wire)
        self.tails: dict[int, trio.CancelScope] = {}
        self._calls: dict[str, trio.CancelScope] = {}
        self._renewed_at = trio.current_time()
        self._haste, self._hasty_at = 0, float("-inf")
        house.fanout.add(self.ear)

    def leave(self) -> None:
        """Forget it everywhere."""
        self.house.fanout.remove(self.ear)
        self.house.screen.leave(self.wire)

    async def take(self, read: Request | Bad | Answered | list[Request | Bad | Answered]) -> None:
        """Take one message."""
        if not isinstance(read, list):
            await self._one(read, self.wire.send)
            return
        batch = Batch(self.wire, sum(not isinstance(one, frames.Answered) and one.id is not None for one in read))
        for one in read:
            await self._one(one, batch.add)

    async def _one(self, one: Request | Bad | Answered, reply: Reply) -> None:
        if isinstance(one, frames.Answered):
            return
        if isinstance(one, frames.Bad):
            reply(frames.refusal(one.id, one.code, one.reason))
            return
        user = self.house.accounts.find(self.user.name)
        if user is None:
            self.wire.close(_contract.CLOSE_AUTH_FAILED, "this user was removed")
            return
        self.user = user
        if self._is_of_the_wire(one):
            return
        refusal = self._judge(one, user)
        reason = "" if refusal is None else refusal[1]
        self.house.audit(user, one.method, "refused" if refusal else "allowed", self.address, reason=reason)
        if refusal is not None:
            if one.id is not None:
                code, why, more = refusal
                reply(frames.refusal(one.id, code, why, **more))
            if reason == "rate":
                await self._slow_down()
            return
        self._renew()
        scope = trio.CancelScope()
        if one.id is not None:
            self._calls[one.id] = scope
        self.house.in_flight += 1
        self.nursery.start_soon(self._answer, one, user, scope, reply)

    async def _slow_down(self) -> None:
        """Read this browser more slowly, and cut it when it does not stop."""
        now = trio.current_time()
        self._haste = self._haste + 1 if now - self._hasty_at < 1.0 else 1
        self._hasty_at = now
        if self._haste >= HASTE_MAX:
            self.house.note("a browser asked too fast for too long", self.address, user=self.user.name)
            self.wire.close(_contract.CLOSE_QUEUE_PRESSURE, "too many requests for too long")
        await trio.sleep(HASTE_PAUSE_S)

    def _is_of_the_wire(self, one: Request) -> bool:
        """Handle what belongs to this wire alone and is never sent on."""
        if one.id is not None:
            return False
        if one.method == "$/cancelRequest":
            params = one.value()
            number = params.get("id") if isinstance(params, dict) else None
            scope = self._calls.get(frames.encode(number))
            if scope is not None:
                scope.cancel()
            return True
        if one.method == "event.publish":  # pongs, acknowledgements, what a client says of itself
            params = one.value()
            name = params.get("event") if isinstance(params, dict) else None
            return isinstance(name, str) and name.partition(".")[0] in ("system", "module")
        return one.method.startswith("$/")

    def _judge(self, one: Request, user: User) -> tuple[int, str, dict[str, Any]] | None:
        """Return why a request is refused: code, reason, more; None = it may run."""
        wait_s = self.house.allow(user.name)
        if wait_s is not None:
            return _contract.E_OVERLOADED, "rate", {"retry_after": round(wait_s, 3)}
        if one.method == "auth":
            return _contract.E_METHOD_NOT_FOUND, "unknown_method", {}
        if one.method.startswith("login"):
            return _contract.E_INVALID_REQUEST, "already_authenticated", {}
        if not roles.may_call(user.role, one.method):
            return _FORBIDDEN, "no_permission", {}
        if one.method == "event.publish":
            params = one.value()
            name = params.get("event") if isinstance(params, dict) else params[0] if params else None
            if isinstance(name, str) and not roles.may_publish(name):
                return _FORBIDDEN, "reserved_event", {}
        if one.id in self._calls:
            return _contract.E_INVALID_REQUEST, "duplicate_id", {}
        if len(self._calls) >= IN_FLIGHT_MAX or self.house.in_flight >= self.house.in_flight_max:
            return _contract.E_OVERLOADED, "too_many_in_flight", {"retry_after": 1.0}
        return None

    def _renew(self) -> None:
        """A session that is used goes on."""
        options, now = self.house.options, trio.current_time()
        if now - self._renewed_at >= min(RENEW_S, options.session_idle / 4):
            self._renewed_at = now
            self.house.accounts.use_session(self.session, idle_s=options.session_idle, max_s=options.session_max)

    # ---------------------------------------------------------------- doing it

    async def _answer(self, one: Request, user: User, scope: trio.CancelScope, reply: Reply) -> None:
        try:
            with scope:
                text = await self._run(one, user)
            if scope.cancelled_caught:
                text = frames.error(
                    one.id or "null",
                    _contract.E_CANCELLED,
                    _contract.ERROR_TEXT[_contract.E_CANCELLED],
                    {"reason": "cancelled", "outcome": "unknown"},
                )
            if one.id is not None:
                reply(text)
        finally:
            self.house.in_flight -= 1
            if one.id is not None:
                self._calls.pop(one.id, None)

    async def _run(self, one: Request, user: User) -> str:
        rpc_id = one.id or "null"
        execute = local.METHODS.get(one.method)
        try:
            if execute is not None:
                return frames.result(rpc_id, await execute(self, user, one.value()))
            if one.method.startswith("relay."):
                return frames.refusal(rpc_id, _contract.E_METHOD_NOT_FOUND, "unknown_method")
            return frames.result(rpc_id, await self._forward(one, user))
        except local.WrongParamsError as wrong:
            return frames.refusal(rpc_id, _contract.E_INVALID_PARAMS, "invalid_params", field=wrong.field)
        except CallError as error:
            return frames.error(rpc_id, error.code, error.message, error.data)
        except Exception as error:
            self.house.note("a request ended by a fault", self.address, method=one.method, fault=type(error).__name__)
            return frames.error(rpc_id, _contract.E_INTERNAL_ERROR, "a fault of the relay's own", {"reason": "bug"})

    async def _forward(self, one: Request, user: User) -> msgspec.Raw:
        """Call it over the relay's own connection; the callee reads in `meta.tracestate` who really asks."""
        meta = one.meta
        timeout_s, key, wait = meta.get("timeout"), meta.get("key"), meta.get("wait", True)
        if timeout_s is not None and (type(timeout_s) not in (int, float) or not 0 < timeout_s <= TIMEOUT_MAX_S):
            raise local.WrongParamsError("meta.timeout")
        if (key is not None and (not isinstance(key, str) or len(key) > KEY_MAX)) or not isinstance(wait, bool):
            raise local.WrongParamsError("meta")
        told: dict[str, Any] = {
            "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
            "tracestate": f"kite=user:{quote(user.name)};role:{user.role}",
        }
        found: msgspec.Raw = await self.house.kite.call(
            one.method,
            msgspec.Raw(one.params.encode("utf-8")),
            timeout=timeout_s,
            key=None if key is None else f"{quote(user.name)}/{key}",  # nobody meets another's keys
            wait=wait,
            on_progress=self._progress_of(one),
            result=msgspec.Raw,
            meta=told,
        )
        return found

    def _progress_of(self, one: Request) -> Callable[[Any], None] | None:
        if one.id is None:
            return None
        number = msgspec.Raw(one.id.encode("utf-8"))

        def progress(value: Any) -> None:
            self.wire.send(frames.notice("$/progress", {"id": number, "value": value}))

        return progress


class Batch:
    """Answers of one batch, sent together when the last is there."""

    def __init__(self, wire: Wire, wanted: int) -> None:
        self._wire, self._wanted = wire, wanted
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        """Take one answer."""
        self._texts.append(text)
        if len(self._texts) == self._wanted:
            self._wire.send("[" + ",".join(self._texts) + "]")
