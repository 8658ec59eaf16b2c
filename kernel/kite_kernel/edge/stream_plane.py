"""The stream plane: `/pub`, `/sub`, `/stats` and their named forms, on the kernel's port.

Streams of kite.toml stand from the start; any other well-formed name begins with its first publisher or subscriber, up
to a bound, with the default settings and in memory. Source: spec 40-streams, 05-surface §7 and §9, cases W-60 to W-66.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from kite_kernel._contract import CLOSE_AUTH_FAILED, CLOSE_GOING_AWAY, CLOSE_NORMAL
from kite_kernel.core.http import Refusal, bearer_token, refusal_response
from kite_kernel.core.stream import StreamConfig
from kite_kernel.core.stream_request import BadRequest, PubRequest, StatsRequest, SubRequest, read_request
from kite_kernel.core.text import bye
from kite_kernel.core.websocket import text_frame
from kite_kernel.edge.listener import accept_upgrade, answer
from kite_kernel.edge.stream_shelf import Shelf
from kite_kernel.edge.stream_wires import PubWire, StreamWire, SubWire
from kite_kernel.methods.stream import stream_methods
from kite_kernel.methods.stream_report import metrics_lines, stats_text
from kite_kernel.store.files import OsFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kite_kernel.core.auth import Grant
    from kite_kernel.core.http import Head
    from kite_kernel.edge.kernel import Kernel
    from kite_kernel.edge.port import Port
    from kite_kernel.edge.stream_channel import Channel
    from kite_kernel.store.files import Files

    Request = PubRequest | SubRequest | StatsRequest

_log = structlog.get_logger()

FINISH_S: Final = 5.0
"""What still waits for the disk at the end gets this long; nobody was told that it is safe."""

_VERBS: Final[dict[type, str]] = {
    PubRequest: "stream.publish",
    SubRequest: "stream.subscribe",
    StatsRequest: "stream.stats",
}


class StreamPlane:
    """The streams of one kernel, in `streams/` of its state directory."""

    def __init__(self, kernel: Kernel, state_dir: Path, *, files: Files | None = None) -> None:
        config = kernel.config
        self._kernel = kernel
        self._hub = kernel.hub
        self._folder = str(state_dir / "streams")
        self._files = files or OsFiles()
        self._open_access = config.streams_open and not config.allow_remote
        self._max_message_bytes = config.settings.max_message_bytes
        self._default = StreamConfig(queue_bytes=config.settings.queue_bytes)
        self._configs = configs_of(config.streams, queue_bytes=config.settings.queue_bytes)
        self._wires: set[StreamWire] = set()
        self._dirty: set[Channel] = set()
        self._kick = trio.Event()
        self._arrived = trio.Event()
        self._ending = trio.Event()
        self.shelf: Shelf

    # ---- beginning and end

    async def start(self) -> None:
        """Open the streams and join everything to the kernel; ends with the kernel's nursery, safely."""
        kernel = self._kernel
        await kernel.nursery.start(self._host)
        kernel.nursery.start_soon(self._tell_the_end)
        kernel.nursery.start_soon(self._run_flusher)
        kernel.nursery.start_soon(self._run_ticks)
        kernel.hub.handlers.update(stream_methods(self))
        kernel.door.planes.update({"pub": self.serve, "sub": self.serve, "stats": self.serve})
        kernel.pages.troubles.append(self.shelf.trouble)
        kernel.pages.lines.append(lambda: metrics_lines(self.shelf))
        kernel.on_tokens.append(self._revoke)
        kernel.at_end.append(self.close_wires)

    async def _host(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Hold what must not be cancelled in the middle: the committers, until all is safe."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self.shelf = Shelf(
                    self._folder,
                    self._configs,
                    self._default,
                    files=self._files,
                    nursery=nursery,
                    settle=self._kernel.hand.settle,
                )
                await self.shelf.open()
                task_status.started()
                await self._ending.wait()
                with trio.move_on_after(FINISH_S):
                    await self.shelf.finish()
                nursery.cancel_scope.cancel()

    async def _tell_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._ending.set()

    def close_wires(self, code: int = CLOSE_GOING_AWAY, reason: str = "going away") -> None:
        """Close every wire of the plane."""
        for wire in tuple(self._wires):
            wire.end(code, reason)

    # ---- serving

    async def serve(self, port: Port, head: Head, addr: str, leftover: bytes) -> None:
        """Serve one request of the plane from its judged head to its end. Cancel: safe."""
        request = read_request(head.path, head.query)
        if isinstance(request, BadRequest):
            await self._refuse(port, Refusal(request.status, request.why), addr)
            return
        found = self._authorize(head, request)
        channel = found if isinstance(found, Refusal) else self._channel_for(request)
        if isinstance(channel, Refusal):
            await self._refuse(port, channel, addr)
            return
        subprotocol = "kite.stream" if "kite.stream" in head.tokens_of("sec-websocket-protocol") else None
        wire = self._wire_for(request, channel, port, accept_upgrade(head, subprotocol), addr)
        if isinstance(found, tuple):
            wire.grant, wire.digest = found
        self._wires.add(wire)
        self._arrived.set()
        try:
            if isinstance(request, StatsRequest):
                wire.urgent += text_frame(stats_text(channel))
                wire.wire.flush()
                wire.wire.close(CLOSE_NORMAL, within_s=channel.config.close_timeout_s)
            await wire.run(leftover, max_message_bytes=self._max_message_bytes)
        finally:
            self._wires.discard(wire)
            wire.leave()
            channel.used_at = trio.current_time()

    def _wire_for(self, request: Request, channel: Channel, port: Port, hello: bytes, addr: str) -> StreamWire:
        nursery = self._kernel.nursery
        if isinstance(request, SubRequest):
            join = channel.stream.join(request.last, request.epoch)
            if join.reset is not None:
                hello += text_frame(join.reset)
            reader = SubWire(channel, port, nursery, hello, addr, cursor=join.cursor)
            channel.stream.subscribers.add(reader.at)
            return reader
        if isinstance(request, PubRequest):
            publisher = PubWire(channel, port, nursery, hello, addr, ack=request.ack, ids=request.ids)
            channel.publishers.add(publisher)
            return publisher
        return StreamWire(channel, port, nursery, hello, addr)

    async def _refuse(self, port: Port, refusal: Refusal, addr: str) -> None:
        _log.info("request refused", key="refused", address=addr, status=refusal.status, why=refusal.why)
        await answer(port, refusal_response(refusal))

    def _authorize(self, head: Head, request: Request) -> tuple[Grant, bytes] | Refusal | None:
        """Find out who asks. Returns: the grant, None where no token is needed, or the refusal (401, 403)."""
        if self._open_access:
            return None
        token = bearer_token(head)
        found = self._hub.tokens.find(token) if token else None
        if found is None:
            why = "unknown token" if token else "no token"
            how = "send Authorization: Bearer …, or the subprotocol kite.bearer.…"
            return Refusal(401, f"{why}: {how}", (("WWW-Authenticate", 'Bearer realm="kite"'),))
        grant = found[0]
        permissions = self._hub.members.permissions.get(grant.name) if grant.role == "module" else None
        verb = _VERBS[type(request)]
        if permissions is not None and not permissions.may_call(verb):
            return Refusal(403, f"not permitted: {verb}")
        return found

    def _channel_for(self, request: Request) -> Channel | Refusal:
        trouble = self.shelf.damaged.get(request.stream)
        if trouble is not None:
            return Refusal(503, f"the store of this stream is {trouble}", (("Retry-After", "5"),))
        if isinstance(request, StatsRequest):
            return self.shelf.find(request.stream) or Refusal(404, "no such stream")
        return self.shelf.find_or_make(request.stream) or Refusal(503, "too many streams", (("Retry-After", "60"),))

    # ---- what goes on beside

    def settle(self) -> None:
        """Send what was put into the modules' queues."""
        self._kernel.hand.settle()

    def start_soon(self, act: Any, *args: Any) -> None:
        """Run something beside, as long as the kernel runs."""
        self._kernel.nursery.start_soon(act, *args)

    def flush_soon(self, channel: Channel) -> None:
        """Flush a stream once the present read batch is through (publishes that came by RPC)."""
        self._dirty.add(channel)
        self._kick.set()

    async def _run_flusher(self) -> None:
        while True:
            await self._kick.wait()
            self._kick = trio.Event()
            dirty, self._dirty = self._dirty, set()
            for channel in dirty:
                channel.flush()

    async def _run_ticks(self) -> None:
        """Ping, and count; judge nobody when this very task came late."""
        tick_s = max(0.02, min(min(c.ping_interval_s, c.ping_timeout_s) for c in self.shelf.configs()) / 4)
        counted_at = trio.current_time()
        while True:
            if not self._wires:
                self._arrived = trio.Event()
                with trio.move_on_after(1.0):
                    await self._arrived.wait()
            planned = trio.current_time() + tick_s
            await trio.sleep_until(planned)
            now = trio.current_time()
            if now - planned > max(0.05, tick_s):
                for wire in self._wires:
                    wire.pulse.forgive(now=now)
            for wire in tuple(self._wires):
                wire.beat(now)
            if now - counted_at >= 1.0:
                self.shelf.count(now - counted_at)
                counted_at = now

    def _revoke(self) -> None:
        """Close the wires whose token is no longer good. Source: 05-surface §2, cases X-09."""
        reason = "authentication failed"
        frames = text_frame(bye(CLOSE_AUTH_FAILED, 2, reason))
        for wire in tuple(self._wires):
            if wire.grant is None or wire.digest is None or self._hub.tokens.still_good(wire.digest, wire.grant):
                continue
            wire.end(CLOSE_AUTH_FAILED, reason, frames)


def configs_of(rows: Mapping[str, Mapping[str, Any]], *, queue_bytes: int) -> dict[str, StreamConfig]:
    """Make the settings of `[streams.NAME]` rows that the configuration has checked."""
    return {
        name: StreamConfig(
            ring=row["ring"],
            queue=row["queue"],
            queue_bytes=queue_bytes,
            ping_interval_s=row["ping_interval"],
            ping_timeout_s=row["ping_timeout"],
            close_timeout_s=row["close_timeout"],
            durable=row["durable"],
            keep_bytes=row["keep"],
            keep_messages=row["keep_messages"],
            keep_age_s=row["keep_age"],
        )
        for name, row in rows.items()
    }
