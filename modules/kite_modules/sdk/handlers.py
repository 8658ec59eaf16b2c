"""Runs an author's handlers: checked params in, one answer out, bounded concurrency, cancellation as a cancel scope.

Laws: every request gets at most one answer; a handler's fault is an error answer and one log line, never the end of the
module; an answer never goes to another session than the one that asked; `health` never waits for busy slots.
Source: spec 30-clients §2, 10-wire §6, 05-surface §9.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final, Protocol

import attrs
import msgspec
import trio

from kite_modules import _contract
from kite_modules.sdk import frames, log
from kite_modules.sdk.blame import where_it_failed
from kite_modules.sdk.call import Call
from kite_modules.sdk.errors import CallError, Refused
from kite_modules.sdk.exchange import Incoming
from kite_modules.sdk.frames import RpcId
from kite_modules.sdk.schema import BadParams, Signature, signature_of

CONCURRENCY: Final = 64
"""Handlers that run at once: enough for waiting ones, few enough that a flood does not take the machine."""
WAITING_MAX: Final = 1000
_BUSY_RETRY_S: Final = 1.0


@attrs.frozen
class Handler:
    """One method of a module."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    urgent: bool = False

    @classmethod
    def read(cls, name: str, function: Callable[..., Any], injectable: tuple[type, ...], *, urgent: bool) -> Handler:
        """Read a function's hints. Raises: TypeError for hints that no wire fits."""
        return cls(name, function, signature_of(function, injectable=injectable), urgent)

    def described(self) -> dict[str, Any]:
        """Return what `registry.register` says of it."""
        described: dict[str, Any] = {"name": self.name, "params": self.signature.params_schema}
        if self.signature.result_schema is not None:
            described["result"] = self.signature.result_schema
        if self.signature.doc:
            described["doc"] = self.signature.doc
        return described


class Outlet(Protocol):
    """What a server needs of the connection."""

    def post(self, text: str, generation: int) -> bool:
        """Put a frame in line for one session."""
        ...

    async def room(self) -> None:
        """Wait until the line is short."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """The largest frame that the kernel takes."""
        ...


RunSync = Callable[..., Awaitable[Any]]


async def in_thread(function: Callable[..., Any], limiter: trio.CapacityLimiter) -> Any:
    """Run a plain function in a worker thread; a cancelled one is left to end by itself."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)


async def inline(function: Callable[..., Any], limiter: trio.CapacityLimiter) -> Any:
    """Run a plain function in place: for the virtual clock, which does not wait for threads."""
    await trio.lowlevel.checkpoint()
    return function()


class Server:
    """The handlers of one module, while it is connected."""

    def __init__(
        self,
        outlet: Outlet,
        nursery: trio.Nursery,
        *,
        inject: dict[type, Any],
        run_sync: RunSync = in_thread,
        concurrency: int = CONCURRENCY,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self.refused = 0
        self._outlet = outlet
        self._nursery = nursery
        self._inject = inject
        self._run_sync = run_sync
        self._slots = trio.CapacityLimiter(concurrency)
        self._threads = trio.CapacityLimiter(concurrency)
        self._running_max = concurrency + waiting_max
        self._running: dict[tuple[int, RpcId], tuple[trio.CancelScope, Call]] = {}
        self._draining = False
        self._quiet = trio.Event()

    @property
    def running(self) -> int:
        """Requests that have no answer yet."""
        return len(self._running)

    async def drain(self) -> None:
        """Take nothing new and wait until all has its answer. Cancel: safe."""
        self._draining = True
        while self._running:
            self._quiet = trio.Event()
            await self._quiet.wait()

    def reopen(self) -> None:
        """Take requests again after a drain."""
        self._draining = False

    def take(self, incoming: Incoming) -> None:
        """Take a request or a notice that concerns one; never blocks, never raises for what came in."""
        frame = incoming.frame
        if frame.kind == "notice":
            self._on_notice(incoming)
            return
        rpc_id: RpcId = None if isinstance(frame.id, msgspec.UnsetType) else frame.id
        method = "" if isinstance(frame.method, msgspec.UnsetType) else frame.method
        handler = self._find(method)
        if handler is None:
            data: dict[str, Any] = {
                "reason": "unknown_method",
                "outcome": "not_sent",
                "nearest": sorted(self.handlers)[:5],
            }
            self._refuse(incoming, rpc_id, _contract.E_METHOD_NOT_FOUND, data)
        elif self._draining and not handler.urgent:
            self._refuse(incoming, rpc_id, _contract.E_OFFLINE, {"reason": "offline", "outcome": "not_sent"})
        elif len(self._running) >= self._running_max and not handler.urgent:
            data = {"reason": "too_many_in_flight", "outcome": "not_sent", "retry_after": _BUSY_RETRY_S}
            self._refuse(incoming, rpc_id, _contract.E_OVERLOADED, data)
        else:
            call = Call(rpc_id, method, frames.object_of(frame.meta), self._progress(incoming.generation, rpc_id))
            scope = trio.CancelScope()
            self._running[incoming.generation, rpc_id] = scope, call
            self._nursery.start_soon(self._answer, incoming, handler, call, scope)

    def _find(self, method: str) -> Handler | None:
        return self.handlers.get(method) or self.handlers.get(method.partition(".")[2])

    def _refuse(self, incoming: Incoming, rpc_id: RpcId, code: int, data: dict[str, Any]) -> None:
        self.refused += 1
        self._outlet.post(frames.error(rpc_id, code, _contract.ERROR_TEXT[code], data), incoming.generation)

    def _on_notice(self, incoming: Incoming) -> None:
        params = frames.object_of(incoming.frame.params)
        rpc_id = params.get("id")
        known = self._running.get((incoming.generation, rpc_id)) if isinstance(rpc_id, int | float | str) else None
        if known is None:
            return
        if incoming.frame.method == "$/cancelRequest":
            known[0].cancel()
        elif incoming.frame.method == "$/credit":
            known[1].add_credit(params.get("n"))

    def _progress(self, generation: int, rpc_id: RpcId) -> Callable[[str], Awaitable[None]]:
        async def send(value: str) -> None:
            await self._outlet.room()
            params = f'{{"id":{frames.encode(rpc_id)},"value":{value}}}'
            self._outlet.post(frames.notification("$/progress", params), generation)

        return send

    async def _answer(self, incoming: Incoming, handler: Handler, call: Call, scope: trio.CancelScope) -> None:
        text = frames.error(call.id, _contract.E_CANCELLED, _contract.ERROR_TEXT[_contract.E_CANCELLED], _CANCELLED)
        try:
            with scope:
                if handler.urgent:
                    text = await self._run(incoming, handler, call)
                else:
                    async with self._slots:
                        text = await self._run(incoming, handler, call)
        finally:
            self._running.pop((incoming.generation, call.id), None)
            if not self._running:
                self._quiet.set()
        self._outlet.post(text, incoming.generation)

    async def _run(self, incoming: Incoming, handler: Handler, call: Call) -> str:
        """Run one handler and return its answer's frame."""
        try:
            arguments = handler.signature.read(incoming.frame.params)
        except BadParams as bad:
            data = {"reason": "invalid_params", "outcome": "not_sent", "field": bad.field}
            return frames.error(call.id, _contract.E_INVALID_PARAMS, f"invalid params: {bad.why}", data)
        try:
            value = await self._invoke(handler, call, arguments)
        except Refused as refused:
            return frames.error(call.id, refused.code, refused.message, refused.data)
        except Exception as error:
            return self._blame(handler, call, error)
        try:
            text = frames.result(call.id, frames.encode(value))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            return self._blame(handler, call, error, outcome="done")
        if len(text) * 4 > self._outlet.message_bytes_max and len(text.encode()) > self._outlet.message_bytes_max:
            message = f"the result is larger than a message may be ({self._outlet.message_bytes_max} bytes)"
            return frames.error(call.id, _contract.E_INTERNAL_ERROR, message, {"reason": "limit", "outcome": "done"})
        return text

    async def _invoke(self, handler: Handler, call: Call, arguments: dict[str, Any]) -> Any:
        signature = handler.signature
        arguments |= {name: call if kind is Call else self._inject[kind] for name, kind in signature.injected.items()}
        first = [arguments.pop(name) for name in signature.positional_only if name in arguments]
        function = handler.function
        if inspect.isasyncgenfunction(function):
            return await _run_through(function(*first, **arguments), call)
        if inspect.iscoroutinefunction(function):
            return await function(*first, **arguments)
        value = await self._run_sync(lambda: function(*first, **arguments), self._threads)
        if isinstance(value, Generator):
            return await _run_through(self._stepwise(value), call)
        return await value if inspect.isawaitable(value) else value

    async def _stepwise(self, values: Generator[Any, None, Any]) -> AsyncGenerator[Any, None]:
        """Run a plain generator, each step in a worker thread."""
        while True:
            value = await self._run_sync(lambda: next(values, _NO_MORE), self._threads)
            if value is _NO_MORE:
                return
            yield value

    def _blame(self, handler: Handler, call: Call, error: Exception, *, outcome: str = "unknown") -> str:
        """Log a handler's own fault and return the answer, which tells strangers no more than its kind."""
        at = where_it_failed(error)
        log.say(
            logging.ERROR, f"method {handler.name} failed: {type(error).__name__}: {error}", at=at, caller=call.caller
        )
        data: dict[str, Any] = {"reason": "bug", "outcome": outcome, "type": type(error).__name__}
        if isinstance(error, CallError):
            data["cause"] = {"code": error.code, "message": error.message, "method": error.method}
        text = f"{handler.name} failed: {type(error).__name__}"
        return frames.error(call.id, _contract.E_INTERNAL_ERROR, text, data)


_NO_MORE: Final = object()
_CANCELLED: Final = {"reason": "cancelled", "outcome": "unknown"}


async def _run_through(values: AsyncGenerator[Any, None], call: Call) -> dict[str, int]:
    """Send each value as progress, held back by the caller's credit; the result says how many there were."""
    sent = 0
    try:
        async for value in values:
            await call.progress(value)
            sent += 1
    finally:
        await values.aclose()
    return {"yielded": sent}
