"""The console where it is hard: a thousand modules, a flood of events, no network, foreign pages.

Source: spec 80 §2, cases X-01, X-02.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.chromium import chromium, pages
from tests.support.console import Console, console
from tests.support.relay_box import PASSWORD, Page, RelayBox, recovery_code
from trio_websocket import open_websocket_url

MANY = 1000
LONG_MS = 100
ROWS = "document.querySelectorAll('[data-test=module-row]').length"


class ManyBox(RelayBox):
    """A relay whose launcher tells of a thousand modules."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, roles=("noisy",))
        self.kernel = type(self.kernel)(folder, {"relay": "module", "noisy": "module", "launcher": "launcher"})


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayBox]:
    with ManyBox(tmp_path_factory.mktemp("many")) as made:
        yield made


def status(restarts: int) -> dict[str, Any]:
    since = "2026-01-01T00:00:00.000+00:00"
    rows = [
        {
            "name": f"module-{number:04}",
            "role": "module",
            "state": "running",
            "ready": True,
            "pid": None,
            "restarts": restarts if number % 10 == 0 else 0,
            "since": since,
            "grade": "healthy",
            "why": None,
        }
        for number in range(MANY)
    ]
    own = {"pid": 1, "state": "running", "restarts": 0, "since": since}
    head = {"schema": 1, "instance": "many", "state": "ok", "url": "", "launcher": own, "kernel": own, "watchdog": own}
    return {**head, "modules": rows}


@asynccontextmanager
async def peer(box: RelayBox, name: str, *methods: str) -> AsyncIterator[Page]:
    async with open_websocket_url(f"{box.kernel.url}/ws", max_message_size=8 << 20) as wire:
        made = Page(wire)
        await made.ask("auth", {"token": box.kernel.tokens[name], "protocol": 2})
        await made.ask("event.subscribe", {"events": []})
        await made.ask("registry.register", {"methods": list(methods)})
        await made.send('{"jsonrpc":"2.0","method":"event.publish","params":{"event":"module.ready","data":{}}}')
        await made.ask("kernel.info")
        yield made


async def be_launcher(made: Page) -> None:
    looks = 0
    while True:
        frame = await made.get()
        if "id" in frame and "method" in frame:
            looks += 1
            answer = {"jsonrpc": "2.0", "id": frame["id"], "result": status(looks)}
            await made.send(json.dumps(answer))
        elif frame.get("params", {}).get("event") == "system.ping":
            pong = {"event": "system.pong", "data": frame["params"]["data"]}
            await made.send(json.dumps({"jsonrpc": "2.0", "method": "event.publish", "params": pong}))


async def worst_task(shown: Console) -> float:
    return float(await shown.page.evaluate("Math.max(0, ...window.longTasks)"))


async def test_a_thousand_modules_and_a_flood_of_events_are_shown_without_a_long_task(
    box: RelayBox, tmp_path: Path
) -> None:
    made = box.user("operator")
    async with (
        peer(box, "launcher", "status", "why") as launcher,
        peer(box, "noisy", "nothing") as noisy,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(be_launcher, launcher)
        async with console(tmp_path, box.url) as shown:
            await shown.log_in(made.name, PASSWORD, recovery_code(made))
            await shown.page.until(f"{ROWS} === {MANY}", timeout_s=60)
            worst: list[float] = []
            for _ in range(
                5
            ):  # a busy machine stretches a task now and then; the page's own work is in the best of them
                await shown.page.goto(box.url)
                await shown.until_state("open")
                await shown.page.until(f"{ROWS} === {MANY}", timeout_s=60)
                await trio.sleep(1)
                worst.append(await worst_task(shown))
                if worst[-1] <= LONG_MS:
                    break
            assert min(worst) <= LONG_MS, worst
            floods: list[float] = []
            for _ in range(4):
                await shown.page.evaluate("window.longTasks.length = 0")
                for number in range(1000):
                    params = {"event": "noisy.tick", "data": {"n": number}}
                    await noisy.send(json.dumps({"jsonrpc": "2.0", "method": "event.publish", "params": params}))
                    if number % 50 == 49:
                        await trio.sleep(0.05)
                await shown.page.until(
                    "document.querySelector('[data-test=event-row] code')?.textContent.includes('999')"
                )
                floods.append(await worst_task(shown))
                if floods[-1] <= LONG_MS:
                    break
            assert min(floods) <= LONG_MS, floods
            await shown.shot("thousand")
            assert shown.page.console == []
        nursery.cancel_scope.cancel()


async def test_without_network_it_waits_and_with_it_it_is_back(box: RelayBox, tmp_path: Path) -> None:
    made = box.user("viewer")
    async with console(tmp_path, box.url) as shown:
        await shown.log_in(made.name, PASSWORD, recovery_code(made))
        await shown.page.evaluate("window.same = true")
        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await shown.page.command("Network.emulateNetworkConditions", **offline)
        await shown.page.until("navigator.onLine === false")
        await trio.to_thread.run_sync(box.stop)
        await shown.until_state("waiting")
        assert "no network" in await shown.text("connection-state")
        box.options["listen"] = f"127.0.0.1:{box.port}"
        await trio.to_thread.run_sync(box.start)
        await shown.page.command("Network.emulateNetworkConditions", **{**offline, "offline": False})
        await shown.until_state("open")
        assert await shown.page.evaluate("window.same") is True


async def test_a_foreign_page_gets_nothing(box: RelayBox, tmp_path: Path) -> None:
    attempt = """new Promise((done) => {
        const wire = new WebSocket("ws://127.0.0.1:%d/ws");
        wire.onopen = () => done("open");
        wire.onmessage = () => done("message");
        wire.onerror = () => done("refused");
    })"""
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>evil</title>", "utf-8")
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with pages(folder) as evil:
        async with chromium(tmp_path / "profile", rules) as page:
            await page.goto(f"{evil}/index.html")
            assert await page.evaluate(attempt % box.port) == "refused"
            await page.goto(f"http://evil.example:{box.port}/")
            assert "not served here" in await page.evaluate("document.body.innerText")
            assert await page.evaluate("document.querySelector('#app') === null")
            assert await page.evaluate(attempt % box.port) == "refused"
            await page.goto(box.url)
            assert await page.evaluate("document.querySelector('#app') !== null")
