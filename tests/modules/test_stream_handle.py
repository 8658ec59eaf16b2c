"""`kite.stream(…)` against the real kernel: subscriptions that miss nothing, publishers whose messages stand once."""

import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.stream_box import StreamBox

from kite_modules.sdk.stream import StreamClosed, StreamReset
from kite_modules.sdk.stream_file import Cursor, CursorFile
from kite_modules.sdk.stream_handle import Record, Stream

DISK = {"disk": {"durable": True, "ring": 10}}


@asynccontextmanager
async def port_of(box: StreamBox) -> AsyncIterator[str]:
    """Let a box be reached over TCP, as a client would."""

    async def serve(stream: trio.SocketStream) -> None:
        pipe = box.open_pipe()

        async def up() -> None:
            async for data in stream:
                await pipe.send_all(data)
            await pipe.aclose()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(up)
                while data := await pipe.receive_some():
                    await stream.send_all(data)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await trio.serve_listeners(serve, [listener])

        nursery.start_soon(run)
        yield f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


async def cut_all(box: StreamBox) -> None:
    """Cut every wire of the plane as the network would."""
    for wire in tuple(box.plane._wires):
        wire.wire.end()


async def test_records_come_in_order_over_cuts_and_begin_where_one_stood(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, DISK) as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("disk", url, None, nursery=nursery)
        async with stream.publisher() as publisher:
            for n in range(1, 6):
                assert await publisher.publish(f"m{n}") == n
            got: list[Record] = []
            async for record in stream.subscribe(last=2):
                got.append(record)
                if record.seq in (4, 20, 40):
                    await cut_all(box)
                if record.seq >= 5 and record.seq < 60:
                    nursery.start_soon(publisher.publish, f"m{record.seq + 1}")
                if record.seq == 60:
                    break
        assert [record.seq for record in got] == list(range(3, 61))
        assert [record.data for record in got] == [f"m{n}" for n in range(3, 61)]
        nursery.cancel_scope.cancel()


async def test_a_subscriber_from_now_on_misses_nothing_even_when_it_is_cut_before_the_first_message(
    tmp_path: Path,
) -> None:
    async with StreamBox(tmp_path) as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("t", url, None, nursery=nursery)
        assert await stream.publish("before") == 1
        subscription = stream.subscribe()

        async def publish_later() -> None:
            await until(lambda: box.plane.shelf.channels["t"].stream.subscribers)
            await cut_all(box)
            await stream.publish("while away")
            await stream.publish("after")

        nursery.start_soon(publish_later)
        assert [(await anext(subscription)).data for _ in range(2)] == ["while away", "after"]
        nursery.cancel_scope.cancel()


async def test_a_reset_is_raised_once_and_then_it_goes_on_behind_the_loss(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, {"t": {"ring": 3}}) as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("t", url, None, nursery=nursery)
        for n in range(1, 9):
            await stream.publish(f"m{n}")
        subscription = stream.subscribe(last=2)
        with pytest.raises(StreamReset) as caught:
            await anext(subscription)
        assert (caught.value.last, caught.value.seq, caught.value.why, caught.value.first) == (2, 8, "evicted", 6)
        await until(lambda: box.plane.shelf.channels["t"].stream.subscribers)
        await stream.publish("m9")
        assert await anext(subscription) == Record(9, "m9")
        nursery.cancel_scope.cancel()


async def test_the_cursor_file_holds_the_record_whose_turn_is_over(tmp_path: Path) -> None:
    path = tmp_path / "cursor"
    (tmp_path / "state").mkdir()
    async with StreamBox(tmp_path / "state") as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("t", url, None, nursery=nursery)
        for n in range(1, 5):
            await stream.publish(f"m{n}")
        epoch = (await box.stats("t"))["epoch"]

        async def fail_at_three() -> None:
            async with stream.subscribe(last=0, cursor_file=path) as records:
                async for record in records:
                    assert record.seq < 3

        with pytest.raises(AssertionError):
            await fail_at_three()
        assert CursorFile(path).load() == Cursor(2, epoch)
        async with stream.subscribe(last=0, cursor_file=path) as records:
            assert (await anext(records)).seq == 3
        assert CursorFile(path).load() == Cursor(3, epoch)
        nursery.cancel_scope.cancel()


async def test_a_subscription_that_is_left_lets_go_of_its_wire(tmp_path: Path) -> None:
    async with StreamBox(tmp_path) as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("t", url, None, nursery=nursery)
        await stream.publish("a")
        async for _ in stream.subscribe(last=0):
            break
        gc.collect()
        await until(lambda: not box.plane.shelf.channels["t"].stream.subscribers)
        assert not nursery.child_tasks


async def test_a_refused_subscriber_and_publisher_are_told(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, open_access=False) as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("t", url, "token-of-nobody", nursery=nursery)
        with pytest.raises(StreamClosed) as caught:
            await anext(stream.subscribe(last=0))
        assert caught.value.code == 401
        with pytest.raises(ExceptionGroup) as group:
            async with stream.publisher() as publisher:
                await publisher.publish("x")
        assert isinstance(group.value.exceptions[0], StreamClosed)
        good = Stream("t", url, "token-a", nursery=nursery)
        assert await good.publish("x") == 1
        nursery.cancel_scope.cancel()


async def test_what_was_not_answered_is_sent_again_and_stands_once(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, DISK) as box, port_of(box) as url, trio.open_nursery() as nursery:
        stream = Stream("disk", url, None, nursery=nursery)
        numbers: list[int] = []

        async def publish(publisher: Any, n: int) -> None:
            numbers.append(await publisher.publish(json.dumps({"n": n})))

        with trio.fail_after(60):
            async with stream.publisher(window=50) as publisher, trio.open_nursery() as inner:
                for n in range(300):
                    inner.start_soon(publish, publisher, n)
                for _ in range(5):
                    await trio.sleep(0.02)
                    await cut_all(box)
        assert sorted(numbers) == list(range(1, 301))
        found = []
        async for record in stream.subscribe(last=0):
            found.append(record.json()["n"])
            if len(found) == 300:
                break
        assert sorted(found) == list(range(300))
        assert await stream.publish("once", id="x") == await stream.publish("twice", id="x") == 301
        nursery.cancel_scope.cancel()
