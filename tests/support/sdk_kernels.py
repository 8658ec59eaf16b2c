"""Two kernels that the SDK's scenarios run against: the in-memory hub for authors, and the real kernel in memory.

Both have the same verbs, so that one test proves the SDK and holds the hub to the kernel: `running`, `client`, `cut`,
`restart`, `state`, `shut_down`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import trio
from tests.support.kernel_box import ClientStream, KernelBox

from kite_modules.sdk import Kite, Module, Settings
from kite_modules.sdk.handlers import inline
from kite_modules.sdk.reconnect import INTERNAL
from kite_modules.sdk.runtime import Runtime
from kite_modules.sdk.testing import Hub

URL = "ws://127.0.0.1:7390/ws"


class SdkKernel(Protocol):
    """What a scenario may do to its kernel."""

    def running(self, module: Module, *, name: str) -> Any:
        """Run a module for the time of a block."""

    def client(self, name: str) -> Any:
        """Connect a plain client for the time of a block."""

    def cut(self, name: str) -> None:
        """Cut somebody's wire as a reset does."""

    async def restart(self, *, away_s: float) -> None:
        """Be killed, and come back as another."""

    async def wait_state(self, name: str, state: str) -> None:
        """Wait until a module is in a state."""

    async def shut_down(self, name: str, reason: str) -> None:
        """Tell a module to end."""


class HubKernel:
    """The hub of `kite_modules.sdk.testing`."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.running = hub.running
        self.client = hub.client
        self.cut = hub.cut

    async def restart(self, *, away_s: float) -> None:
        await self.hub.restart(away_s=away_s)

    async def wait_state(self, name: str, state: str) -> None:
        await self.hub.wait_state(name, state)

    async def shut_down(self, name: str, reason: str) -> None:
        await trio.lowlevel.checkpoint()
        self.hub.shut_down(name, reason)


class BoxKernel:
    """The real kernel over memory streams; module ids a … h, clients are operators."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._box: KernelBox | None = None
        self._end = trio.Event()
        self._streams: dict[str, ClientStream] = {}

    async def start(self) -> None:
        self._end = trio.Event()
        self._box = await self._nursery.start(self._live, self._end)

    async def _live(self, end: trio.Event, *, task_status: trio.TaskStatus[KernelBox]) -> None:
        async with KernelBox() as box:
            task_status.started(box)
            await end.wait()

    def _settings(self, name: str, role: str) -> Settings:
        token = f"token-{name}" if role == "module" else "token-o"
        return Settings(url=URL, token=token, module_id=name)

    def _connector(self, name: str) -> Callable[[], Any]:
        async def connect() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            if self._box is None:
                raise ConnectionRefusedError(111, "Connection refused")
            stream = self._box.open_pipe()
            self._streams[name] = stream
            return stream

        return connect

    @asynccontextmanager
    async def running(self, module: Module, *, name: str) -> AsyncGenerator[Kite, None]:
        async with module.connected(
            self._settings(name, "module"), connect=self._connector(name), run_sync=inline, chance=lambda: 0.0
        ) as kite:
            yield kite

    @asynccontextmanager
    async def client(self, name: str) -> AsyncGenerator[Kite, None]:
        runtime = Runtime(
            self._settings(name, "operator"), policy=INTERNAL, chance=random.random, connect=self._connector(name)
        )
        async with runtime.running() as kite:
            yield kite

    def cut(self, name: str) -> None:
        stream = self._streams[name]
        for way in (stream.incoming, stream.outgoing):
            way.broken = True
            way.data.clear()
            way.wake()

    async def restart(self, *, away_s: float) -> None:
        self._box = None
        for name in list(self._streams):
            self.cut(name)
        self._end.set()
        await trio.sleep(away_s)
        await self.start()

    async def wait_state(self, name: str, state: str) -> None:
        async with self.client("watcher") as kite:
            with trio.fail_after(120):
                while True:
                    rows = (await kite.call("registry.list_modules"))["modules"]
                    if {row["module_id"]: row["state"] for row in rows}.get(name, "offline") == state:
                        return
                    await trio.sleep(0.05)

    async def shut_down(self, name: str, reason: str) -> None:
        async with self.client("stopper") as kite:
            await kite.call("kernel.shutdown_module", {"module_id": name, "reason": reason, "deadline_s": 5})


@asynccontextmanager
async def open_kernel(kind: str) -> AsyncGenerator[SdkKernel, None]:
    """Open one of the two for the time of a block; a failing block fails bare, in no group."""
    failure: Exception | None = None
    if kind == "hub":
        async with Hub() as hub:
            yield HubKernel(hub)
        return
    async with trio.open_nursery() as nursery:
        kernel = BoxKernel(nursery)
        await kernel.start()
        try:
            yield kernel
        except Exception as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
