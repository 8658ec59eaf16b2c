"""Asking the launcher by its control socket: whatever answers there, the question ends. Source: spec 05 §3."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog
import trio
import trio.lowlevel

from kite_watchdog.edge import launcher as room
from kite_watchdog.edge.launcher import Launcher, Said
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.peer import Peer

Serve = Callable[[trio.SocketStream], Awaitable[None]]


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    link = Link("ws://127.0.0.1:1", "t", module_id="watchdog", methods=(), peer=Peer(), log=log)
    return Launcher(tmp_path, link)


async def _listen(nursery: trio.Nursery, folder: Path, serve: Serve) -> None:
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(folder / room.SOCKET))
    socket.listen(8)
    nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(socket)])


def _saying(*pieces: bytes) -> Serve:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        for piece in pieces:
            await stream.send_all(piece)
            await trio.lowlevel.checkpoint()

    return serve


GOOD = b'{"jsonrpc":"2.0","id":1,"result":{"state":"ok"}}\n'
PROGRESS = b'{"jsonrpc":"2.0","method":"progress","params":{"text":"x"}}\n'


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((GOOD,), Said(True, {"state": "ok"})),
        ((PROGRESS, PROGRESS, GOOD[:9], GOOD[9:]), Said(True, {"state": "ok"})),
        ((b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}\n',), Said(True, None, "no")),
        ((b'{"jsonrpc":"2.0","id":1,"error":7}\n',), Said(True, None, "refused")),
        ((b"garbage\n",), Said(False, None, "an answer that is no JSON")),
        ((), Said(False, None, "the launcher hung up")),
        ((GOOD[:20],), Said(False, None, "the launcher hung up")),
    ],
)
async def test_whatever_answers_becomes_a_value(
    launcher: Launcher, nursery: trio.Nursery, tmp_path: Path, pieces: tuple[bytes, ...], said: Said
) -> None:
    await _listen(nursery, tmp_path, _saying(*pieces))
    with trio.fail_after(20):
        assert await launcher.ask_socket("status", {}, timeout_s=10) == said
    nursery.cancel_scope.cancel()


async def test_an_answer_without_end_is_cut_off(
    launcher: Launcher, nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        while True:
            await stream.send_all(b"x" * 65536)

    monkeypatch.setattr(room, "LINE_BYTES_MAX", 1_000_000)
    await _listen(nursery, tmp_path, lambda stream: _until_gone(serve, stream))
    with trio.fail_after(20):
        assert await launcher.ask_socket("status", {}, timeout_s=10) == Said(False, None, "an answer without end")
    nursery.cancel_scope.cancel()


async def _until_gone(serve: Serve, stream: trio.SocketStream) -> None:
    try:
        await serve(stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def test_a_launcher_that_is_stopped_costs_the_timeout_and_no_more(
    launcher: Launcher, nursery: trio.Nursery, tmp_path: Path
) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    await _listen(nursery, tmp_path, silent)
    with trio.fail_after(20):
        assert await launcher.ask_socket("status", {}, timeout_s=0.1) == Said(False, None, "no answer in time")
    nursery.cancel_scope.cancel()


async def test_no_socket_is_not_reached_and_a_question_falls_back_to_it(launcher: Launcher) -> None:
    said = await launcher.ask("status", {}, timeout_s=1)
    assert not said.reached
    assert room.SOCKET in (said.refused or "")


async def test_an_order_never_goes_by_the_socket(launcher: Launcher, nursery: trio.Nursery, tmp_path: Path) -> None:
    asked = []

    async def serve(stream: trio.SocketStream) -> None:
        asked.append(json.loads(await stream.receive_some(65536)))
        await stream.send_all(GOOD)

    await _listen(nursery, tmp_path, serve)
    assert not (await launcher.order("restart", {"module": "x"}, timeout_s=1)).reached
    assert asked == []
    assert (await launcher.ask("status", {}, timeout_s=5)).reached
    assert asked[0]["method"] == "status"
    nursery.cancel_scope.cancel()


async def test_a_state_directory_of_any_length_is_reached(nursery: trio.Nursery, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120) / ("e" * 120)
    folder.mkdir(parents=True)
    short = tmp_path / "s"
    short.symlink_to(folder)
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    link = Link("ws://127.0.0.1:1", "t", module_id="watchdog", methods=(), peer=Peer(), log=log)
    await _listen(nursery, short, _saying(GOOD))
    with trio.fail_after(20):
        assert (await Launcher(folder, link).ask_socket("status", {}, timeout_s=10)).reached
    nursery.cancel_scope.cancel()
