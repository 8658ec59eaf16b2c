"""The face of the SDK: `Module`. Decorate functions, call `run`. Source: spec 30-clients §2, 05-surface §4 and §8."""

from __future__ import annotations

import inspect
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, overload

import msgspec
import trio

from kite_modules.sdk import log, stacks
from kite_modules.sdk.blame import where_it_failed
from kite_modules.sdk.call import Call
from kite_modules.sdk.client import Kite
from kite_modules.sdk.errors import KiteError, NotConnected, SettingsError
from kite_modules.sdk.events import Event, Subscription
from kite_modules.sdk.handlers import CONCURRENCY, Handler, RunSync, in_thread
from kite_modules.sdk.reconnect import INTERNAL, Policy
from kite_modules.sdk.runtime import Listener, Runtime
from kite_modules.sdk.settings import Settings, from_environment
from kite_modules.sdk.transport import Connector

if TYPE_CHECKING:
    from kite_modules.sdk.bridge import Engine

EX_FAILED: Final = 1
F = TypeVar("F", bound=Callable[..., Any])
Task = Callable[[Kite], Awaitable[None]]


class Module:
    """One module: its methods, listeners and tasks, and the connection that serves them.

    Args: `name` is what the module calls itself in logs (its identity is the token's); `service` offers its methods
    under a shared name too; `options` a class that the options of kite.toml are checked against; `concurrency` how many
    handlers run at once; `policy` how it comes back.
    """

    injectable: ClassVar[tuple[type, ...]] = (Call, Kite)
    """Annotations of parameters that the SDK fills in itself."""

    def __init__(
        self,
        name: str = "",
        *,
        service: str | None = None,
        version: str = "",
        options: type[Any] | None = None,
        concurrency: int = CONCURRENCY,
        policy: Policy = INTERNAL,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        self.name = name
        self.service = service
        self.version = version
        self.concurrency = concurrency
        self.policy = policy
        self._options = options
        self._methods: dict[str, tuple[Callable[..., Any], bool]] = {}
        self._listeners: list[Listener] = []
        self._tasks: list[Task] = []
        self._farewells: list[Callable[..., Any]] = []
        self._kite: Kite | None = None

    # ------------------------------------------------------------------ what authors decorate

    @overload
    def method(self, function: F, /) -> F: ...
    @overload
    def method(self, function: None = None, /, *, name: str | None = None) -> Callable[[F], F]: ...
    def method(self, function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
        """Offer a function as a method: its hints are its checks, its docstring its doc.

        `async def` runs on trio, a plain `def` in a worker thread, an async generator sends each value as progress.
        Raises: TypeError when a hint is no type that JSON can carry.
        """
        if function is not None and not callable(function):
            raise TypeError("method takes a function; give a name as name=…")

        def add(function: F) -> F:
            self._add(name or function.__name__, function)
            return function

        return add if function is None else add(function)

    def health(self, function: F) -> F:
        """Replace the default health answer; return `{"status": "ok" | "degraded" | "failing", "why": …}`."""
        self._add("health", function)
        return function

    def on(self, *patterns: str, concurrency: int = 1) -> Callable[[F], F]:
        """Call a function for each event of these patterns; in order, unless `concurrency` is above 1."""
        if not patterns:
            raise ValueError("on needs at least one pattern")
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        Subscription(patterns)  # refuses a bad pattern where it is written

        def add(function: F) -> F:
            self._listeners.append(Listener(patterns, function, concurrency))
            return function

        return add

    def task(self, function: F) -> F:
        """Run an `async def function(kite)` for as long as the module is connected; its end alone ends nothing."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError("a task is an async def with one parameter, the Kite")
        self._tasks.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Call a function (with the reason) when the module is told to end, before its wire is closed."""
        self._farewells.append(function)
        return function

    def _add(self, name: str, function: Callable[..., Any]) -> None:
        if not name or name != name.strip() or any(ord(c) < 32 for c in name):
            raise ValueError(f"{name!r} is no method name")
        urgent = name == "health"
        with suppress(NameError):  # a hint that is defined further down: read again at the start
            Handler.read(name, function, self.injectable, urgent=urgent)
        self._methods[name] = (function, urgent)

    # ------------------------------------------------------------------ connection

    @property
    def kite(self) -> Kite:
        """The connection of this module, for handlers. Raises: NotConnected outside `connected` and `run`."""
        if self._kite is None:
            raise NotConnected("the module is not running")
        return self._kite

    @asynccontextmanager
    async def connected(
        self,
        settings: Settings | None = None,
        *,
        connect: Connector | None = None,
        run_sync: RunSync = in_thread,
        chance: Callable[[], float] = random.random,
    ) -> AsyncGenerator[Kite, None]:
        """Connect, subscribe, register, publish `module.ready`, and serve for the time of the block.

        A nursery of its own: everything ends with the block, and the block ends (without an error) when the module is
        told to end. Raises: NotConnected when a final close code ends it; SettingsError when the environment lacks
        something. `connect`, `run_sync` and `chance` are seams for tests.
        """
        connecting = self._connect(settings, None, connect=connect, run_sync=run_sync, chance=chance)
        async with connecting as kite:
            yield kite

    @asynccontextmanager
    async def _connect(
        self,
        settings: Settings | None,
        engine: Engine | None,
        *,
        connect: Connector | None = None,
        run_sync: RunSync = in_thread,
        chance: Callable[[], float] = random.random,
    ) -> AsyncGenerator[Kite, None]:
        """Do what `connected` says; `engine` is the door for adapters to other loops and threads."""
        settings = settings or from_environment()
        runtime = Runtime(
            settings,
            handlers=self._handlers(),
            listeners=self._listeners,
            farewells=self._farewells,
            registration={"service": self.service, "version": self.version},
            policy=self.policy,
            concurrency=self.concurrency,
            connect=connect,
            run_sync=run_sync,
            chance=chance,
        )
        runtime.kite.options = self._read_options(settings)
        runtime.inject.update(self._injections(engine, runtime.kite))
        async with runtime.running() as kite:
            self._kite = kite
            try:
                yield kite
            finally:
                self._kite = None

    def _injections(self, engine: Engine | None, kite: Kite) -> dict[type, Any]:
        """Return what parameters of these annotations are filled with."""
        return {Kite: kite}

    def described(self) -> list[dict[str, Any]]:
        """Return what this module registers: names, JSON Schemas, docs. Raises: TypeError for hints that are none."""
        return [handler.described() for handler in self._handlers()]

    def _handlers(self) -> list[Handler]:
        offered = {"health": (_healthy, True), **self._methods}
        handlers = []
        for name, (function, urgent) in offered.items():
            try:
                handlers.append(Handler.read(name, function, self.injectable, urgent=urgent))
            except NameError as error:
                raise TypeError(f"{name}: a hint can't be resolved, {error}: define it at the module's top") from None
        return handlers

    def _read_options(self, settings: Settings) -> Any:
        if self._options is None:
            return settings.options
        try:
            return msgspec.convert(dict(settings.options), self._options)
        except msgspec.ValidationError as error:
            name = settings.module_id or self.name or "NAME"
            raise SettingsError(f"[module.{name}.options]: {error}", exit_code=78) from None

    # ------------------------------------------------------------------ running as a process

    def run(self, main: Task | None = None) -> NoReturn:
        """Run this module as a process until it is told to end; never returns.

        Exit codes: 0 told to end or `main` done · 1 a final close code or a failed task · 77, 78 settings.
        """
        log.install()
        stacks.install(os.environ.get("KITE_STATE_DIR"))
        try:
            code = trio.run(self._run, main)
        except KeyboardInterrupt:
            code = 0
        sys.exit(code)

    async def _run(self, main: Task | None) -> int:
        try:
            async with self._connected_for_run() as kite, trio.open_nursery() as nursery:
                nursery.start_soon(_end_on_signal, kite, nursery.cancel_scope)
                for task in self._tasks:
                    nursery.start_soon(task, kite)
                if main is not None:
                    await main(kite)
                    nursery.cancel_scope.cancel()
                await trio.sleep_forever()
        except Exception as error:
            return exit_code_of(error)
        return 0

    def _connected_for_run(self) -> AbstractAsyncContextManager[Kite]:
        return self._connect(None, None)


def exit_code_of(error: Exception) -> int:
    """Say in one line why a module ends, and return its exit code."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SettingsError):
        log.say(logging.ERROR, str(error))
        return error.exit_code
    if not isinstance(error, NotConnected):  # there the link said why
        what = str(error) if isinstance(error, KiteError) else f"{type(error).__name__}: {error}"
        log.say(logging.ERROR, f"the module ends: {what}", at=where_it_failed(error))
    return EX_FAILED


async def _healthy() -> dict[str, str]:
    """Say that this module runs."""
    return {"status": "ok"}


async def _end_on_signal(kite: Kite, scope: trio.CancelScope) -> None:
    """TERM and Ctrl+C end the module in order, a second one at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if kite.stopping.is_set():
                sys.exit(EX_FAILED)
            kite.stopping.set()
            log.say(logging.INFO, f"ending: {signal.Signals(number).name}")
            scope.cancel()


__all__ = ["Event", "Module"]
