"""An in-memory kernel for tests: real frames over memory streams, on whatever clock the test runs.

`Hub` plays the kernel for any number of modules in the same process; its fault verbs do to their wires what networks
and crashes do. With trio's virtual clock a minute of back-off takes no time. Source: spec 30-clients §2.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import trio
import trio_websocket

from kite_modules import _contract
from kite_modules.sdk import frames
from kite_modules.sdk.errors import NotConnected
from kite_modules.sdk.frames import Frame
from kite_modules.sdk.handlers import inline
from kite_modules.sdk.reconnect import INTERNAL, Policy
from kite_modules.sdk.runtime import Runtime
from kite_modules.sdk.settings import Settings
from kite_modules.sdk.testing.desk import Desk
from kite_modules.sdk.testing.faults import FaultyWire
from kite_modules.sdk.testing.peers import Peer

if TYPE_CHECKING:
    from kite_modules.sdk.client import Kite
    from kite_modules.sdk.module import Module

URL = "ws://kite.test/ws"


class Hub:
    """The in-memory kernel. Use it as `async with Hub() as hub`, or by the `hub` fixture.

    `calls` and `events` record what went through: (caller, method, params) and (source, event, data). Faults, by module
    id: `cut`, `delay`, `drop`, `heal`, `close`; for all: `restart`. `refuse_next` answers the next auth requests with a
    close code, as a kernel would.
    """

    def __init__(
        self,
        *,
        debounce_s: float = 5.0,
        ping_s: float = 5.0,
        call_s: float = 30.0,
        seed: int = 0,
    ) -> None:
        self.debounce_s = debounce_s
        self.ping_s = ping_s
        self._call_s = call_s
        self._chance = random.Random(seed)
        self._desk = Desk(call_s=call_s)
        self._wires: dict[str, tuple[FaultyWire, trio_websocket.WebSocketConnection]] = {}
        self._numbers = itertools.count(1)
        self._clients = itertools.count(1)
        self._refusals: list[int] = []
        self._away = False
        self._nursery: trio.Nursery | None = None
        self._manager: Any = None
        self.epoch = 1
        self.authentications = 0

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Hub:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._keep_time)
        self._nursery.start_soon(self._ping)
        return self

    async def __aexit__(self, *exc: Any) -> bool | None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)  # the block's own exception goes on bare, in no group
        return None

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """Every call that was routed, in order."""
        return self._desk.calls

    @property
    def events(self) -> list[tuple[str, str, Any]]:
        """Every event that was published, in order."""
        return self._desk.events

    def state(self, module_id: str) -> str:
        """Return a module's state as the kernel would say it."""
        peer = self._desk.peers.get(module_id)
        return "offline" if peer is None else peer.state

    async def wait_state(self, module_id: str, state: str = "ready", *, timeout_s: float = 60.0) -> None:
        """Wait until a module is in a state. Raises: trio.TooSlowError."""
        with trio.fail_after(timeout_s):
            while self.state(module_id) != state:  # noqa: ASYNC110  # the state changes in many places
                await trio.sleep(0.01)

    # ------------------------------------------------------------------ who connects

    @asynccontextmanager
    async def running(self, module: Module, *, name: str = "", options: dict[str, Any] | None = None) -> Any:
        """Run a module for the time of the block; plain functions run in place (no threads on a virtual clock)."""
        settings = self._settings(name or module.name or f"module-{next(self._clients)}", options)
        async with module.connected(
            settings, connect=self._connector(settings), run_sync=inline, chance=self._chance.random
        ) as kite:
            yield kite

    @asynccontextmanager
    async def client(self, name: str = "", *, policy: Policy = INTERNAL) -> AsyncGenerator[Kite, None]:
        """Connect a plain client for the time of the block."""
        settings = self._settings(name or f"client-{next(self._clients)}", None)
        runtime = Runtime(settings, policy=policy, chance=self._chance.random, connect=self._connector(settings))
        async with runtime.running() as kite:
            yield kite

    def _settings(self, name: str, options: dict[str, Any] | None) -> Settings:
        instance = f"{name}-{next(self._numbers)}"
        return Settings(url=URL, token=f"token-of-{name}", module_id=name, options=options or {}, instance=instance)

    def _connector(self, settings: Settings) -> Callable[[], Any]:
        async def connect() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            if self._away or self._nursery is None:
                raise OSError("connection refused (the test's kernel is away)")
            wire = FaultyWire()
            self._nursery.start_soon(wire.run)
            self._nursery.start_soon(self._serve, wire)
            return wire.near

        return connect

    # ------------------------------------------------------------------ faults

    def cut(self, module_id: str) -> None:
        """Cut a module's wire; it is in debounce from now on."""
        self._wire(module_id).cut()

    def delay(self, module_id: str, delay_s: float) -> None:
        """Make everything on a module's wire late."""
        self._wire(module_id).delay_s = delay_s

    def drop(self, module_id: str) -> None:
        """Let nothing through on a module's wire, which stays open."""
        self._wire(module_id).drop()

    def heal(self, module_id: str) -> None:
        """End a delay or drop; what was held back arrives."""
        self._wire(module_id).heal()

    async def close(self, module_id: str, code: int, reason: str = "") -> None:
        """Close a module's wire with a code."""
        self._wire(module_id)
        with trio.move_on_after(1.0):
            await self._wires[module_id][1].aclose(code, reason or None)

    def refuse_next(self, *codes: int) -> None:
        """Answer the next auth requests with these close codes."""
        self._refusals.extend(codes)

    def shut_down(self, module_id: str, reason: str = "module_stop", deadline_s: float = 10.0) -> None:
        """Tell a module to end."""
        params = {"event": "module.shutdown", "data": {"reason": reason, "deadline_s": deadline_s}, "source": "kernel"}
        self._desk.peers[module_id].send(frames.notification("event", frames.encode(params)))

    async def restart(self, *, away_s: float = 1.0) -> None:
        """Be killed and come back as another kernel that knows nobody."""
        self._away = True
        for wire, _ in list(self._wires.values()):
            wire.cut()
        self._wires.clear()
        calls, events = self._desk.calls, self._desk.events
        self._desk = Desk(call_s=self._call_s)
        self._desk.calls, self._desk.events = calls, events
        self.epoch += 1
        await trio.sleep(away_s)
        self._away = False

    def _wire(self, module_id: str) -> FaultyWire:
        if module_id not in self._wires:
            raise KeyError(f"{module_id} has no wire; connected: {', '.join(sorted(self._wires)) or 'nobody'}")
        return self._wires[module_id][0]

    # ------------------------------------------------------------------ serving

    async def _serve(self, wire: FaultyWire) -> None:
        """Serve one connection; whatever it does, it ends alone."""
        try:
            async with trio.open_nursery() as nursery:
                ws = await trio_websocket.wrap_server_stream(nursery, wire.far)
                connection = await ws.accept()
                await self._talk(connection, wire)
                nursery.cancel_scope.cancel()
        except* Exception:  # a broken connection is what this class is for
            pass
        finally:
            wire.cut()

    async def _talk(self, ws: trio_websocket.WebSocketConnection, wire: FaultyWire) -> None:
        text = await ws.get_message()
        frame = frames.read_frame(text) if isinstance(text, str) else None
        self.authentications += 1
        if not isinstance(frame, Frame) or frame.method != "auth":
            await ws.aclose(_contract.CLOSE_AUTH_MALFORMED)
            return
        if self._refusals:
            code = self._refusals.pop(0)
            data = {"close": code, "reason": "auth_failed"}
            await ws.send_message(frames.error("auth", _contract.E_CLOSING, "closing the connection", data))
            await ws.aclose(code)
            return
        peer, answer, again = self._admit(frames.object_of(frame.params))
        number = next(self._numbers)
        send, receive = trio.open_memory_channel[str](100_000)
        peer.out, peer.wire, peer.unanswered_pings = send.send_nowait, number, 0
        self._wires[peer.module_id] = (wire, ws)
        rpc_id = None if isinstance(frame.id, msgspec.UnsetType) else frame.id
        await ws.send_message(frames.result(rpc_id, frames.encode(answer)))
        for kept in again:
            send.send_nowait(kept)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pump, receive, ws)
            try:
                with suppress(trio_websocket.ConnectionClosed):
                    while True:
                        text = await ws.get_message()
                        self._desk.on_text(peer, str(text), now=trio.current_time())
            finally:
                self._gone(peer, number)
                nursery.cancel_scope.cancel()

    def _admit(self, params: dict[str, Any]) -> tuple[Peer, dict[str, Any], list[str]]:
        """Take a module in: resumed, the same process anew, or another one."""
        module_id = str(params.get("module_id") or f"client-{next(self._clients)}")
        peer = self._desk.peers.setdefault(module_id, Peer(module_id))
        resume = params.get("resume")
        again: list[str] | None = None
        if isinstance(resume, dict) and peer.state != "offline" and resume.get("session") == peer.session:
            again = peer.again(resume.get("received"))
        received = peer.received
        if again is None:
            self._admit_anew(peer, str(params.get("instance", "")))
            received = 0
        peer.instance, peer.exiting = str(params.get("instance", "")), False
        answer = {
            "module_id": module_id,
            "session": peer.session,
            "protocol": _contract.PROTOCOL,
            "kernel": {"id": "testing", "epoch": str(self.epoch), "version": "testing"},
            "state": peer.state,
            "resumed": again is not None,
            "received": received,
            "timing": {"call_s": self._call_s, "ping_idle_s": self.ping_s},
            "limits": {"max_message_bytes": 1024 * 1024},
        }
        return peer, answer, again or []

    def _admit_anew(self, peer: Peer, instance: str) -> None:
        if peer.state != "offline" and instance != peer.instance:
            was_ready, peer.state = peer.state == "ready", "connected"
            peer.forget_registration()
            self._desk.lose_calls_of(peer, "restarted")
            if was_ready:
                self._desk.tell_all("module.offline", {"module_id": peer.module_id, "reason": "restarted"}, but=peer)
        elif peer.state != "offline":
            self._desk.lose_calls_of(peer, "connection_lost")
        else:
            peer.state = "connected"
        peer.restart_session()

    def _gone(self, peer: Peer, number: int) -> None:
        """A wire ended: debounce, or offline at once for who said that it leaves."""
        if peer.wire != number:
            return
        peer.out = None
        self._wires.pop(peer.module_id, None)
        if peer.exiting:
            self._offline(peer, "exiting")
        elif self._nursery is not None:
            self._nursery.start_soon(self._debounce, peer, number)

    async def _debounce(self, peer: Peer, number: int) -> None:
        await trio.sleep(self.debounce_s)
        if peer.wire == number and peer.out is None:
            self._offline(peer, "connection_lost")

    def _offline(self, peer: Peer, reason: str) -> None:
        if peer.state == "offline" or self._desk.peers.get(peer.module_id) is not peer:
            return
        peer.state = "offline"
        peer.forget_registration()
        self._desk.lose_calls_of(peer, "connection_lost")
        self._desk.tell_all("module.offline", {"module_id": peer.module_id, "reason": reason})

    # ------------------------------------------------------------------ time

    async def _keep_time(self) -> None:
        """End calls at their deadlines."""
        while True:
            await trio.sleep(0.05)
            self._desk.on_time(now=trio.current_time())

    async def _ping(self) -> None:
        """Ping everybody; who misses three in a row is closed 4012."""
        while True:
            await trio.sleep(self.ping_s)
            for peer in list(self._desk.peers.values()):
                if peer.out is None:
                    continue
                peer.unanswered_pings = 1 if peer.heard else peer.unanswered_pings + 1
                peer.heard = False
                if peer.unanswered_pings > 3 and self._nursery is not None:
                    self._nursery.start_soon(self.close, peer.module_id, _contract.CLOSE_PING_TIMEOUT)
                    continue
                data = {"ping_time": trio.current_time(), "received": peer.received}
                params = {"event": "system.ping", "data": data, "source": "kernel"}
                peer.send(frames.notification("event", frames.encode(params)))


async def _pump(receive: trio.MemoryReceiveChannel[str], ws: trio_websocket.WebSocketConnection) -> None:
    """The one task that sends on a wire."""
    with suppress(trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
        async for text in receive:
            await ws.send_message(text)


__all__ = ["Hub", "NotConnected"]
