"""A launcher's control socket with answers that a test chooses; everything else about it is real."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Answer = Callable[[str, dict[str, Any]], list[dict[str, Any]] | None]  # None: it dies


class FakeLauncher:
    """Serves one connection at a time from a thread; `calls` holds what it was asked."""

    def __init__(self, state_dir: Path, answer: Answer) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
        self._listener.bind(f"/proc/self/fd/{folder}/launcher.sock")
        os.close(folder)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                wire, _ = self._listener.accept()
            except OSError:
                return
            with wire, wire.makefile("rwb") as file:
                for line in file:
                    request = json.loads(line)
                    self.calls.append((request["method"], request["params"]))
                    answers = self._answer(request["method"], request["params"])
                    if answers is None:
                        break
                    for message in answers:
                        named = message if "method" in message else {"id": request["id"], **message}
                        file.write(json.dumps({"jsonrpc": "2.0", **named}).encode() + b"\n")
                        file.flush()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextmanager
def fake_launcher(state_dir: Path, answer: Answer | dict[str, Any]) -> Iterator[FakeLauncher]:
    """Serve `answer`: a function, or a dictionary from method to result."""
    table = answer if isinstance(answer, dict) else {}
    chosen = answer if callable(answer) else lambda method, params: [{"result": table[method]}]
    launcher = FakeLauncher(state_dir, chosen)
    try:
        yield launcher
    finally:
        launcher.close()


def row(name: str, state: str = "running", **more: Any) -> dict[str, Any]:
    """One module's row of a status."""
    ready = state == "running"
    base = {"name": name, "role": "module", "state": state, "ready": ready, "pid": 7 if ready else None}
    return {**base, "restarts": 0, "since": "2026-01-02T03:04:05+00:00", "grade": None, "why": None, **more}


def status(state: str = "ok", *modules: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The object of `status --json`."""
    own = {"pid": 5, "state": "running", "restarts": 0, "since": "2026-01-02T03:04:05+00:00"}
    return {
        "schema": 1,
        "instance": "lab",
        "state": state,
        "url": "ws://127.0.0.1:1",
        "launcher": {"pid": os.getpid(), "since": "2026-01-02T03:04:05+00:00"},
        "kernel": {**own, "epoch": 1},
        "watchdog": own,
        "modules": list(modules),
        **more,
    }
