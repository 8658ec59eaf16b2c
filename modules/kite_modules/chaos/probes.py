"""Three witnesses beside the instance: one that only listens, one behind a wire that is hurt, one that writes down what
was acknowledged.

They come back whenever there is a kernel to come to, and say what they saw; they judge nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
import trio_websocket

from kite_modules.chaos.look import Instance
from kite_modules.chaos.peer import Peer, Refused, connected
from kite_modules.chaos.proxy import Proxy
from kite_modules.sdk.module import Module
from kite_modules.sdk.settings import Settings
from kite_modules.sdk.stream_handle import Stream

BEAT_S: Final = 0.05
EVENT: Final = "chaos.beat"
STREAM: Final = "chaos"
AGAIN_S: Final = 0.2


class Listener:
    """Reads and answers everything, publishes a numbered beat, and notes each end of its wire."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.closes: list[tuple[float, int | None]] = []  # when, code
        self.heard: list[tuple[float, str, Any]] = []
        self.acknowledged: dict[int, str] = {}
        self.refused_writes = 0
        self.beats = 0
        self.late_s = 0.0  # the worst lateness of this very process: it may be the one that was not healthy
        self.peer: Peer | None = None

    async def run(self, *, durable: bool) -> None:
        """Listen for ever."""
        while True:
            where = self._instance.kernel()
            if where is not None:
                await self._once(where, durable)
            await trio.sleep(AGAIN_S)

    async def _once(self, where: tuple[str, str], durable: bool) -> None:
        try:
            async with connected(*where, "chaos-listener", self._hear, events=("watchdog.>", "launcher.>")) as peer:
                self.peer = peer
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._beat, peer)
                    if durable:
                        nursery.start_soon(self._write, peer)
                    await peer.ended.wait()
                    nursery.cancel_scope.cancel()
                self.closes.append((trio.current_time(), peer.closed))
        except* (OSError, Refused, trio_websocket.ConnectionClosed, trio_websocket.HandshakeError):
            pass  # no kernel at this moment: it is asked for again
        finally:
            self.peer = None

    def _hear(self, event: str, data: Any) -> None:
        self.heard.append((trio.current_time(), event, data))

    async def _beat(self, peer: Peer) -> None:
        due = trio.current_time()
        while True:
            self.beats += 1
            await peer.publish(EVENT, {"n": self.beats})
            due = max(due + BEAT_S, trio.current_time() - BEAT_S)
            await trio.sleep_until(due)
            self.late_s = max(self.late_s, trio.current_time() - due)

    async def _write(self, peer: Peer) -> None:
        number = 0
        while True:
            number += 1
            data = f"{trio.current_time():.6f} {number}"
            answer = await peer.call("stream.publish", {"stream": STREAM, "data": data})
            result = answer.get("result") if answer is not None else None
            if isinstance(result, dict) and isinstance(result.get("seq"), int):
                self.acknowledged[result["seq"]] = data
            else:
                self.refused_writes += 1
            await trio.sleep(2 * BEAT_S)


class Wire:
    """A client of the SDK behind a proxy; what it hears must be whole across every cut."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.proxy: Proxy | None = None
        self.numbers: list[int] = []
        self.open = False

    async def run(self) -> None:
        """Be connected for ever, through a proxy of one's own."""
        while True:
            where = self._instance.kernel()
            if where is not None:
                await self._once(where)
            await trio.sleep(AGAIN_S)

    async def _once(self, where: tuple[str, str]) -> None:
        url, token = where
        host, _, port = url.partition("://")[2].rpartition(":")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, where, nursery.cancel_scope)
                self.proxy = Proxy(host, int(port))
                through = await nursery.start(self.proxy.run)
                settings = Settings(url=url, token=token, module_id="chaos-wire")
                module = Module("chaos-wire")
                connect = partial(trio.open_tcp_stream, "127.0.0.1", through)
                async with module.connected(settings, connect=connect) as kite, kite.subscribe(EVENT) as events:
                    nursery.start_soon(self._hurry, kite.retry_now)
                    self.open = True
                    async for event in events:
                        self.numbers.append(int(event.data["n"]))
                nursery.cancel_scope.cancel()
        except* Exception:  # the kernel went away: the witness comes back to the next one
            pass
        finally:
            self.open, self.proxy = False, None

    async def _follow(self, where: tuple[str, str], scope: trio.CancelScope) -> None:
        """Leave when the instance has a kernel at another address: a fresh one, which knows nothing of this session."""
        while True:
            await trio.sleep(AGAIN_S)
            if self._instance.kernel() not in (None, where):
                scope.cancel()

    async def _hurry(self, retry_now: Callable[[], object]) -> None:
        """Come back at once: at a tenth of the time the debounce is shorter than the first delay of the table."""
        while True:
            await trio.sleep(BEAT_S)
            retry_now()

    def mark(self) -> int:
        """Remember a place in what was heard."""
        return len(self.numbers)

    async def wait_beyond(self, number: int, within_s: float) -> bool:
        """Wait until a beat with a higher number was heard."""
        end = trio.current_time() + within_s
        while trio.current_time() < end:
            if self.numbers and self.numbers[-1] > number:
                return True
            await trio.sleep(BEAT_S)
        return False


async def read_records(instance: Instance, first: int, last: int, within_s: float) -> dict[int, str]:
    """Read the durable stream from one record to another; what can't be had in time is missing."""
    found: dict[int, str] = {}
    where = instance.kernel()
    if where is None:
        return found
    with trio.move_on_after(within_s):
        async with trio.open_nursery() as nursery:
            stream = Stream(STREAM, *where, nursery=nursery)
            async with stream.subscribe(last=first - 1) as records:
                async for record in records:
                    found[record.seq] = record.data
                    if record.seq >= last:
                        break
            nursery.cancel_scope.cancel()
    return found
