"""A wire that can be cut, delayed or torn: a small TCP relay between one client and the kernel.

Only what goes through it is hurt; nobody else's connection is touched. Source: spec 00 §34 (fault proxies on trio).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

PIECE_BYTES: Final = 65_536


class Proxy:
    """Relays connections to one address. `delay_s` holds every piece back, `tear` ends a wire in mid frame."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.delay_s = 0.0
        self.refuse = False
        self.port = 0
        self.connections = 0
        self._scopes: set[trio.CancelScope] = set()
        self._tear = False

    async def run(self, *, task_status: trio.TaskStatus[int]) -> None:
        """Listen on a free loopback port until cancelled; reports the port."""
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, self._relay, 0, host="127.0.0.1"))
            self.port = int(listeners[0].socket.getsockname()[1])
            task_status.started(self.port)

    def cut(self) -> None:
        """End every wire at once, without a word."""
        for scope in tuple(self._scopes):
            scope.cancel()

    def tear(self) -> None:
        """End every wire in the middle of the next piece that the kernel sends."""
        self._tear = True

    async def _relay(self, client: trio.SocketStream) -> None:
        self.connections += 1
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self.refuse:
                    server = await trio.open_tcp_stream(self._host, self._port)
                    async with client, server, trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, client, server, scope, False)
                        nursery.start_soon(self._pump, server, client, scope, True)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # either side went away: so does the relay
            finally:
                self._scopes.discard(scope)
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(client)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope, from_kernel: bool
    ) -> None:
        while data := await source.receive_some(PIECE_BYTES):
            if self.delay_s > 0:
                await trio.sleep(self.delay_s)
            if from_kernel and self._tear and len(data) > 2:
                self._tear = False
                await sink.send_all(data[: len(data) // 2])
                break
            await sink.send_all(data)
        scope.cancel()
