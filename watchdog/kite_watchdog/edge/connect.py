"""From a URL to an open WebSocket, every step bounded; and how a connection's end is read.

Source: spec 10-wire §1, §3; 30-clients §5 (a handshake without a deadline hangs for ever).
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs
import trio
import trio_websocket

from kite_watchdog.core import frames
from kite_watchdog.edge.transport import Transport

MESSAGE_BYTES_MAX: Final = 17_825_792  # bytes; the largest max_message that a kernel can be given, and an envelope
MESSAGES_MAX: Final = 64  # read but not yet taken; the reader takes them at once

OpenStream = Callable[[str, int], Awaitable[trio.abc.Stream]]


@attrs.frozen
class Ended:
    """How one connection ended: close code (None = without), words, what HTTP asked for, and the protocol known."""

    code: int | None = None
    reason: str = ""
    retry_after_s: float | None = None
    protocol: int | None = None


@attrs.frozen
class Target:
    """Where the kernel is."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def of(cls, url: str) -> Target:
        """Read a ws:// or wss:// URL. Raises: ValueError where it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError("the URL of the kernel is no ws:// or wss:// URL")
        tls = parts.scheme == "wss"
        return cls(parts.hostname, parts.port or (443 if tls else 80), parts.path or "/", tls)


async def open_connection(
    nursery: trio.Nursery, target: Target, open_stream: OpenStream
) -> trio_websocket.WebSocketConnection | None:
    """Connect and upgrade; the library's reader runs in `nursery`. None = it ended before the answer.

    Raises: OSError, ConnectionRejected (in the nursery). Cancel: closes what was opened. The caller sets the deadline.
    """
    stream = await open_stream(target.host, target.port)
    if target.tls:
        stream = trio.SSLStream(stream, ssl.create_default_context(), server_hostname=target.host)
    transport = Transport(stream)
    got: trio_websocket.WebSocketConnection | None = None
    async with trio.open_nursery() as race:

        async def give_up_at_end() -> None:
            await transport.ended.wait()
            race.cancel_scope.cancel()

        race.start_soon(give_up_at_end)
        got = await trio_websocket.wrap_client_stream(
            nursery,
            cast(Any, transport),  # any stream will do; the library's annotation is narrower than its code
            f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}",
            target.path,
            message_queue_size=MESSAGES_MAX,
            max_message_size=MESSAGE_BYTES_MAX,
            receive_buffer_size=65_536,
        )
        race.cancel_scope.cancel()
    return got


def ended_by_close(closed: trio_websocket.ConnectionClosed, protocol: int | None) -> Ended:
    """Read the close code and words of a connection that was open."""
    reason = closed.reason
    if reason is None:
        return Ended(None, "closed", None, protocol)
    return Ended(reason.code, frames.plain(reason.reason or ""), None, protocol)


def first_of(group: BaseException) -> BaseException:
    """Give the first real error inside nested groups."""
    error = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def ended_by_answer(group: BaseException) -> Ended:
    """Read an HTTP refusal; `Retry-After` in seconds is kept."""
    error = first_of(group)
    if not isinstance(error, trio_websocket.ConnectionRejected):
        return Ended(None, f"{error}")
    after_s: float | None = None
    for name, value in error.headers or ():
        if name.lower() == b"retry-after" and value.strip().isdigit():
            after_s = float(value.strip()[:9])
    return Ended(None, f"HTTP {error.status_code}", after_s)
