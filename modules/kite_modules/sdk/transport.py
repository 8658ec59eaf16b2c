"""One WebSocket wire to a kernel: connect, upgrade, send, receive, close; every wait bounded.

trio-websocket does the framing; what it leaves open is closed here: the handshake has a deadline and a size, a send
that was cancelled ends the wire (a torn frame must never be followed by another), a close frame waits for nobody,
endless fragments end the wire, and no exception of its reader reaches the caller. Source: spec 00 §4-6, 30-clients §5.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio
import trio_websocket

from kite_modules._contract import CLOSE_MESSAGE_TOO_BIG, CLOSE_PROTOCOL_ERROR, MAX_MESSAGE_CEILING_BYTES

HANDSHAKE_S: Final = 5.0
"""Connect, TLS and upgrade together (the contract's own bound for a handshake)."""
CLOSE_S: Final = 1.0
"""How long a close frame may take to be answered: the other side may be frozen."""
MESSAGE_BYTES_MAX: Final = MAX_MESSAGE_CEILING_BYTES + 65536
"""The largest message a kernel may be configured for, and room for the id and meta that it adds."""
_HEAD_BYTES_MAX: Final = 16384
_RETRY_AFTER_MAX_S: Final = 3600.0  # a server that says "in a year" is wrong about this client
_RECEIVE_BYTES: Final = 65536

logger = logging.getLogger("kite.wire")

_GONE: Final = (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError)

Connector = Callable[[], Awaitable[trio.abc.Stream]]


@attrs.frozen
class Lost:
    """Why a wire ended: `code` as received or found out (None = the network), `reason` for people.

    `status`: the HTTP status that stood in the place of an upgrade.
    """

    code: int | None
    reason: str = ""
    retry_after_s: float | None = None
    status: int | None = None


class WireLost(Exception):
    """The wire is gone; `lost` says how."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(lost.reason)
        self.lost = lost


@attrs.frozen
class Endpoint:
    """Where a kernel listens. Raises: ValueError for what is no ws, wss or ws+unix URL, or carries credentials."""

    url: str

    def __attrs_post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("ws", "wss", "ws+unix"):
            raise ValueError(f"url must begin with ws://, wss:// or ws+unix://, not {parts.scheme or 'nothing'}")
        if parts.username or parts.password or parts.query:
            raise ValueError("url must hold no credentials and no query: tokens never travel in URLs")
        if parts.scheme == "ws+unix":
            if not parts.path:
                raise ValueError("url names no socket path")
        elif not parts.hostname or parts.port == 0:
            raise ValueError("url names no host")

    @property
    def host(self) -> str:
        """The `Host` header."""
        parts = urlsplit(self.url)
        return "localhost" if parts.scheme == "ws+unix" else parts.netloc

    @property
    def path(self) -> str:
        """The path to ask for."""
        parts = urlsplit(self.url)
        return "/ws" if parts.scheme == "ws+unix" else (parts.path or "/")

    async def connect(self) -> trio.abc.Stream:
        """Open the stream. Raises: OSError. Cancel: safe."""
        parts = urlsplit(self.url)
        if parts.scheme == "ws+unix":
            return await trio.open_unix_socket(parts.path)
        secure = parts.scheme == "wss"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        if not secure:
            return await trio.open_tcp_stream(host, port)
        return await trio.open_ssl_over_tcp_stream(host, port, ssl_context=ssl.create_default_context())


class GuardedStream(trio.abc.Stream):
    """A stream that judges the answer to the upgrade itself, counts what arrives and never lives on torn.

    `ended` is set as soon as nothing more can come; `refusal` says why where this class found out itself;
    `broke_protocol` is set when the library closed it because the other side's frames are none.
    """

    def __init__(self, inner: trio.abc.Stream, *, message_bytes_max: int) -> None:
        self._inner = inner
        self._head: bytes | None = b""
        self._unread = 0
        self._unread_max = message_bytes_max + _RECEIVE_BYTES
        self.ended = trio.Event()
        self.broke_protocol = False
        self.refusal: Lost | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; whatever stops it half way ends the stream."""
        try:
            await self._inner.send_all(data)
        except BaseException:
            await self._end()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a send would not block."""
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive; before the upgrade is done only a whole, small head comes through."""
        try:
            data = bytes(await self._inner.receive_some(max_bytes or _RECEIVE_BYTES))
        except BaseException:
            self.ended.set()
            raise
        if not data:
            self.ended.set()
            return data
        if self._head is not None:
            return await self._take_head(data)
        self._unread += len(data)
        if self._unread > self._unread_max:
            self.refusal = Lost(CLOSE_MESSAGE_TOO_BIG, "a message without end")
            await self._end()
            raise trio.BrokenResourceError("a message without end")
        return data

    @property
    def upgraded(self) -> bool:
        """Whether the answer to the upgrade was a 101."""
        return self._head is None

    def message_read(self) -> None:
        """A whole message was taken out: count from zero."""
        self._unread = 0

    async def _take_head(self, data: bytes) -> bytes:
        self._head = (self._head or b"") + data
        end = self._head.find(b"\r\n\r\n")
        if not b"HTTP/1.1 ".startswith(self._head[:9]) and not self._head.startswith(b"HTTP/1."):
            self.refusal = Lost(None, "the other side speaks no HTTP")
        elif end < 0 and len(self._head) <= _HEAD_BYTES_MAX:
            return await self.receive_some()
        elif end < 0:
            self.refusal = Lost(None, "the answer to the upgrade is endless")
        else:
            self.refusal = _refusal_of(self._head[:end])
        if self.refusal is not None:
            await self._end()
            raise trio.BrokenResourceError(self.refusal.reason)
        head, self._head = self._head, None
        return head

    async def _end(self) -> None:
        self.ended.set()
        await trio.aclose_forcefully(self._inner)

    async def aclose(self) -> None:
        """Close; the library does so when the other side broke the protocol."""
        if not self.ended.is_set():
            self.broke_protocol = True
            self.ended.set()
        await self._inner.aclose()


def _refusal_of(head: bytes) -> Lost | None:
    """Return why an HTTP answer is no upgrade, None where it is one."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    status = words[1] if len(words) > 1 else ""
    if status == "101":
        return None
    after = None
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "retry-after":
            after = retry_after_s(value.strip())
    number = int(status) if status.isascii() and status.isdigit() and len(status) == 3 else None
    return Lost(None, f"HTTP {number or 'without a status'} instead of an upgrade", after, number)


def retry_after_s(value: str) -> float | None:
    """Read a Retry-After header: seconds or an HTTP date; None for garbage, at most an hour."""
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), _RETRY_AFTER_MAX_S)
    from email.utils import parsedate_to_datetime  # rare, and not light

    try:
        when = parsedate_to_datetime(value)
        wait_s = when.timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait_s, 0.0), _RETRY_AFTER_MAX_S)


class Wire:
    """An upgraded WebSocket. One task may send, one may receive."""

    def __init__(self, ws: trio_websocket.WebSocketConnection, stream: GuardedStream) -> None:
        self._ws = ws
        self._stream = stream

    @property
    def subprotocol(self) -> str | None:
        """What the server chose."""
        return self._ws.subprotocol

    async def send(self, text: str) -> None:
        """Send one text message. Raises: WireLost. Cancel: ends the wire."""
        try:
            await self._ws.send_message(text)
        except _GONE as error:
            raise WireLost(self._how(error)) from None

    async def receive(self) -> str | None:
        """Receive one message; None for a binary one. Raises: WireLost. Cancel: safe."""
        try:
            message = await self._ws.get_message()
        except _GONE as error:
            raise WireLost(self._how(error)) from None
        self._stream.message_read()
        return message if isinstance(message, str) else None

    async def ping(self) -> None:
        """Ask for a pong and wait for it; the caller bounds the wait. Raises: WireLost. Cancel: safe."""
        try:
            await self._ws.ping()
        except _GONE as error:
            raise WireLost(self._how(error)) from None

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close in order, by force after `CLOSE_S`. Cancel: shielded."""
        with trio.move_on_after(CLOSE_S, shield=True), suppress(Exception):  # closing what is gone is done
            await self._ws.aclose(code, reason or None)
        await self.abort()

    async def abort(self) -> None:
        """End it at once, without a close frame. Cancel: shielded."""
        self._stream.ended.set()
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    def _how(self, error: Exception) -> Lost:
        if self._stream.refusal is not None:
            return self._stream.refusal
        reason = getattr(error, "reason", None) or self._ws.closed
        if not isinstance(reason, trio_websocket.CloseReason):
            broke = self._stream.broke_protocol
            return Lost(CLOSE_PROTOCOL_ERROR, "its frames are none") if broke else Lost(None, "the wire ended")
        return Lost(reason.code, reason.reason or "")


async def open_wire(
    nursery: trio.Nursery,
    connect: Connector,
    *,
    host: str,
    path: str,
    handshake_s: float = HANDSHAKE_S,
    headers: list[tuple[bytes, bytes]] | None = None,
    subprotocols: list[str] | None = None,
) -> Wire:
    """Open a wire whose reader lives in `nursery`.

    Raises: WireLost when it can't be opened within `handshake_s` (seconds). Cancel: safe, nothing is left.
    """
    stream: GuardedStream | None = None
    try:
        with trio.fail_after(handshake_s):
            stream = GuardedStream(await connect(), message_bytes_max=MESSAGE_BYTES_MAX)
            ws = await nursery.start(_host_reader, stream, host, path, headers, subprotocols)
    except trio.TooSlowError:
        lost = Lost(None, f"no upgrade within {handshake_s:g} s")
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        lost = Lost(None, f"no connection: {_first_line(error)}")
    except BaseException:  # cancelled, alone or in a group
        if stream is not None:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
        raise
    else:
        if ws is not None:
            return Wire(ws, stream)
        lost = stream.refusal or Lost(None, "the wire ended before the upgrade")
    if stream is not None:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
    raise WireLost(lost)


async def _host_reader(
    stream: GuardedStream,
    host: str,
    path: str,
    headers: list[tuple[bytes, bytes]] | None,
    subprotocols: list[str] | None,
    *,
    task_status: trio.TaskStatus[trio_websocket.WebSocketConnection | None],
) -> None:
    """Run the library's reader in a nursery of its own, so that nothing it raises goes further."""
    started = False
    try:
        async with trio.open_nursery() as inner:
            inner.start_soon(_give_up_when_ended, stream, inner.cancel_scope)
            ws = await trio_websocket.wrap_client_stream(
                inner,
                stream,  # type: ignore[arg-type]  # any stream will do
                host,
                path,
                subprotocols=subprotocols,
                extra_headers=headers,
                max_message_size=MESSAGE_BYTES_MAX,
                receive_buffer_size=_RECEIVE_BYTES,
            )
            started = True
            task_status.started(ws)
    except* Exception as group:  # the library's own failures: the wire is lost, whatever it was
        logger.debug("the wire's reader ended: %r", group)
    finally:
        stream.ended.set()
    if not started:
        task_status.started(None)


async def _give_up_when_ended(stream: GuardedStream, scope: trio.CancelScope) -> None:
    """End a handshake that can't be answered any more (the library would wait for ever)."""
    await stream.ended.wait()
    if stream.upgraded:
        return
    scope.cancel()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
