"""A kernel that a test plays by hand: the far end of a watchdog's or launcher's wire, over memory streams.

It speaks the wire of spec 10 as far as a small session needs it, over real trio-websocket, so that the code under test
runs as it is while the clock is virtual. What it says is the test's business: `answers` maps a method to what is
answered, `tell` sends events, `cut` ends the wire without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio
import trio.testing
import trio_websocket

Answer = Callable[[dict[str, Any]], Any]


class Refuse(Exception):
    """Raised by an answer: the error that the caller gets."""

    def __init__(self, code: int, message: str = "no", data: object = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": data}


class Silence(Exception):
    """Raised by an answer: the caller gets nothing."""


class ScriptedKernel:
    """Accepts connections through `open_stream`, which stands in for `trio.open_tcp_stream`."""

    def __init__(self, nursery: trio.Nursery, answers: dict[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = {
            "event.subscribe": lambda p: {"events": []},
            "registry.register": lambda p: {"state": "registered"},
            "registry.list_modules": lambda p: {"modules": []},
            "registry.get_module": lambda p: {"module_id": p.get("module_id"), "state": "ready"},
            "kernel.get_connection_stats": lambda p: {"modules": []},
            **(answers or {}),
        }
        self.calls: list[tuple[float, str, dict[str, Any]]] = []
        self.published: list[tuple[float, str, Any]] = []
        self.auths: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.frames_in = 0
        self.refuse_connects = False
        self.close_before_auth: tuple[int, str] | None = None
        self.resume = False
        self.connected = trio.Event()
        self._nursery = nursery
        self._server: trio_websocket.WebSocketConnection | None = None
        self._scope: trio.CancelScope | None = None
        self._session = 0

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Give the client its end of a memory wire."""
        await trio.lowlevel.checkpoint()
        if self.refuse_connects:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, ours)
        return theirs

    def times(self, method: str) -> list[float]:
        """Give the times at which a method was called."""
        return [at for at, name, _ in self.calls if name == method]

    def events(self, name: str) -> list[Any]:
        """Give the data of all published events of a name."""
        return [data for _, event, data in self.published if event == name]

    async def tell(self, event: str, data: object, *, source: str = "kernel") -> None:
        """Send one event."""
        await self._send({"method": "event", "params": {"event": event, "data": data, "source": source}})

    async def ask(self, id: int, method: str, params: object) -> None:
        """Call the module at the far end; its answer lands in `answered`."""
        await self._send({"id": id, "method": method, "params": params})

    async def close(self, code: int, reason: str = "") -> None:
        """Close the wire with a code."""
        if self._server is not None:
            with trio.move_on_after(1):
                await self._server.aclose(code, reason)

    def cut(self) -> None:
        """End the wire without a close frame."""
        if self._scope is not None:
            self._scope.cancel()

    async def _send(self, frame: dict[str, Any]) -> None:
        assert self._server is not None
        await self._server.send_message(json.dumps({"jsonrpc": "2.0", **frame}))

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                request = await trio_websocket.wrap_server_stream(nursery, stream)
                self._server = await request.accept()
                await self._converse(nursery, self._server)
                nursery.cancel_scope.cancel()
        except* (trio_websocket.ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.connected = trio.Event()
            await trio.aclose_forcefully(stream)

    async def _converse(self, nursery: trio.Nursery, server: trio_websocket.WebSocketConnection) -> None:
        auth = json.loads(await server.get_message())
        self.auths.append(auth["params"])
        if self.close_before_auth is not None:
            await server.aclose(*self.close_before_auth)
            return
        resumed = self.resume and "resume" in auth["params"]
        if not resumed:
            self._session += 1
            self.frames_in = 0
        result = {"session": f"s{self._session}", "resumed": resumed, "received": self.frames_in, "protocol": 2}
        await server.send_message(json.dumps({"jsonrpc": "2.0", "id": auth["id"], "result": result}))
        self.connected.set()
        while True:
            frame = json.loads(await server.get_message())
            self.frames_in += 1
            if frame.get("method") == "event.publish" and "id" not in frame:
                self.published.append((trio.current_time(), frame["params"]["event"], frame["params"]["data"]))
            elif "method" in frame:
                self.calls.append((trio.current_time(), frame["method"], frame.get("params", {})))
                nursery.start_soon(self._answer, frame)
            else:
                self.answered.append(frame)

    async def _answer(self, frame: dict[str, Any]) -> None:
        answer = self.answers.get(frame["method"])
        try:
            if answer is None:
                raise Refuse(-32001, "module offline", {"reason": "unknown_module", "outcome": "not_sent"})
            said = answer(frame.get("params", {}))
            result = await said if hasattr(said, "__await__") else said
        except Silence:
            timeout_s = frame.get("meta", {}).get("timeout", 30.0)
            await trio.sleep(timeout_s)
            error = {"code": -32003, "message": "deadline", "data": {"reason": "deadline", "outcome": "unknown"}}
            await self._send({"id": frame["id"], "error": error})
        except Refuse as refused:
            await self._send({"id": frame["id"], "error": refused.error})
        else:
            await self._send({"id": frame["id"], "result": result})
