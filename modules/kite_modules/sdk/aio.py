"""Kite for asyncio authors: the same `Module`, its handlers on the author's own loop.

    from kite_modules.sdk.aio import Module

    module = Module("resize")

    @module.method
    async def thumbnail(path: str, width: int = 200) -> str: ...   # asyncio inside

    async def main():
        async with module.connected() as kite:
            await kite.call("backup.run", {"full": True}, timeout=60)

    asyncio.run(main())        # or module.run()

The connection runs on trio in a thread of its own; what crosses is carried by `bridge`. Cancelling a task cancels the
call, cancelling a call cancels the handler's task. Source: spec 30-clients §2.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import trio

from kite_modules.sdk import client, log, module
from kite_modules.sdk.bridge import STOP_S, Background, EndOfItems, Engine, Pull
from kite_modules.sdk.errors import NotConnected
from kite_modules.sdk.settings import Settings

_LAST_WORDS_S = 5.0  # how long a cancelled handler may take to end


AioTask = Callable[["Kite"], Coroutine[Any, Any, None]]


class Kite:
    """The connection, for asyncio. Raises what `sdk.client.Kite` raises; everything is safe to cancel."""

    def __init__(self, engine: Engine, kite: client.Kite) -> None:
        self._engine = engine
        self._kite = kite
        self.stopping = asyncio.Event()
        """Set as soon as this client is told to end, or ends by itself."""

    @property
    def module_id(self) -> str:
        """Who this client is to the kernel."""
        return self._kite.module_id

    @property
    def state(self) -> str:
        """Where the session stands, as a word."""
        return self._kite.state.value

    @property
    def options(self) -> Any:
        """What kite.toml gives this module."""
        return self._kite.options

    async def call(self, method: str, params: Any = None, **more: Any) -> Any:
        """Call a method and return its result; `timeout`, `key`, `wait`, `on_progress`, `result`: see `client.Kite`."""
        return await self._do(functools.partial(self._kite.call, method, params, **more))

    async def publish(self, event: str, data: Any = None, **more: Any) -> int | None:
        """Publish an event; `away`, `key`, `retain`, `exclude_self` as in `client.Kite`."""
        delivered: int | None = await self._do(functools.partial(self._kite.publish, event, data, **more))
        return delivered

    @asynccontextmanager
    async def subscribe(self, *patterns: str, **more: Any) -> AsyncGenerator[AsyncIterator[Any], None]:
        """Hear events for the time of the block: `async with kite.subscribe("orders.>") as events`."""
        async with self._pulled(functools.partial(self._kite.subscribe, *patterns, **more)) as items:
            yield items

    @asynccontextmanager
    async def iterate(self, method: str, params: Any = None, **more: Any) -> AsyncGenerator[AsyncIterator[Any], None]:
        """Call a method that yields values: `async with kite.iterate("scan.files") as values`, then `async for`."""
        async with self._pulled(functools.partial(self._kite.iterate, method, params, **more)) as items:
            yield items

    @asynccontextmanager
    async def _pulled(self, enter: Callable[[], Any]) -> AsyncGenerator[AsyncIterator[Any], None]:
        pull = Pull(self._engine, enter)
        await asyncio.wrap_future(pull.open())
        try:
            yield _items(pull)
        finally:
            await asyncio.wait([asyncio.wrap_future(pull.close())])

    async def _do(self, function: Callable[[], Awaitable[Any]]) -> Any:
        return await asyncio.wrap_future(self._engine.submit(function))


async def _items(pull: Pull) -> AsyncIterator[Any]:
    while True:
        try:
            yield await asyncio.wrap_future(pull.next())
        except EndOfItems:
            return


class Module(module.Module):
    """`sdk.Module` for asyncio: `async def` handlers, listeners and tasks run on the loop that entered `connected`."""

    injectable = (*module.Module.injectable, Kite)

    def __init__(self, name: str = "", **more: Any) -> None:
        super().__init__(name, **more)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._aio_kite: Kite | None = None
        self._aio_tasks: list[AioTask] = []

    @property
    def kite(self) -> Kite:  # type: ignore[override]  # the same, for asyncio
        """The connection of this module. Raises: NotConnected outside `connected` and `run`."""
        if self._aio_kite is None:
            raise NotConnected("the module is not running")
        return self._aio_kite

    # ------------------------------------------------------------------ handlers cross over to the author's loop

    def _bridged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(function):
            return self._bridged_generator(function)
        if not inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            return await self._on_loop(function(*args, **kwargs))

        return run

    def _bridged_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            values = function(*args, **kwargs)
            try:
                while True:
                    try:
                        yield await self._on_loop(_next_of(values))
                    except EndOfItems:
                        return
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(_LAST_WORDS_S):
                    await self._on_loop(values.aclose())

        return run

    async def _on_loop(self, coroutine: Any) -> Any:
        """Run a coroutine on the author's loop, from the trio side; a cancel reaches it, and waits for its end."""
        assert self._loop is not None
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)

        def finished(_: object) -> None:
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                return

        future.add_done_callback(finished)
        try:
            await done.wait()
        except trio.Cancelled:
            future.cancel()
            raise
        return future.result()

    def _add(self, name: str, function: Callable[..., Any]) -> None:
        super()._add(name, self._bridged(function))

    def on(self, *patterns: str, concurrency: int = 1) -> Callable[[Any], Any]:
        """Call a function for each event of these patterns; in order, unless `concurrency` is above 1."""
        add = super().on(*patterns, concurrency=concurrency)

        def bridged(function: Any) -> Any:
            add(self._bridged(function))
            return function

        return bridged

    def on_shutdown(self, function: Any) -> Any:
        """Call a function (with the reason) when the module is told to end, before its wire is closed."""
        super().on_shutdown(self._bridged(function))
        return function

    def task(self, function: AioTask) -> AioTask:  # type: ignore[override]
        """Run an `async def function(kite)` on the loop for as long as the module is connected by `run`."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError("a task is an async def with one parameter, the Kite")
        self._aio_tasks.append(function)
        return function

    def _injections(self, engine: Engine | None, kite: client.Kite) -> dict[type, Any]:
        assert engine is not None
        assert self._loop is not None
        self._aio_kite = Kite(engine, kite)
        told = functools.partial(_soon, self._loop, self._aio_kite.stopping.set)
        engine.watch(kite.stopping, told)
        return {**super()._injections(engine, kite), Kite: self._aio_kite}

    # ------------------------------------------------------------------ connection

    @asynccontextmanager
    async def connected(  # type: ignore[override]  # the same, on asyncio
        self, settings: Settings | None = None, **more: Any
    ) -> AsyncGenerator[Kite, None]:
        """Connect, register, serve, for the time of the block; handlers run on the loop of the one who entered.

        The block is cancelled, and ends without an error, when the module is told to end. Raises: NotConnected when a
        final close code ended the session.
        """
        self._loop = loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        ended: list[BaseException | None] = []

        def on_end(error: BaseException | None) -> None:
            ended.append(error)
            _soon(loop, task.cancel)

        background = Background(lambda engine: self._connect(settings, engine, **more), on_end)
        try:
            await asyncio.wrap_future(background.ready)
            yield self.kite
        except asyncio.CancelledError:
            if not ended or task.uncancel() > 0:
                raise
        finally:
            background.stop()
            await asyncio.shield(asyncio.wait([asyncio.wrap_future(background.ended)], timeout=STOP_S))
            self._aio_kite = None
        if ended and ended[0] is not None:
            raise ended[0]

    def run(self, main: AioTask | None = None) -> NoReturn:  # type: ignore[override]
        """Run this module as a process on a new asyncio loop until it is told to end; never returns."""
        log.install()
        sys.exit(asyncio.run(self._run_on_loop(main)))

    async def _run_on_loop(self, main: AioTask | None) -> int:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        try:
            async with self.connected() as kite, asyncio.TaskGroup() as group:
                tasks = [group.create_task(task(kite)) for task in self._aio_tasks]
                ends: list[asyncio.Task[Any]] = [asyncio.create_task(told.wait())]
                if main is not None:
                    ends.append(asyncio.create_task(main(kite)))
                done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in (*tasks, *ends):
                    if task not in done:
                        task.cancel()
                for task in done:
                    task.result()
        except Exception as error:
            return module.exit_code_of(error)
        return 0


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a plain function on a loop, from another thread; nothing happens when it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


async def _next_of(values: AsyncGenerator[Any, None]) -> Any:
    try:
        return await anext(values)
    except StopAsyncIteration:
        raise EndOfItems from None
