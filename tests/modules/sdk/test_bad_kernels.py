"""A module between bad kernels: it comes back through all of them, says so once, and stays small.

Source: the bad input that a client must survive; spec 30-clients §5, 10-wire §4.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
import trio_websocket

from kite_modules.sdk import Module, Settings
from kite_modules.sdk.frames import encode, result
from kite_modules.sdk.testing import Hub
from kite_modules.sdk.testing.hub import URL

Clock = trio.testing.MockClock
Server = Callable[[trio.abc.Stream], Awaitable[None]]


Talk = Callable[[trio_websocket.WebSocketConnection], Awaitable[None]]


async def upgraded(stream: trio.abc.Stream, talk: Talk) -> None:
    async with trio.open_nursery() as nursery:
        request = await trio_websocket.wrap_server_stream(nursery, stream)
        await talk(await request.accept())
        nursery.cancel_scope.cancel()


async def silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def html(stream: trio.abc.Stream) -> None:
    await stream.receive_some(65536)
    await stream.send_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 12\r\n\r\n<html></html")


async def noise(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"\x00\x01\x02 220 smtp ready\r\n")
    await trio.sleep_forever()


async def silent_after_the_upgrade(stream: trio.abc.Stream) -> None:
    async def talk(_: trio_websocket.WebSocketConnection) -> None:
        await trio.sleep_forever()

    await upgraded(stream, talk)


async def gone_in_the_middle_of_auth(stream: trio.abc.Stream) -> None:
    async def talk(ws: trio_websocket.WebSocketConnection) -> None:
        await ws.get_message()
        await trio.aclose_forcefully(stream)

    await upgraded(stream, talk)


async def garbage_instead_of_an_answer(stream: trio.abc.Stream) -> None:
    async def talk(ws: trio_websocket.WebSocketConnection) -> None:
        await ws.get_message()
        for text in ("", "{", "null", "[]", '{"jsonrpc":"2.0"}') * 10:
            await ws.send_message(text)
        await trio.sleep_forever()

    await upgraded(stream, talk)


async def an_answer_that_says_nothing(stream: trio.abc.Stream) -> None:
    """Auth is answered by `7`; then nothing more: the sync's calls run into their own bound."""

    async def talk(ws: trio_websocket.WebSocketConnection) -> None:
        await ws.get_message()
        await ws.send_message(result("auth", "7"))
        await trio.sleep(5)
        await ws.aclose(1011)

    await upgraded(stream, talk)


BAD: list[Server] = [
    silent,
    html,
    noise,
    silent_after_the_upgrade,
    gone_in_the_middle_of_auth,
    garbage_instead_of_an_answer,
    an_answer_that_says_nothing,
]


async def test_a_module_comes_through_all_of_them_by_itself(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    module = Module("a")
    caplog.set_level(logging.INFO, logger="kite")
    async with Hub() as hub, trio.open_nursery() as nursery:
        settings = Settings(url=URL, token="t", module_id="a")
        good = hub._connector(settings)
        waiting = list(BAD)

        async def run(server: Server, stream: trio.abc.Stream) -> None:
            try:
                await server(stream)
            except (Exception, ExceptionGroup):
                return

        async def connect() -> Any:
            if not waiting:
                return await good()
            near, far = trio.testing.memory_stream_pair()
            nursery.start_soon(run, waiting.pop(0), far)
            return near

        with trio.fail_after(300):
            async with module.connected(settings, connect=connect) as kite:
                assert hub.state("a") in ("registered", "ready")
                assert kite.statistics()["reconnects"] == {"transport": len(BAD) - 1, "server": 1}
                assert kite.statistics()["bad_frames"] == 0  # before auth nothing is counted as the session's
        nursery.cancel_scope.cancel()
    said = [record.getMessage() for record in caplog.records if record.name == "kite"]
    assert said == ["connection lost, coming back by itself"] * 2 + ["connected"]


async def test_garbage_in_an_open_session_is_counted_and_costs_nothing(autojump_clock: Clock) -> None:
    module = Module("a")

    @module.method
    async def ok() -> str:
        return "fine"

    async with Hub() as hub, hub.running(module) as kite, hub.client() as other:
        peer = hub._desk.peers["a"]
        for text in ("", "{", "[]", "nonsense" * 1000, "[" * 50_000, encode({"jsonrpc": "1.0", "id": 1})):
            peer.send(text)
        assert await other.call("a.ok") == "fine"
        assert kite.statistics()["bad_frames"] == 6
