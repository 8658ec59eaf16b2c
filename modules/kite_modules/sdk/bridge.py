"""Carries calls between trio and other worlds: a plain thread, another event loop.

`Engine` belongs to a running trio loop; from any other thread `submit` starts an async function there and returns a
`concurrent.futures.Future`, whose cancellation reaches the function as a cancel scope. `Pull` reads an asynchronous
iterator from outside, one item a request, so that nothing is read ahead. Source: spec 30-clients §2 (thin adapters).
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeVar

import trio

from kite_modules.sdk.errors import NotConnected

T = TypeVar("T")
STOP_S: Final = 10.0
"""How long an adapter waits for the connection's own end: it bounds itself well below."""


class Engine:
    """The door into one trio loop. Make it inside the loop, with a nursery that outlives the work."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._nursery = nursery
        self._closed = False

    def submit(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Start an async function in the loop, from any other thread; cancelling the future cancels it."""
        future: Future[T] = Future()
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    value = await function(*args)
                    with suppress(InvalidStateError):
                        future.set_result(value)
            except Exception as error:
                with suppress(InvalidStateError):
                    future.set_exception(error)
            finally:
                future.cancel()  # nothing was set: the loop is ending

        def start() -> None:
            if self._closed:
                future.set_exception(NotConnected("the connection was closed"))
            else:
                self._nursery.start_soon(run)

        def finished(done: Future[T]) -> None:
            if done.cancelled():
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(scope.cancel)

        future.add_done_callback(finished)
        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            future.set_exception(NotConnected("the connection was closed"))
        return future

    def soon(self, function: Callable[[], object]) -> None:
        """Run a plain function in the loop, soon; nothing happens when the loop has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    def watch(self, event: trio.Event, told: Callable[[], object]) -> None:
        """Call a plain function once an event of the loop is set. From inside the loop."""

        async def wait() -> None:
            await event.wait()
            told()

        self._nursery.start_soon(wait)

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True


class Pull:
    """An asynchronous iterator of the loop, read from outside."""

    def __init__(self, engine: Engine, enter: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._engine = engine
        self._enter = enter
        self._end = trio.CancelScope()
        self._send, self._receive = trio.open_memory_channel[Any](0)
        self.opened: Any = None
        self._running: Future[None] | None = None
        self._started: Future[Any] = Future()

    def open(self) -> Future[Any]:
        """Enter the context; the future has what it gave."""
        self._running = self._engine.submit(self._run)
        self._running.add_done_callback(self._failed_to_start)
        return self._started

    def next(self) -> Future[Any]:
        """Return the next item; ends with StopAsyncIteration as an exception of the future."""
        return self._engine.submit(self._next)

    def close(self) -> Future[None]:
        """Leave the context."""
        self._engine.soon(self._end.cancel)
        assert self._running is not None
        return self._running

    def _failed_to_start(self, running: Future[None]) -> None:
        if self._started.done():
            return
        error = None if running.cancelled() else running.exception()
        self._started.set_exception(error or NotConnected("the connection was closed"))

    async def _run(self) -> None:
        with self._end:
            async with self._send, self._enter() as items:
                self.opened = items
                self._started.set_result(items)
                async for item in items:
                    await self._send.send(item)

    async def _next(self) -> Any:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            pass
        assert self._running is not None
        if self._running.done() and not self._running.cancelled():
            error = self._running.exception()
            if error is not None:
                raise error
        raise _End


class _EndOfItems(Exception):
    """The iterator has ended (StopIteration may not travel through a future)."""


_End = _EndOfItems()
EndOfItems = _EndOfItems


class Background(Generic[T]):
    """A trio loop in a thread of its own, for as long as a context lasts.

    `ready` has what the context gave, or what entering raised; `ended` is done when the thread is over. `on_end` is
    called in that thread when the context ended without being asked to, with what it raised.
    """

    def __init__(
        self,
        body: Callable[[Engine], AbstractAsyncContextManager[T]],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.ready: Future[T] = Future()
        self.ended: Future[None] = Future()
        self._body = body
        self._on_end = on_end
        self._asked = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._leave: trio.Event | None = None
        threading.Thread(target=self._run, name="kite", daemon=True).start()

    def stop(self) -> None:
        """Ask it to leave the context; `ended` tells when it has."""
        self._asked.set()
        token = self._token
        if token is not None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._stop)

    def _stop(self) -> None:
        if self._leave is not None:
            self._leave.set()
        else:
            self._scope.cancel()  # still connecting

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as error:
            failure = _bare(error)
        with suppress(InvalidStateError):
            self.ready.set_exception(failure or NotConnected("the connection was closed"))
        if not self._asked.is_set():
            self._on_end(failure)
        self.ended.set_result(None)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            if self._asked.is_set():
                self._scope.cancel()
            async with open_engine() as engine, self._body(engine) as given:
                self._leave = trio.Event()
                self.ready.set_result(given)
                await self._leave.wait()
                engine.close()


@asynccontextmanager
async def open_engine() -> AsyncGenerator[Engine, None]:
    """Open the door into the running loop for the time of the block."""
    async with trio.open_nursery() as nursery:
        yield Engine(nursery)
        nursery.cancel_scope.cancel()


def _bare(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
