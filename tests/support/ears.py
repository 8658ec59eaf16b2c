"""Somebody who listens to a real instance from a thread: every event with the moment it came, pings answered.

It connects once, by the operator's token and the address in kernel.json, and says when its wire ended.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any, Self

import websockets.exceptions
from websockets.sync.client import ClientConnection, connect

BOUND_S = 30.0


class Ears:
    """`with Ears(state_dir) as ears: … ears.wait("module.offline", module_id="launcher")`."""

    def __init__(self, state: Path) -> None:
        self.heard: list[tuple[float, str, Any]] = []  # (time.monotonic(), event, data)
        self.ended: tuple[float, int | None] | None = None  # when the wire ended, and its close code
        self._news = threading.Condition()
        self._next = 10
        self._answers: dict[int, Any] = {}
        url = json.loads((state / "kernel.json").read_bytes())["url"]
        token = (state / "tokens" / "operator").read_text("ascii").strip()
        self._stack = contextlib.ExitStack()
        self._wire: ClientConnection = self._stack.enter_context(connect(url, open_timeout=BOUND_S, proxy=None))
        self._send({"id": 1, "method": "auth", "params": {"token": token, "module_id": "ears", "protocol": 2}})
        answer = json.loads(self._wire.recv(BOUND_S))
        assert "result" in answer, answer
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.call("event.subscribe", {"events": [">"]})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._thread.join(BOUND_S)

    def call(self, method: str, params: Any) -> Any:
        """Call and return the whole answer."""
        self._next += 1
        number = self._next
        self._send({"id": number, "method": method, "params": params})
        with self._news:
            assert self._news.wait_for(lambda: number in self._answers or self.ended, BOUND_S), method
            return self._answers.get(number)

    def wait(self, event: str, bound_s: float = BOUND_S, *, after: float = 0.0, **data: Any) -> tuple[float, Any]:
        """Wait for an event with these members; return when it came, and its data."""

        def found() -> tuple[float, Any] | None:
            for at, name, said in self.heard:
                if at >= after and name == event and all(said.get(k) == v for k, v in data.items()):
                    return at, said
            return None

        with self._news:
            assert self._news.wait_for(found, bound_s), (event, data, self.heard[-20:], self.ended)
            result = found()
        assert result is not None
        return result

    def names(self) -> list[str]:
        """Give the names of all events so far."""
        with self._news:
            return [name for _, name, _ in self.heard]

    def _send(self, frame: dict[str, Any]) -> None:
        self._wire.send(json.dumps({"jsonrpc": "2.0", **frame}))

    def _listen(self) -> None:
        code = None
        try:
            while True:
                self._take(json.loads(self._wire.recv()))
        except websockets.exceptions.ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd is not None else None
        finally:
            with self._news:
                self.ended = (time.monotonic(), code)
                self._news.notify_all()

    def _take(self, frame: dict[str, Any]) -> None:
        now = time.monotonic()
        if frame.get("method") == "event":
            event, data = frame["params"]["event"], frame["params"].get("data")
            if event == "system.ping":
                pong = {"ping_time": data["ping_time"], "pong_time": time.time()}
                self._send({"method": "event.publish", "params": {"event": "system.pong", "data": pong}})
                return
            with self._news:
                self.heard.append((now, event, data if isinstance(data, dict) else {"value": data}))
                self._news.notify_all()
        elif "id" in frame and "method" not in frame:
            with self._news:
                self._answers[frame["id"]] = frame
                self._news.notify_all()
