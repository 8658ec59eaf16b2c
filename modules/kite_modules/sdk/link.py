"""Keeps one client on the kernel: one wire after the other, by the strategy table, with nothing lost between them.

What this room is for: it opens wires, authenticates, runs one reader and one writer per wire, brings a fresh session in
step, and waits as `session.Session` decides. What it must never do: decide itself when to come back, or let a wire's
fault reach the author. Source: spec 10-wire §2-4 and §8, 05-surface §8-9.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from kite_modules._contract import CLOSE_GOING_AWAY, CLOSE_NORMAL, PROTOCOL
from kite_modules.sdk import log
from kite_modules.sdk.errors import CallError, NotConnected
from kite_modules.sdk.exchange import Exchange, Incoming
from kite_modules.sdk.frames import EventParams, Frame
from kite_modules.sdk.greeting import Greeting
from kite_modules.sdk.reconnect import NetworkState
from kite_modules.sdk.session import Session, State
from kite_modules.sdk.settings import Settings
from kite_modules.sdk.spread import AttemptCounter
from kite_modules.sdk.telling import Telling, read_bye, tell_pressure
from kite_modules.sdk.transport import Connector, Endpoint, Lost, Wire, WireLost, open_wire
from kite_modules.sdk.watch import StateBoard

_PING_IDLE_S: Final = 60.0  # until the auth answer says otherwise
_SYNC_AGAIN_S: Final = 1.0  # a kernel that is too busy to register a module just now
_QUIET_LEAST_S: Final = 2.0  # times scaled down for tests must not make a busy machine look like a dead kernel
_ROOM: Final = 256  # frames of one session in line before a progress stream waits


class Link:
    """The connection of one client over its whole life. `run` it in a nursery of the caller's.

    Args: `deliver` takes what comes in, must not block; `sync` brings a fresh session in step (subscribe, register,
    ready) and may be cancelled; `random` gives [0, 1).
    """

    def __init__(
        self,
        settings: Settings,
        session: Session,
        *,
        deliver: Callable[[Incoming | EventParams], None],
        sync: Callable[[], Awaitable[None]],
        queue_max: int,
        connect: Connector | None = None,
    ) -> None:
        self.settings = settings
        self.session = session
        self.exchange = Exchange(queue_max=queue_max, on_work=self._on_work)
        self.attempts = AttemptCounter()
        self.states = StateBoard(session)
        self.module_id = settings.module_id or ""
        self.kernel: dict[str, Any] = {}
        self.timing: dict[str, Any] = {}
        self.protocol: int | None = None
        self._endpoint = Endpoint(settings.url)
        self._connect = connect or self._endpoint.connect
        self._deliver = deliver
        self._sync = sync
        self._in_step = False
        self._sync_scope: trio.CancelScope | None = None
        self._wire: Wire | None = None
        self._wire_scope: trio.CancelScope | None = None
        self._bye: Lost | None = None
        self._leave_as: Lost | None = None
        self.last_lost = Lost(None)
        self._work = trio.Event()
        self._drained = trio.Event()
        self._room = trio.Event()
        self._nudge = trio.Event()
        self._told = Telling()

    # ------------------------------------------------------------------ what others see

    async def wait_open(self) -> None:
        """Wait until the session is in step. Raises: NotConnected when it stopped for good. Cancel: safe."""
        if await self.states.wait(State.OPEN) is State.STOPPED:
            raise NotConnected(self.session.reason, self.session.last_close_code)

    def retry_now(self) -> bool:
        """End a wait at once; False where nothing waits."""
        if not self.session.retry_now():
            return False
        self._nudge.set()
        self.states.announce()
        return True

    def network(self, state: NetworkState, *, path_changed: bool) -> bool:
        """The network changed; True when a new wire takes the place of the present one, or ends the wait."""
        if not self.session.network(state, path_changed=path_changed):
            return False
        self._nudge.set()
        if self._wire_scope is not None:
            self._wire_scope.cancel()
        self.states.announce()
        return True

    async def drained(self, *, timeout_s: float) -> bool:
        """Wait until all that was in line went out; False at the timeout or when there is no wire. Cancel: safe."""
        with trio.move_on_after(timeout_s):
            while self._wire is not None:
                await self._drained.wait()
                if self.exchange.idle:
                    return True
        return False

    async def room(self) -> None:
        """Wait until few frames of this session are in line: what a stream of progress waits for. Cancel: safe."""
        while self.exchange.session_backlog >= _ROOM and self.session.state is not State.STOPPED:
            self._room = trio.Event()
            await self._room.wait()

    def post(self, text: str, generation: int) -> bool:
        """Put a frame of one session in line; False when that session is gone."""
        return self.exchange.post(text, generation)

    @property
    def message_bytes_max(self) -> int:
        """The largest frame that the kernel takes."""
        return self.exchange.message_bytes_max

    async def leave(self, *, come_back: bool, reason: str = "") -> None:
        """Close the wire with 1000; for good, or (`come_back`) as if the kernel had gone away."""
        wire = self._wire
        self._leave_as = Lost(CLOSE_GOING_AWAY, reason)
        if not come_back:
            self.session.stop()
            self._nudge.set()
            self.states.announce()
        if wire is not None:
            await wire.close(CLOSE_NORMAL, reason)
        elif self._wire_scope is not None:
            self._wire_scope.cancel()

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Stay connected until the session stops. Cancel: safe, the wire is closed."""
        try:
            async with trio.open_nursery() as nursery:
                self.session.connect()
                self.states.announce()
                while self.session.state is not State.STOPPED:
                    number = self.session.wire
                    self._on_lost(await self._one_wire(nursery), number)
                    await self._wait_for_due()
                nursery.cancel_scope.cancel()
        finally:
            self.session.stop()
            self.exchange.stop(self.session.reason)
            self._room.set()
            self.states.announce()

    async def _wait_for_due(self) -> None:
        while self.session.state is State.WAITING:
            self._nudge = trio.Event()
            with trio.move_on_at(self.session.due_at if self.session.due_at is not None else trio.current_time()):
                await self._nudge.wait()
            if self.session.time(now=trio.current_time()):
                self.states.announce()

    async def _one_wire(self, outer: trio.Nursery) -> Lost:
        """Live on one wire from connect to its end; returns how it ended."""
        self._bye = self._leave_as = None
        lost = Lost(None, "cancelled")
        decision = self.session.decision
        if decision is not None:
            self.attempts.count(decision.kind, now=trio.current_time())
        async with trio.open_nursery() as nursery:
            self._wire_scope = nursery.cancel_scope
            wire: Wire | None = None
            try:
                wire = await open_wire(nursery, self._connect, host=self._endpoint.host, path=self._endpoint.path)
                self.session.connected()
                self.states.announce()
                await self._authenticate(wire, outer)
                self._wire = wire
                nursery.start_soon(self._write, wire)
                await self._read(wire)
            except WireLost as error:
                lost = error.lost
            finally:
                self._wire = self._wire_scope = None
                if wire is not None:
                    await wire.abort()
                nursery.cancel_scope.cancel()
        return self._leave_as or self._with_bye(lost)

    def _with_bye(self, lost: Lost) -> Lost:
        """A wire that was cut after a `bye` ended as the `bye` said; its hint holds in any case."""
        if self._bye is None:
            return lost
        code = self._bye.code if lost.code in (None, 1006) else lost.code
        after = lost.retry_after_s if lost.retry_after_s is not None else self._bye.retry_after_s
        return Lost(code, lost.reason or self._bye.reason, after)

    # ------------------------------------------------------------------ authentication

    async def _authenticate(self, wire: Wire, outer: trio.Nursery) -> None:
        """Authenticate and take the answer. Raises: WireLost."""
        params: dict[str, Any] = {
            "token": self.settings.token,
            "instance": self.settings.instance,
            "protocol": PROTOCOL,
        }
        if self.settings.module_id:
            params["module_id"] = self.settings.module_id
        offer = self.exchange.book.resume()
        if offer is not None:
            params["resume"] = offer
        greeting = Greeting(wire, self._notice)
        self._take_auth(await greeting.authenticate(params), outer)

    def _take_auth(self, result: dict[str, Any], outer: trio.Nursery) -> None:
        protocol = result.get("protocol")
        self.protocol = protocol if protocol in (1, 2) else PROTOCOL
        self.kernel, self.timing, limits = (
            value if isinstance(value := result.get(name), dict) else {} for name in ("kernel", "timing", "limits")
        )
        told = limits.get("max_message_bytes")
        if isinstance(told, int) and told > 0:
            self.exchange.message_bytes_max = told
        if isinstance(result.get("module_id"), str):
            self.module_id = result["module_id"]
        self.session.authenticated(self.protocol)
        resumed = self.exchange.take_auth(result)
        if not resumed:
            self._in_step = False
            if self._sync_scope is not None:
                self._sync_scope.cancel()
            self._sync_scope = trio.CancelScope()
            outer.start_soon(self._bring_in_step, self._sync_scope)
        elif self._in_step:
            self._open(resumed=True)
        self.states.announce()

    async def _bring_in_step(self, scope: trio.CancelScope) -> None:
        """Subscribe, register, ready: again and again while the kernel is only too busy."""
        with scope:
            while True:
                try:
                    await self._sync()
                except CallError as error:
                    if self._sync_refused(error):
                        return
                    await trio.sleep(error.retry_after_s or _SYNC_AGAIN_S)
                else:
                    self._in_step = True
                    self._open(resumed=False)
                    self.states.announce()
                    return

    def _sync_refused(self, error: CallError) -> bool:
        """Return True where trying again is of no use: the session is over, or the author's mistake stops it."""
        if self.session.state is State.STOPPED or error.reason in ("connection_lost", "offline"):
            return True
        if error.later:
            return False
        log.say(logging.ERROR, f"the kernel refuses this module: {error}", code=error.code, data=error.data)
        self.session.fatal = True
        self.session.stop()
        self._nudge.set()
        if self._wire_scope is not None:
            self._wire_scope.cancel()
        return True

    def _open(self, *, resumed: bool) -> None:
        self.exchange.is_open = True
        self.session.synced()
        if self.session.state is State.OPEN:
            self._on_work()
            self._told.connected(self.module_id, resumed=resumed)

    # ------------------------------------------------------------------ one wire's traffic

    async def _write(self, wire: Wire) -> None:
        """The one task that owns the sending half of a wire."""
        try:
            while True:
                frame = self.exchange.next_frame(now=trio.current_time())
                if frame is None:
                    self._work = trio.Event()
                    self._drained.set()
                    await self._work.wait()
                    self._drained = trio.Event()
                else:
                    await wire.send(frame)
                    self._room.set()
        except WireLost:
            await wire.abort()  # the reader finds out, and knows the close code if there was one

    async def _read(self, wire: Wire) -> None:
        """Take in frames until the wire ends. Raises: WireLost."""
        quiet_s = self._quiet_s()
        silent = 0
        while True:
            text: str | None = None
            with trio.move_on_after(quiet_s) as scope:
                text = await wire.receive()
            if scope.cancelled_caught:
                silent += 1
                if silent > 1:  # twice in a row: one alone may be this process's own sleep
                    raise WireLost(Lost(None, f"the kernel said nothing for {2 * quiet_s:g} s"))
                continue
            silent = 0
            if text is None:
                self.exchange.statistics.bad_frames += 1
                continue
            message = self.exchange.on_text(text, wall_time=time.time())
            if message is not None:
                self._take(message)

    def _quiet_s(self) -> float:
        """Half of what a living kernel never keeps quiet for: it pings at least each `ping_idle`."""
        return max(self.told_s("ping_idle_s", _PING_IDLE_S) * 1.5, _QUIET_LEAST_S)

    def told_s(self, name: str, default_s: float) -> float:
        """Return one of the kernel's times (seconds) as the auth answer told it."""
        value = self.timing.get(name)
        return float(value) if isinstance(value, int | float) and value > 0 else default_s

    def _take(self, message: Incoming | EventParams) -> None:
        if isinstance(message, Incoming) and message.frame.kind == "notice" and self._notice(message.frame):
            return
        self._deliver(message)

    def _notice(self, frame: Frame) -> bool:
        """Deal with the kernel's notices to the wire itself; False for any other."""
        if frame.method == "bye":
            self._bye = read_bye(frame)
        elif frame.method == "pressure":
            tell_pressure(frame)
        else:
            return False
        return True

    # ------------------------------------------------------------------ ends

    def _on_lost(self, lost: Lost, wire: int) -> None:
        self.last_lost = lost
        if self.session.state is State.STOPPED:
            return
        decision = self.session.lost(
            lost.code,
            now=trio.current_time(),
            wire=wire,
            close_reason=lost.reason,
            retry_after_s=lost.retry_after_s,
        )
        if decision is not None:
            self._told.lost(lost, decision, self.session, protocol=self.protocol)
        self.states.announce()

    def _on_work(self) -> None:
        self._work.set()
