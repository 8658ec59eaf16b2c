"""Joins one client's parts for the time of a block: link, handlers, listeners, shutdown.

Source: spec 05-surface §8-9, 30-clients §2.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kite_modules import _contract
from kite_modules.sdk import frames, log
from kite_modules.sdk.blame import where_it_failed
from kite_modules.sdk.client import Kite
from kite_modules.sdk.errors import NotConnected, kernel_error
from kite_modules.sdk.events import Dispatcher, Event, Subscription
from kite_modules.sdk.exchange import Incoming
from kite_modules.sdk.frames import EventParams
from kite_modules.sdk.handlers import Handler, RunSync, Server, in_thread
from kite_modules.sdk.link import Link
from kite_modules.sdk.pending import Pending
from kite_modules.sdk.reconnect import Policy
from kite_modules.sdk.session import Session, State
from kite_modules.sdk.settings import Settings
from kite_modules.sdk.transport import Connector

QUEUE_MAX: Final = 1000
"""Publishes that are kept while there is no connection (as many as the kernel's own queue per connection)."""
LEAVE_S: Final = 3.0
"""How long handlers in hand may take to end when the module leaves by itself: well below half of a stop_timeout."""
_DRAIN_S: Final = 1.0
_SYNC_CALL_S: Final = 15.0


@attrs.frozen
class Listener:
    """A function that hears events."""

    patterns: tuple[str, ...]
    function: Callable[..., Any]
    concurrency: int = 1


class Runtime:
    """One client and all that runs for it. `registration` None: a plain client that offers nothing."""

    def __init__(
        self,
        settings: Settings,
        *,
        policy: Policy,
        chance: Callable[[], float],
        registration: dict[str, Any] | None = None,
        handlers: Sequence[Handler] = (),
        listeners: Sequence[Listener] = (),
        farewells: Sequence[Callable[..., Any]] = (),
        concurrency: int = 1,
        connect: Connector | None = None,
        run_sync: RunSync = in_thread,
    ) -> None:
        self._dispatcher = Dispatcher()
        self._link = Link(
            settings,
            Session(policy, chance),
            deliver=self._deliver,
            sync=self._sync,
            queue_max=QUEUE_MAX,
            connect=connect,
        )
        self.kite = Kite(self._link, self._dispatcher)
        self.inject: dict[type, Any] = {Kite: self.kite}
        self._registration = registration
        self._handlers = handlers
        self._listeners = listeners
        self._farewells = farewells
        self._concurrency = concurrency
        self._run_sync = run_sync
        self._threads = trio.CapacityLimiter(concurrency)
        self._nursery: trio.Nursery | None = None
        self._server: Server | None = None
        self._shutting_down = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Kite, None]:
        """Run until the block ends, or end the block when the kernel says so.

        Raises: NotConnected when a final close code ended the session; what the block raises.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            self._nursery = self.kite.nursery = nursery
            self._server = self._make_server(nursery)
            for listener in self._listeners:
                subscription = Subscription(listener.patterns)
                self._dispatcher.add(subscription)
                nursery.start_soon(self._listen, listener, subscription)
            nursery.start_soon(self._run_link, nursery.cancel_scope)
            try:
                await self._link.wait_open()
                yield self.kite
            except Exception as error:
                failure = error
            finally:
                self.kite.stopping.set()
                with trio.CancelScope(shield=True):
                    await self._leave("done")
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if self._link.session.fatal:
            raise NotConnected(self._link.session.reason, self._link.session.last_close_code)

    def _make_server(self, nursery: trio.Nursery) -> Server:
        server = Server(self._link, nursery, inject=self.inject, run_sync=self._run_sync, concurrency=self._concurrency)
        server.handlers.update({handler.name: handler for handler in self._handlers})
        return server

    async def _run_link(self, scope: trio.CancelScope) -> None:
        await self._link.run()
        scope.cancel()

    # ------------------------------------------------------------------ bringing a fresh session in step

    async def _sync(self) -> None:
        """Subscribe, register, say ready: the same in the same order at each fresh session."""
        if self._server is not None:
            self._server.reopen()
        wishes = self._dispatcher.wishes()
        if self._registration is None:
            wishes = [wish for wish in wishes if wish["events"]]
        for wish in wishes:
            await self._sync_call("event.subscribe", wish)
        if self._registration is None:
            return
        params: dict[str, Any] = {
            "methods": [handler.described() for handler in self._handlers],
            "accepts_meta": True,
            "meta": {"lang": "python", "python": sys.version.split()[0], "pid": os.getpid()},
        }
        if self._registration.get("version"):
            params["meta"]["version"] = self._registration["version"]
        if self._registration.get("service"):
            params["service"] = self._registration["service"]
        await self._sync_call("registry.register", params)
        self._say("module.ready")

    async def _sync_call(self, method: str, params: dict[str, Any]) -> None:
        """Call the kernel before the session is in step. Raises: CallError."""
        done = trio.Event()
        exchange = self._link.exchange
        due_at = trio.current_time() + _SYNC_CALL_S
        pending = Pending(exchange.new_id(), method, frames.encode(params), meta={}, due_at=due_at, wake=done.set)
        try:
            with trio.move_on_after(_SYNC_CALL_S):
                exchange.submit(pending, sync=True)
                await done.wait()
        finally:
            exchange.cancel(pending)
        if pending.error is not None:
            raise pending.error
        if pending.raw is None:
            raise kernel_error(_contract.E_DEADLINE, "deadline", "unknown", method=method)

    def _say(self, event: str, **data: Any) -> None:
        """Publish what a module says about itself."""
        params = {"event": event, "data": {"module_id": self._link.module_id, **data}}
        exchange = self._link.exchange
        exchange.post(frames.notification("event.publish", frames.encode(params)), exchange.generation)

    # ------------------------------------------------------------------ what comes in

    def _deliver(self, message: Incoming | EventParams) -> None:
        if isinstance(message, EventParams):
            if message.event == "module.shutdown":
                self._on_shutdown(frames.object_of(message.data))
            self._dispatcher.dispatch(message)
        elif message.frame.method == "event.gap":
            params = frames.object_of(message.frame.params)
            pattern, lost = params.get("pattern"), params.get("lost")
            if isinstance(pattern, str) and isinstance(lost, int):
                self._dispatcher.gap(pattern, lost)
        elif self._server is not None:
            self._server.take(message)

    async def _listen(self, listener: Listener, subscription: Subscription) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(listener.concurrency):
                nursery.start_soon(self._listen_one, listener.function, subscription)

    async def _listen_one(self, function: Callable[..., Any], subscription: Subscription) -> None:
        async for event in subscription:
            try:
                await self._invoke(function, event)
            except Exception as error:  # one bad event, or one bad handler, ends nothing
                name = getattr(function, "__name__", "listener")
                text = f"listener {name} failed at {event.name}: {type(error).__name__}: {error}"
                log.say(logging.ERROR, text, at=where_it_failed(error))

    async def _invoke(self, function: Callable[..., Any], argument: Event | str) -> None:
        if inspect.iscoroutinefunction(function):
            await function(argument)
            return
        value = await self._run_sync(lambda: function(argument), self._threads)
        if inspect.isawaitable(value):
            await value

    # ------------------------------------------------------------------ ends

    def _on_shutdown(self, data: dict[str, Any]) -> None:
        reason, deadline = data.get("reason"), data.get("deadline_s")
        self._link.session.shutdown(str(reason))
        if self._link.session.told_to_end:
            self.kite.stopping.set()
        self._say("module.shutdown_ack")
        if self._shutting_down or self._nursery is None:
            return  # told twice: the reason above may have become a final one
        self._shutting_down = True
        deadline_s = float(deadline) if isinstance(deadline, int | float) and deadline > 0 else LEAVE_S
        log.say(logging.INFO, "told to end" if self._link.session.told_to_end else "the kernel stops", reason=reason)
        self._nursery.start_soon(self._shut_down, str(reason), deadline_s)

    async def _shut_down(self, reason: str, deadline_s: float) -> None:
        """Finish what is in hand, say farewell, close with 1000; a stopping kernel alone is no farewell."""
        with trio.move_on_after(deadline_s * 0.8):
            if self._server is not None:
                await self._server.drain()
            if self._link.session.told_to_end:
                await self._say_farewell(reason)
                await self.kite.let_go()
        final = self._link.session.told_to_end
        if final and self._registration is not None:
            self._say("module.exiting", reason=reason)  # so that nobody waits for it through a debounce
        await self._link.drained(timeout_s=min(_DRAIN_S, deadline_s * 0.1))
        await self._link.leave(come_back=not final, reason=reason)
        self._shutting_down = False

    async def _say_farewell(self, reason: str) -> None:
        farewells, self._farewells = self._farewells, ()
        for function in farewells:
            try:
                await self._invoke(function, reason)
            except Exception as error:
                text = f"on_shutdown failed: {type(error).__name__}: {error}"
                log.say(logging.ERROR, text, at=where_it_failed(error))

    async def _leave(self, reason: str) -> None:
        """Leave by this module's own wish: `module.exiting`, what is in hand, 1000. Bounded."""
        if self._link.session.state is State.STOPPED:
            with trio.move_on_after(LEAVE_S):
                await self._say_farewell(self._link.session.reason)
            return
        if self._registration is not None and self._link.session.state is State.OPEN:
            self._say("module.exiting", reason=reason)
        with trio.move_on_after(LEAVE_S):
            if self._server is not None:
                await self._server.drain()
            await self._say_farewell(reason)
        await self._link.drained(timeout_s=_DRAIN_S)
        await self._link.leave(come_back=False, reason=reason)
