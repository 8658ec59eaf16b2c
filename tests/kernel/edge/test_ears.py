"""Readiness told once is never lost: the edge-triggered ears, law by law, on real sockets."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.stage import stage

from kite_kernel.edge.ears import Ears
from kite_kernel.edge.port import SocketPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUFFER = 64


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[SocketPort, socket.socket]]:
    """A port whose ears run, and the other end of its stream."""
    ears = Ears()
    ours, theirs = socket.socketpair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ears.run)
        port = SocketPort(ours, ears)
        with theirs, trio.fail_after(10):
            yield port, theirs
        port.close()
        nursery.cancel_scope.cancel()


async def read(port: SocketPort) -> bytes:
    """Read as a wire does: wait, then take one buffer."""
    buffer = memoryview(bytearray(BUFFER))
    while True:
        await port.wait_readable()
        try:
            return bytes(buffer[: port.receive_into(buffer)])
        except BlockingIOError:
            continue


async def test_what_was_there_before_the_first_wait_is_heard() -> None:
    async with pair() as (port, theirs):
        theirs.send(b"early")
        assert await read(port) == b"early"


async def test_each_arrival_wakes_the_reader() -> None:
    async with pair() as (port, theirs), trio.open_nursery() as nursery:
        heard: list[bytes] = []

        async def listen() -> None:
            while piece := await read(port):
                heard.append(piece)

        nursery.start_soon(listen)
        for number in range(50):
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"%d" % number)
            while len(heard) <= number:
                await trio.sleep(0.001)
        theirs.close()
    assert heard == [b"%d" % number for number in range(50)]


async def test_more_than_a_buffer_is_read_to_its_end_without_another_arrival() -> None:
    async with pair() as (port, theirs):
        theirs.send(b"x" * (BUFFER * 3 + 5))
        assert [len(await read(port)) for _ in range(4)] == [BUFFER, BUFFER, BUFFER, 5]


async def test_an_end_that_came_together_with_the_last_bytes_is_not_lost() -> None:
    async with pair() as (port, theirs):
        theirs.send(b"last")
        theirs.shutdown(socket.SHUT_WR)
        assert await read(port) == b"last"
        assert await read(port) == b""
        assert await read(port) == b""


async def test_a_close_wakes_who_waits_and_who_comes_later() -> None:
    async with pair() as (port, _theirs), trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await port.wait_readable()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        port.close()
        port.close()
        await wait()


async def test_a_cancelled_wait_loses_nothing() -> None:
    async with pair() as (port, theirs):
        with trio.move_on_after(0.02):
            await read(port)
        theirs.send(b"after")
        await trio.sleep(0.02)
        with trio.CancelScope() as scope:
            scope.cancel()
            await port.wait_readable()
        assert scope.cancelled_caught
        assert await read(port) == b"after"


async def test_a_number_that_is_used_again_belongs_to_the_new_socket() -> None:
    ears = Ears()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ears.run)
        for number in range(20):
            ours, theirs = socket.socketpair()
            port = SocketPort(ours, ears)
            with theirs, trio.fail_after(5):
                theirs.send(b"%d" % number)
                assert await read(port) == b"%d" % number
                theirs.send(b"unread")
                port.close()
        nursery.cancel_scope.cancel()


async def test_a_queue_that_many_touch_at_once_is_flushed_in_few_sends() -> None:
    names = [f"m{n}" for n in range(30)]
    async with stage("a") as on:
        on.set_tokens(**{name: f"token-of-{name}-0123456789" for name in names})
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        for name in names:
            await on.connect(name)
        await on.a.settle()
        link = on.hub.board.peers["a"].link
        assert link is not None
        sends = 0
        send = link.wire.port.send

        def count(data: bytes) -> int:
            nonlocal sends
            sends += 1
            return int(send(data))

        link.wire.port.send = count
        frame = client_frame(b'{"jsonrpc":"2.0","method":"event.publish","params":{"event":"x.t","data":1}}')
        for name in names:  # all of it is in the sockets before the kernel has its next turn
            stream = on.peers[name].stream
            assert isinstance(stream, trio.SocketStream)
            stream.socket._sock.send(frame)  # type: ignore[attr-defined]
        for _ in names:
            await on.a.event("x.t")
        assert sends < len(names) / 3
