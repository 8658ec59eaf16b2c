"""A plain hub as in the users' own lab: `websockets`, three paths, a ring, no tokens and no epochs.

Runs on an asyncio loop in a thread of its own; its verbs may be called from any thread. For clients that must work
without Kite's kernel.
"""

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response


class PlainHub:
    """The hub. `refuse` answers upgrades with an HTTP status, `end_with` closes each subscriber at once with a code."""

    def __init__(self, ring: int) -> None:
        self.seq = 0
        self.ring: deque[tuple[int, str]] = deque(maxlen=ring)
        self.subscribers: set[ServerConnection] = set()
        self.asked: list[str] = []
        self.joined = 0
        self.refuse: int | None = None
        self.end_with: int | None = None
        self.skip_once: set[int] = set()
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """Where subscribers go."""
        return f"ws://127.0.0.1:{self.port}/sub"

    def _run(self, verb: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(verb, self._loop).result(20)

    def publish(self, *texts: str) -> None:
        """Publish each text."""
        self._run(self._publish(texts))

    async def _publish(self, texts: tuple[str, ...]) -> None:
        for text in texts:
            self.seq += 1
            frame = json.dumps({"seq": self.seq, "data": text})
            self.ring.append((self.seq, frame))
            if self.seq in self.skip_once:
                self.skip_once.discard(self.seq)
                continue
            for subscriber in list(self.subscribers):
                with contextlib.suppress(Exception):
                    await subscriber.send(frame)

    def cut(self) -> None:
        """Cut every wire without a close frame."""
        self._run(self._cut())

    async def _cut(self) -> None:
        for subscriber in list(self.subscribers):
            subscriber.transport.abort()

    def close(self, code: int, reason: str = "") -> None:
        """Close every subscriber with a code."""
        self._run(self._close(code, reason))

    async def _close(self, code: int, reason: str) -> None:
        for subscriber in list(self.subscribers):
            await subscriber.close(code, reason)

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        parts = urlsplit(connection.request.path)
        last = parse_qs(parts.query).get("last")
        self.asked.append(last[0] if last else "")
        if self.end_with is not None:
            await connection.close(self.end_with)
            return
        if last:
            if self.ring and int(last[0]) + 1 < self.ring[0][0]:
                await connection.send(json.dumps({"reset": True, "seq": self.seq}))
            else:
                for seq, frame in list(self.ring):
                    if seq > int(last[0]):
                        await connection.send(frame)
        self.subscribers.add(connection)
        self.joined += 1
        try:
            await connection.wait_closed()
        finally:
            self.subscribers.discard(connection)

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        del request
        return None if self.refuse is None else connection.respond(HTTPStatus(self.refuse), "no\n")

    async def _main(self, started: threading.Event, stop: asyncio.Event) -> None:
        async with serve(
            self._serve, "127.0.0.1", 0, process_request=self._answer, ping_interval=1, close_timeout=1
        ) as server:
            self._server = server
            self.port = next(iter(server.sockets)).getsockname()[1]
            started.set()
            await stop.wait()


@contextlib.contextmanager
def plain_hub(ring: int = 10_000) -> Iterator[PlainHub]:
    """Run a hub until the block ends."""
    hub = PlainHub(ring)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    hub._loop = loop
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(hub._main(started, stop)))
    thread.start()
    try:
        assert started.wait(10)
        yield hub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
