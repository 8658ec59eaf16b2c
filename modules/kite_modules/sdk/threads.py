"""Kite for authors of plain threaded code: the same `Module`, with nothing to await.

    from kite_modules.sdk.threads import Module

    module = Module("resize")

    @module.method
    def thumbnail(path: str, width: int = 200) -> str: ...

    def main(kite):
        print(kite.call("backup.run", {"full": True}, timeout=60))

    module.run(main)

Handlers, listeners and tasks are plain functions, each in a worker thread; `Kite` may be used by any of them at once.
Source: spec 30-clients §2.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn

import trio

from kite_modules.sdk import client, module
from kite_modules.sdk.bridge import STOP_S, Background, EndOfItems, Engine, Pull, open_engine
from kite_modules.sdk.errors import NotConnected
from kite_modules.sdk.settings import Settings


class Kite:
    """The connection, for threads: every method blocks until it is done. Raises what `sdk.client.Kite` raises."""

    def __init__(self, engine: Engine, kite: client.Kite) -> None:
        self._engine = engine
        self._kite = kite
        self.stopping = threading.Event()
        """Set as soon as this client is told to end, or ends by itself: a loop of your own waits on it."""

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

    def call(self, method: str, params: Any = None, **more: Any) -> Any:
        """Call a method and return its result; `timeout`, `key`, `wait`, `on_progress`, `result`: see `client.Kite`."""
        return self._do(functools.partial(self._kite.call, method, params, **more))

    def publish(self, event: str, data: Any = None, **more: Any) -> int | None:
        """Publish an event; `away`, `key`, `retain`, `exclude_self` as in `client.Kite`."""
        delivered: int | None = self._do(functools.partial(self._kite.publish, event, data, **more))
        return delivered

    def retry_now(self) -> bool:
        """Come back at once instead of at the due time."""

        async def retry() -> bool:
            await trio.lowlevel.checkpoint()
            return self._kite.retry_now()

        return bool(self._do(retry))

    @contextmanager
    def subscribe(self, *patterns: str, **more: Any) -> Generator[Iterator[Any], None, None]:
        """Hear events for the time of the block: `with kite.subscribe("orders.>") as events: for event in events`."""
        with self._pulled(functools.partial(self._kite.subscribe, *patterns, **more)) as items:
            yield items

    @contextmanager
    def iterate(self, method: str, params: Any = None, **more: Any) -> Generator[Iterator[Any], None, None]:
        """Call a method that yields values: `with kite.iterate("scan.files") as values: for value in values`."""
        with self._pulled(functools.partial(self._kite.iterate, method, params, **more)) as items:
            yield items

    @contextmanager
    def _pulled(self, enter: Callable[[], Any]) -> Generator[Iterator[Any], None, None]:
        pull = Pull(self._engine, enter)
        pull.open().result()
        try:
            yield _items(pull)
        finally:
            _wait_quietly(pull.close())

    def _do(self, function: Callable[[], Any]) -> Any:
        future = self._engine.submit(function)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl+C while waiting: the callee is told
            raise


def _items(pull: Pull) -> Iterator[Any]:
    while True:
        try:
            yield pull.next().result()
        except EndOfItems:
            return


def _wait_quietly(future: Future[None]) -> None:
    """Wait for an end whose failure was told by the last item already."""
    try:
        future.result()
    except Exception:
        return


class Module(module.Module):
    """`sdk.Module` for plain threads."""

    injectable = (*module.Module.injectable, Kite)

    def __init__(self, name: str = "", **more: Any) -> None:
        super().__init__(name, **more)
        self._threads_kite: Kite | None = None

    @property
    def kite(self) -> Kite:  # type: ignore[override]  # the same, for threads
        """The connection of this module. Raises: NotConnected outside `connected` and `run`."""
        if self._threads_kite is None:
            raise NotConnected("the module is not running")
        return self._threads_kite

    def task(self, function: Callable[[Kite], None]) -> Callable[[Kite], None]:  # type: ignore[override]
        """Run `function(kite)` in a thread for as long as the module is connected; look at `kite.stopping`."""
        self._tasks.append(self._in_thread(function))
        return function

    def _in_thread(self, function: Callable[[Kite], None]) -> module.Task:
        @functools.wraps(function)
        async def run(kite: client.Kite) -> None:
            await trio.to_thread.run_sync(function, self.kite, abandon_on_cancel=True)

        return run

    def _injections(self, engine: Engine | None, kite: client.Kite) -> dict[type, Any]:
        assert engine is not None
        self._threads_kite = Kite(engine, kite)
        engine.watch(kite.stopping, self._threads_kite.stopping.set)
        return {**super()._injections(engine, kite), Kite: self._threads_kite}

    @contextmanager
    def connected(  # type: ignore[override]  # a plain context manager here
        self, settings: Settings | None = None, **more: Any
    ) -> Generator[Kite, None, None]:
        """Connect in a thread of its own, register, serve, for the time of the block.

        When the module is told to end, `kite.stopping` is set and calls raise NotConnected. Raises at the end of the
        block: NotConnected when a final close code ended the session.
        """
        ended: list[BaseException | None] = []
        background = Background(lambda engine: self._connect(settings, engine, **more), ended.append)
        try:
            background.ready.result()
            yield self.kite
        finally:
            background.stop()
            background.ended.result(STOP_S)
            self._threads_kite = None
        if ended and ended[0] is not None:
            raise ended[0]

    def run(self, main: Callable[[Kite], None] | None = None) -> NoReturn:  # type: ignore[override]
        """Run this module as a process until it is told to end, `main(kite)` in a thread; never returns."""
        super().run(None if main is None else self._in_thread(main))

    @asynccontextmanager
    async def _connected_for_run(self) -> AsyncGenerator[client.Kite, None]:
        async with open_engine() as engine, self._connect(None, engine) as kite:
            yield kite
