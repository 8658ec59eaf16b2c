"""A real Chromium under a test's control, by its DevTools protocol over trio; and a loopback server for its pages."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import trio
from trio_websocket import WebSocketConnection, open_websocket_url

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-port=0",
)


def find_chromium() -> str:
    """Return the browser's path; say how to get one where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise RuntimeError("the browser tests need Chromium: apt-get install chromium")


class Page:
    """One tab: evaluates expressions, and sends DevTools commands."""

    def __init__(self, wire: WebSocketConnection, session: str) -> None:
        self.wire = wire
        self.session = session
        self._number = 0
        self._waiting: dict[int, tuple[trio.Event, list[Any]]] = {}
        self.console: list[str] = []

    async def read(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                message = json.loads(await self.wire.get_message())
                if "id" in message and message["id"] in self._waiting:
                    event, box = self._waiting.pop(message["id"])
                    box.append(message)
                    event.set()
                elif message.get("method") == "Runtime.consoleAPICalled":
                    self.console.append(" ".join(str(a.get("value")) for a in message["params"]["args"]))
                elif message.get("method") == "Runtime.exceptionThrown":
                    self.console.append(json.dumps(message["params"]["exceptionDetails"]))

    async def command(self, method: str, **params: Any) -> Any:
        self._number += 1
        event, box = trio.Event(), list[Any]()
        self._waiting[self._number] = (event, box)
        request = {"id": self._number, "method": method, "params": params, "sessionId": self.session}
        await self.wire.send_message(json.dumps(request))
        with trio.fail_after(30):
            await event.wait()
        if "error" in box[0]:
            raise RuntimeError(f"{method}: {box[0]['error']}")
        return box[0]["result"]

    async def evaluate(self, expression: str) -> Any:
        """Return the JSON value of an expression; promises are awaited."""
        answer = await self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "page error"))
        return answer["result"].get("value")

    async def until(self, expression: str, *, timeout_s: float = 20) -> Any:
        """Wait until the expression is true; say what it last was when it never is."""
        value = None
        with trio.move_on_after(timeout_s):
            while True:
                value = await self.evaluate(expression)
                if value:
                    return value
                await trio.sleep(0.05)
        raise AssertionError(f"{expression} stayed {value!r}; console: {self.console[-5:]}")

    async def goto(self, url: str) -> None:
        await self.command("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def screenshot(self, path: Path) -> None:
        answer = await self.command("Page.captureScreenshot")
        await trio.Path(path).write_bytes(base64.b64decode(answer["data"]))


@contextlib.asynccontextmanager
async def chromium(profile: Path, *flags: str) -> AsyncIterator[Page]:
    """Start a browser with one empty page; it is gone, profile aside, when the block ends."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [find_chromium(), *FLAGS, *root, *flags, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(  # noqa: ASYNC220 - the test's own process, started once
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        port_file = trio.Path(profile / "DevToolsActivePort")
        with trio.fail_after(60):
            while not await port_file.exists() or len((await port_file.read_text()).splitlines()) < 2:
                await trio.sleep(0.05)
        port, path = (await port_file.read_text()).splitlines()[:2]
        async with (
            open_websocket_url(f"ws://127.0.0.1:{port}{path}", max_message_size=64 << 20) as wire,
            trio.open_nursery() as nursery,
        ):
            target = await _first_page(wire)
            page = Page(wire, target)
            nursery.start_soon(page.read)
            for domain in ("Page", "Runtime", "Network"):
                await page.command(f"{domain}.enable")
            yield page
            nursery.cancel_scope.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(10)


async def _first_page(wire: WebSocketConnection) -> str:
    """Attach to the tab that the browser opened by itself; return the session's id."""

    async def ask(number: int, method: str, **params: Any) -> Any:
        await wire.send_message(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(await wire.get_message())
            if message.get("id") == number:
                return message["result"]

    with trio.fail_after(30):
        targets = (await ask(1_000_001, "Target.getTargets"))["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        answer = await ask(1_000_002, "Target.attachToTarget", targetId=page["targetId"], flatten=True)
    return str(answer["sessionId"])


@contextlib.contextmanager
def pages(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; yields the URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map: ClassVar = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

        def log_message(self, *_: object) -> None:
            """Say nothing: the test says what matters."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
