"""Streams for those who read them: when to come back, and how to go on exactly where one had recorded.

`consume` writes every number of a stream into a file, exactly once and in order, through any number of cuts; it needs
no kernel, any hub with `/sub?last=N` will do. What a module uses, `kite.stream(…)`, is in `stream_handle`.

Source: spec 40-streams §3, 30-clients §5, seeds/003.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs
import msgspec
import trio

from kite_modules._contract import CLOSE
from kite_modules.sdk.stream_file import SeqFile
from kite_modules.sdk.transport import HANDSHAKE_S, Endpoint, Lost, Wire, WireLost, open_wire

RETRY_CODES: Final = frozenset({1001, 1006, 1011, 1012, 1013})
"""Closes after which the other side may be different next time. Source: seeds/003."""

GAPS_MAX: Final = 3
"""Times in a row that a hub may skip a number before it is taken at its word that the number is gone."""

ASK_S: Final = 15.0
"""A hub is asked for a pong this often, and has as long to give it: one that vanished says nothing by itself."""

ABNORMAL: Final = 1006
_NO_CODE: Final = (None, 1005, ABNORMAL)


class _Uniform(Protocol):
    def uniform(self, a: float, b: float, /) -> float:
        """Draw from [a, b]."""


class StreamReset(Exception):
    """The hub can't go on after number `last`; it stands at `seq`. `why`, `first`, `epoch` where it said them."""

    def __init__(
        self, last: int, seq: int, *, epoch: str | None = None, why: str | None = None, first: int | None = None
    ) -> None:
        super().__init__(f"reset: asked for what follows {last}, the stream stands at {seq}")
        self.last = last
        self.seq = seq
        self.epoch = epoch
        self.why = why
        self.first = first


class StreamClosed(Exception):
    """The stream may not be asked again: `code` is the close code, or the HTTP status of a refused upgrade."""

    def __init__(self, code: int, reason: str = "") -> None:
        name = CLOSE[code].name if code in CLOSE else "refused" if code < 1000 else "closed"
        super().__init__(f"{code} {name}: {reason}" if reason else f"{code} {name}")
        self.code = code
        self.reason = reason


def backoff(attempt: int, base: float = 0.2, cap: float = 5.0, rng: _Uniform = random) -> float:
    """Return the seconds to wait before retry `attempt` (from 0): one `rng.uniform(0, min(cap, base * 2**attempt))`.

    Any attempt will do, however large. Source: seeds/003 (full jitter).
    """
    try:
        most = min(cap, math.ldexp(base, attempt))
    except OverflowError:
        most = cap if base > 0 else base
    return rng.uniform(0, most)


def should_reconnect(code: int) -> bool:
    """Tell whether coming back after this close code makes sense. Source: seeds/003, 10-wire §3."""
    return code in RETRY_CODES


def with_query(url: str, **fields: str | None) -> str:
    """Return `url` with these query fields set, or taken out where None; the others stay as they are."""
    parts = urlsplit(url)
    kept = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key not in fields]
    kept += [(key, value) for key, value in fields.items() if value is not None]
    return parts._replace(query=urlencode(kept), fragment="").geturl()


@attrs.frozen
class End:
    """How a wire ended: `code` 1006 for anything without a code; an HTTP status below 1000 for a refused upgrade."""

    code: int
    reason: str = ""
    retry_after_s: float = 0.0

    @property
    def is_final(self) -> bool:
        """Whether coming back would end the same way."""
        return not should_reconnect(self.code)


def end_of(lost: Lost) -> End:
    """Read what the transport found: a 5xx answer may pass, another status is a refusal."""
    after_s = lost.retry_after_s or 0.0
    if lost.status is not None and lost.status < 500 and lost.status not in (408, 425, 429):
        return End(lost.status, lost.reason, after_s)
    return End(ABNORMAL if lost.code is None or lost.code in _NO_CODE else lost.code, lost.reason, after_s)


def place_of(url: str) -> tuple[Endpoint, str]:
    """Split a URL into whom to connect to and the path with its query. Raises: ValueError for a URL that is none."""
    parts = urlsplit(url)
    endpoint = Endpoint(parts._replace(query="", fragment="").geturl())
    return endpoint, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


async def read_wire(
    endpoint: Endpoint,
    path: str,
    on_text: Callable[[str], Awaitable[bool] | bool],
    *,
    token: str | None = None,
    handshake_s: float = HANDSHAKE_S,
) -> End | None:
    """Open one wire and hand each text message to `on_text` until that returns False or the wire ends.

    Returns: None when `on_text` had enough, else how the wire ended. Raises: what `on_text` raises. Cancel: safe.
    """
    headers = [] if token is None else [(b"Authorization", f"Bearer {token}".encode())]
    end: End | None = None
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            wire = await open_wire(
                nursery, endpoint.connect, host=endpoint.host, path=path, headers=headers, handshake_s=handshake_s
            )
        except WireLost as lost:
            return end_of(lost.lost)
        nursery.start_soon(ask_for_life, wire)
        try:
            while True:
                text = await wire.receive()
                if text is None:
                    continue
                more = on_text(text)
                if not (more if isinstance(more, bool) else await more):
                    break
        except WireLost as lost:
            end = end_of(lost.lost)
        except Exception as error:  # the handler's own: it goes on bare, not in a group of the wire's
            failure = error
        except trio.Cancelled:
            await wire.abort()
            raise
        await wire.close()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return end


async def ask_for_life(wire: Wire) -> None:
    """Cut a wire whose other side has vanished; whoever reads it then hears of it."""
    with suppress(WireLost):
        while True:
            await trio.sleep(ASK_S)
            with trio.move_on_after(ASK_S) as patience:
                await wire.ping()
            if patience.cancelled_caught:
                await wire.abort()
                return


class Message(msgspec.Struct):
    """What a hub sends to a subscriber: a message, or a reset."""

    seq: int
    data: Any = None
    reset: bool = False
    epoch: str | None = None
    why: str | None = None
    first: int | None = None


_decode_message = msgspec.json.Decoder(Message).decode


def read_message(text: str) -> Message | None:
    """Read one frame of `/sub`; None for a frame that is neither message nor reset (a notice, noise)."""
    try:
        return _decode_message(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


class Steps:
    """The rule of going on: which message is next, which was seen already, which one is missing."""

    def __init__(self, last: int | None) -> None:
        """Stand after number `last`; None: wherever the first message is."""
        self.last = last
        self.gaps = 0

    def take(self, message: Message) -> bool | None:
        """Judge a message: True = the next one, False = seen already, None = one is missing in between.

        Raises: StreamReset for a reset, and for a gap that stays however often the hub is asked.
        """
        if message.reset:
            last = self.last or 0
            raise StreamReset(last, message.seq, epoch=message.epoch, why=message.why, first=message.first)
        if self.last is None or message.seq == self.last + 1:
            self.gaps = 0
            return True
        if message.seq <= self.last:
            return False
        self.gaps += 1
        if self.gaps >= GAPS_MAX:
            raise StreamReset(self.last, message.seq, why="gap")
        return None


async def consume(
    url: str,
    out_path: str | os.PathLike[str],
    stop_after: int,
    base: float = 0.1,
    cap: float = 1.0,
    *,
    token: str | None = None,
    rng: _Uniform = random,
) -> None:
    """Append the seq of every message to `out_path`, one a line, until `stop_after` stands there.

    Comes back after cuts with the last recorded number; 1…`stop_after` stand there exactly once and in order, also when
    this process was killed in between. A number counts once it is written out.

    Raises: StreamReset when the hub can't go on there, StreamClosed when it may not be asked again, ValueError for a
    file or URL that is none, OSError of the file. Cancel: safe. Source: 40-streams §3.
    """
    place_of(url)
    with SeqFile(out_path) as file:
        attempt = 0
        steps = Steps(file.last)

        def on_text(text: str) -> bool:
            message = read_message(text)
            verdict = False if message is None else steps.take(message)
            if verdict is None:
                return False
            if verdict and message is not None:
                file.record(message.seq)
                steps.last = message.seq
            return file.last < stop_after

        while file.last < stop_after:
            before = file.last
            endpoint, path = place_of(with_query(url, last=str(file.last)))
            end = await read_wire(endpoint, path, on_text, token=token)
            if end is not None and end.is_final and file.last < stop_after:
                raise StreamClosed(end.code, end.reason)
            if file.last >= stop_after:
                return
            attempt = 0 if file.last > before else attempt + 1
            wait_s = backoff(attempt, base, cap, rng)
            await trio.sleep(max(wait_s, end.retry_after_s if end is not None else 0.0))
