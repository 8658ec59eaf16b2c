"""The relay's own accept loop around anycorn's protocol engine: one bad client ends one connection, nothing else.

anycorn's stock server is not used: measured, a descriptor shortage, a stalled reader or a broken frame of one client
ends or hangs all of it, and a message over the limit is kept in memory while it goes on arriving. Here each connection
has a task, a guard, and a deadline for each handshake and each send. Source: spec 00 §4, §5, §32.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import h11
import trio
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.events import Closed, RawData, Updated
from anycorn.protocol.events import Request
from anycorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from anycorn.protocol.http_stream import HTTPStream
from anycorn.task_group import TaskGroup
from anycorn.typing import ConnectionState
from anycorn.worker_context import WorkerContext

from kite_modules.relay.strict_socket import StrictSocket
from kite_modules.sdk import log
from kite_modules.sdk.blame import where_it_failed

Asgi = Callable[[Any, Any, Any], Awaitable[None]]

LINES_MAX: Final = 1000  # open TCP connections: below the usual limit of 1024 descriptors
HANDSHAKE_S: Final = 10.0  # TLS: a phone on a slow network needs a few round trips
HEAD_S: Final = 10.0  # from the first byte awaited to a whole request; also how long an idle connection is kept
SEND_S: Final = 15.0  # one write; a browser that takes nothing for so long is gone or an attack
CLOSE_S: Final = 2.0
READ_BYTES: Final = 65536
_ENDED: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, OSError)


class Server:
    """Serves one ASGI app on one listening socket. `tls` None = plain."""

    def __init__(self, app: Asgi, bound: socket.socket, tls: ssl.SSLContext | None, *, message_bytes_max: int) -> None:
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        self.app = ASGIWrapper(app)
        self.tls = tls
        self.config = Config()
        self.config.accesslog = None
        self.config.errorlog = None
        self.config.include_server_header = False
        self.config.websocket_max_message_size = message_bytes_max
        self.config.websocket_permessage_deflate = False
        self.context = WorkerContext(None)
        self.lines = 0
        self.refused = 0
        self._said_at = float("-inf")

    async def run(self) -> None:
        """Accept until cancelled. Cancel: open connections end with it."""
        async with trio.open_nursery() as nursery, self._listener:
            while True:
                try:
                    stream = await self._listener.accept()
                except OSError as error:  # no descriptors left, or the client was gone before it was taken
                    self._say(f"a connection could not be taken: {error.strerror}")
                    await trio.sleep(0.1)
                    continue
                if self.lines >= LINES_MAX:
                    self.refused += 1
                    self._say("too many connections; new ones are refused")
                    await trio.aclose_forcefully(stream)
                    continue
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.lines += 1
        try:
            client = _address(stream.socket.getpeername())
            server = _address(stream.socket.getsockname())
            line: trio.abc.Stream | None = stream if self.tls is None else await self._handshake(stream, self.tls)
            if line is not None:
                await Line(self, line, client, server).run()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the world: a wire that ended in the middle of something
        except Exception as error:  # a fault in handling: of this connection alone
            self._say(f"a connection ended by a fault: {type(_leaf(error)).__name__}", at=where_it_failed(_leaf(error)))
        finally:
            self.lines -= 1
            await trio.aclose_forcefully(stream)

    async def _handshake(self, stream: trio.SocketStream, tls: ssl.SSLContext) -> trio.abc.Stream | None:
        """Return the encrypted stream, None for whoever does not speak TLS: no answer, so no secret is ever lured."""
        line = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        with trio.move_on_after(HANDSHAKE_S), suppress(trio.BrokenResourceError, ssl.SSLError, OSError):
            await line.do_handshake()
            return line
        return None

    def _say(self, text: str, **more: object) -> None:
        """Log it, at most once in ten seconds."""
        if trio.current_time() - self._said_at >= 10.0:
            self._said_at = trio.current_time()
            log.say(logging.WARNING, text, refused=self.refused, **more)


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1]))


def _leaf(error: Exception) -> Exception:
    """Return the first cause; its text is never shown: it may hold what a client sent."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


class Line:
    """One TCP connection under anycorn's HTTP/1.1 and WebSocket engine."""

    def __init__(
        self, server: Server, stream: trio.abc.Stream, client: tuple[str, int], local: tuple[str, int]
    ) -> None:
        self._server = server
        self._stream = stream
        self._client = client
        self._local = local
        self._sending = trio.Lock()
        self._idle_at = trio.current_time()
        self._busy = False
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Read until the end of the wire, of patience, or of the conversation."""
        with self._scope:
            async with TaskGroup() as tasks:
                self._protocol = Engine(
                    self._server.app,
                    self._server.config,
                    self._server.context,
                    tasks,
                    ConnectionState({}),
                    self._client,
                    self._local,
                    self._on_event,
                    None,
                )
                tasks.spawn(self._watch_idle)
                await self._read()
                self._busy = True  # what still answers may finish; the app is told of the end
                await self._protocol.handle(Closed())
                self._scope.cancel()

    async def _read(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            while data := await self._stream.receive_some(READ_BYTES):
                await self._protocol.handle(RawData(bytes(data)))

    async def _watch_idle(self) -> None:
        """End a connection that asks nothing, or not to the end."""
        while True:
            await trio.sleep(HEAD_S)
            if not self._busy and trio.current_time() >= self._idle_at + HEAD_S:
                self._scope.cancel()

    async def _on_event(self, event: Any) -> None:
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Updated):
            self._busy, self._idle_at = not event.idle, trio.current_time()
        elif isinstance(event, Closed):
            with trio.move_on_after(CLOSE_S), suppress(*_ENDED):
                await self._farewell()
            self._scope.cancel()

    async def _farewell(self) -> None:
        """End our half after the last whole frame."""
        async with self._sending:
            if isinstance(self._stream, trio.SocketStream):
                await self._stream.send_eof()
            elif isinstance(self._stream, trio.SSLStream):
                await self._stream.unwrap()

    async def _send(self, data: bytes) -> None:
        """Write whole frames only: a write that was begun is finished or the wire ends."""
        async with self._sending:
            try:
                with trio.CancelScope(shield=True), trio.fail_after(SEND_S):
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError):
                self._scope.cancel()


class Engine(H11Protocol):
    """HTTP/1.1 and WebSocket alone: no switch to HTTP/2, and a socket that is strict about limits."""

    async def _check_protocol(self, event: h11.Request) -> None:
        return

    async def _create_stream(self, request: h11.Request) -> None:
        words = {name.decode("latin-1"): value.decode("latin-1").strip().lower() for name, value in request.headers}
        upgrade = "upgrade" in [word.strip() for word in words.get("connection", "").split(",")]
        room: type[StrictSocket] | type[HTTPStream] = HTTPStream
        if upgrade and words.get("upgrade") == "websocket" and request.method == b"GET":
            room = StrictSocket
        self.stream = room(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
            None,
        )
        if room is StrictSocket:
            assert isinstance(self.connection, h11.Connection)
            self.connection = H11WSConnection(self.connection)
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
