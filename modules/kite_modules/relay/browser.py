"""One browser, from its challenge to its end: carries out what the login's table asks for, then hands frames on.

Source: spec 80 §1, 05 §9 (Relay), cases X-22 … X-29.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import trio

from kite_modules import _contract
from kite_modules.relay import frames, login
from kite_modules.relay.accounts import Locked, User, Wrong, hash_of, verify
from kite_modules.relay.desk import Desk
from kite_modules.relay.limits import FREE_FAILURES
from kite_modules.relay.wire import Wire

if TYPE_CHECKING:
    from kite_modules.relay.house import House

LOGIN_BYTES_MAX: Final = 16 << 10  # before `open`: names, a password, a code
CODE_S: Final = 180.0  # between a right password and the code: a person looks for the phone
PING_S: Final = 30.0
PINGS_MISSED_MAX: Final = 3


class Browser:
    """One wire. `cookie` is the session that came in the upgrade's cookie, if any."""

    def __init__(self, house: House, wire: Wire, address: str, cookie: str | None) -> None:
        self.house = house
        self.wire = wire
        self.address = address
        self._cookie = cookie
        self._nonce = secrets.token_urlsafe(24)
        self._login = login.Login(self._nonce)
        self._deadline = trio.CancelScope()
        self._nursery: trio.Nursery
        self._missed = 0
        self.desk: Desk | None = None

    async def run(self) -> None:
        """Serve until the wire ends. Cancel: safe."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._write, nursery.cancel_scope)
                nursery.start_soon(self._wait_login)
                resumable = self._cookie is not None and hash_of(self._cookie) in self.house.sessions_living()
                challenge = self._login.challenge(self._nonce, resumable=resumable)
                self.wire.send(frames.notice("challenge", challenge))
                while (text := await self.wire.read()) is not None:
                    await self._frame(text)
                nursery.cancel_scope.cancel()
        finally:
            self.house.browsers.discard(self)
            if self.desk is not None:
                self.desk.leave()

    async def _write(self, whole: trio.CancelScope) -> None:
        await self.wire.write()
        whole.cancel()

    async def _wait_login(self) -> None:
        """Give the challenge its time, and the code its own."""
        self._deadline.deadline = trio.current_time() + login.CHALLENGE_S
        with self._deadline:
            await trio.sleep_forever()
        if self._login.state != login.OPEN:
            self._end(None, _contract.CLOSE_AUTH_TIMEOUT, "the login took too long")

    async def _frame(self, text: str) -> None:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > (self.house.frame_bytes_max if self.desk is not None else LOGIN_BYTES_MAX):
            self.wire.close(_contract.CLOSE_MESSAGE_TOO_BIG, "the message is too big")
            return
        read = frames.read(text)
        if self.desk is not None:
            self._missed = 0
            await self.desk.take(read)
            return
        for one in read if isinstance(read, list) else [read]:
            if isinstance(one, frames.Bad):
                self.wire.send(frames.refusal(one.id, one.code, one.reason))
            elif isinstance(one, frames.Request):
                await self._before_open(one, alone=not isinstance(read, list))

    # ---------------------------------------------------------------- the way in

    async def _before_open(self, request: frames.Request, *, alone: bool) -> None:
        if request.id is None or not alone:  # a login is one request with an id, by itself
            if request.id is not None:
                message = "log in first"
                self.wire.send(frames.refusal(request.id, _contract.E_FORBIDDEN, "not_open", message))
            return
        step = self._login.on_request(request.method, request.value())
        try:
            await self._do(request.id, step)
        except Exception as error:  # a fault in handling is ours: 1011, and never what was typed
            self.house.note("a login ended by a fault", self.address, fault=type(error).__name__)
            self.wire.close(_contract.CLOSE_INTERNAL_ERROR, "a fault of the relay's own")

    async def _do(self, rpc_id: str, step: login.Step) -> None:
        match step:
            case login.Answer(result):
                self.wire.send(frames.result(rpc_id, result))
            case login.Refuse(code, reason, message):
                self.wire.send(frames.refusal(rpc_id, code, reason, message))
            case login.Close(code, reason):
                self._end(rpc_id, code, reason)
            case login.CheckPassword(user, password):
                await self._check_password(rpc_id, user, password)
            case login.CheckToken(token):
                self._check_token(rpc_id, token)
            case login.CheckCode(user, code, recovery):
                self._check_code(rpc_id, user, code, recovery=recovery)
            case login.CheckSession(session):
                self._check_session(rpc_id, session)

    def _hasty(self, rpc_id: str, *names: str) -> bool:
        """Count a try; True when it was one too many, and this wire ends."""
        wait_s = self.house.window.take(*names, now=trio.current_time())
        if wait_s is not None:
            self._end(rpc_id, _contract.CLOSE_RATE_LIMITED, "too many tries", retry_after=round(wait_s, 1))
            self.house.alarm("login_flood", self.address, "more than 20 tries in 10 s")
        return wait_s is not None

    async def _check_password(self, rpc_id: str, user: str, password: str) -> None:
        if self._hasty(rpc_id, f"user {user}", f"address {self.address}"):
            return
        stored = self.house.accounts.password_of(user)
        async with self.house.hashing:
            right = await trio.to_thread.run_sync(verify, stored, password)
        self._first_done(rpc_id, user if right and self.house.accounts.find(user) is not None else None)

    def _check_token(self, rpc_id: str, token: str) -> None:
        if self._hasty(rpc_id, f"address {self.address}"):
            return
        user = self.house.accounts.check_token(token)
        if user is not None and self._hasty(rpc_id, f"user {user}"):
            return
        self._first_done(rpc_id, user)

    def _first_done(self, rpc_id: str, user: str | None) -> None:
        step = self._login.password_checked(user)
        if isinstance(step, login.Answer):
            self._deadline.deadline = trio.current_time() + CODE_S
            self.wire.send(frames.result(rpc_id, step.result))
        elif isinstance(step, login.Close):
            self.house.note("a login was refused", self.address)
            self._end(rpc_id, step.close, step.reason)

    def _check_code(self, rpc_id: str, user: str, code: str, *, recovery: bool) -> None:
        if self._hasty(rpc_id, f"code of {user}", f"code from {self.address}"):
            return
        verdict = self.house.accounts.check_code(user, code, recovery=recovery)
        if isinstance(verdict, Locked):
            self.house.alarm("guessing", self.address, "codes for a locked account", user=user)
            wait_s = round(verdict.wait_s, 1)
            self._end(rpc_id, _contract.CLOSE_RATE_LIMITED, "too many wrong codes; wait", retry_after=wait_s)
            return
        if isinstance(verdict, Wrong) and verdict.failures >= FREE_FAILURES:
            self.house.alarm("guessing", self.address, f"{verdict.failures} wrong codes", user=user)
        end = self._login.code_checked(right=isinstance(verdict, User))
        if end is not None or not isinstance(verdict, User):
            self.house.note("a code was refused", self.address, user=user)
            self._end(rpc_id, _contract.CLOSE_MFA_FAILED, login.CODE_TEXT)
            return
        session = self.house.accounts.open_session(user, self.address)
        self._open(rpc_id, verdict, hash_of(session), session)

    def _check_session(self, rpc_id: str, session: str | None) -> None:
        known = session if session is not None else self._cookie
        options = self.house.options
        found = None
        if known is not None:
            found = self.house.accounts.use_session(
                hash_of(known), idle_s=options.session_idle, max_s=options.session_max
            )
        if found is None or known is None:
            if not self._hasty(rpc_id, f"resume from {self.address}"):  # only failures count: a phone in a tunnel
                end = self._login.resumed(None)
                assert end is not None
                self._end(rpc_id, end.close, end.reason)
            return
        self._login.resumed(found.user.name)
        self._open(rpc_id, found.user, hash_of(known), session)

    def _open(self, rpc_id: str, user: User, hashed: str, session: str | None) -> None:
        """Let it in. The session itself is told to whoever gave it or has just earned it, not to a cookie's page."""
        options = self.house.options
        found = self.house.accounts.use_session(hashed, idle_s=options.session_idle, max_s=options.session_max)
        left_s = 0.0 if found is None else max(0.0, found.ends_at - time.time())
        answer: dict[str, Any] = {"stage": "open", "user": user.name, "role": user.role}
        answer |= {"session": session, "session_expires_s": round(left_s, 1)}
        if not self.house.connected:
            self.wire.send(frames.result(rpc_id, answer))
            self.wire.close(_contract.CLOSE_SERVICE_RESTART, "the kernel is away; it comes back")
            return
        self.desk = Desk(self.house, self.wire, user, hashed, self.address, self._nursery)
        self.house.browsers.add(self)
        self.wire.send(frames.result(rpc_id, answer))
        self._nursery.start_soon(self._ping)

    def _end(self, rpc_id: str | None, code: int, text: str, **more: Any) -> None:
        """Say why, as the answer to the request, and close."""
        data = {"close": code, "reason": _contract.CLOSE[code].name, **more}
        self.wire.send(frames.error(rpc_id or "null", _contract.E_CLOSING, text, data))
        self.wire.close(code, text)

    # ---------------------------------------------------------------- open

    async def _ping(self) -> None:
        """Keep middle boxes awake, and find out when nobody is there any more."""
        while True:
            await trio.sleep(PING_S)
            if self._missed >= PINGS_MISSED_MAX:
                self.wire.close(_contract.CLOSE_PING_TIMEOUT, "three pings unanswered")
                return
            self._missed += 1
            event = {"event": "system.ping", "data": {"ping_time": time.time()}, "source": "kernel"}
            self.wire.send(frames.notice("event", {**event, "time": time.time()}))
