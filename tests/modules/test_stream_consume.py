"""`consume`: each number once, in order, through cuts, kills and refusals, on a plain hub that knows no Kite."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from tests.support.plain_hub import PlainHub, plain_hub

from kite_modules.sdk.stream import StreamClosed, StreamReset, backoff, consume, should_reconnect


class Recorder:
    """A random source that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        return 0.0


@pytest.fixture
def hub() -> Iterator[PlainHub]:
    with plain_hub() as hub:
        yield hub


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


def test_backoff_is_one_uniform_draw_below_the_capped_power() -> None:
    rng = Recorder()
    for attempt in (0, 1, 4, 5, 2000, 100_000):
        backoff(attempt, rng=rng)
    assert rng.asked == [(0, 0.2), (0, 0.4), (0, 3.2), (0, 5.0), (0, 5.0), (0, 5.0)]
    ours, theirs = random.Random(7), random.Random(7)
    assert [backoff(n, 0.1, 3.0, ours) for n in range(40)] == [
        theirs.uniform(0, min(3.0, 0.1 * 2**n)) for n in range(40)
    ]
    assert math.isfinite(backoff(10**9))


def test_only_codes_after_which_things_may_differ_are_tried_again() -> None:
    assert [code for code in range(900, 5000) if should_reconnect(code)] == [1001, 1006, 1011, 1012, 1013]


async def test_two_cuts_while_publishing_leave_each_number_once_and_in_order(hub: PlainHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, hub.url, out, 300, 0.01, 0.05)
        for at in range(3):
            await until(lambda at=at: hub.joined > at)  # type: ignore[misc]
            await trio.to_thread.run_sync(hub.publish, *[f"m{n}" for n in range(100)])
            if at < 2:
                await trio.to_thread.run_sync(hub.cut)
    assert lines(out) == list(range(1, 301))
    assert hub.asked[0] == "0"
    assert len(hub.asked) >= 3


async def test_it_ends_exactly_at_stop_after(hub: PlainHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hub.publish(*"abcdefgh")
    await consume(hub.url, out, 5)
    assert out.read_text() == "1\n2\n3\n4\n5\n"
    hub.refuse = 500  # what stands there already needs no hub
    await consume(hub.url, out, 5)
    await consume(hub.url, out, 3)
    assert out.read_text() == "1\n2\n3\n4\n5\n"


@pytest.mark.parametrize("torn", ["1\n2\n3", "1\n2\n\0\0\0", "1\n2\n"])
async def test_a_half_written_last_line_is_taken_away_and_fetched_again(
    hub: PlainHub, tmp_path: Path, torn: str
) -> None:
    out = tmp_path / "out"
    out.write_text(torn)
    hub.publish(*"abcde")
    await consume(hub.url, out, 5)
    assert out.read_text() == "1\n2\n3\n4\n5\n"
    assert hub.asked == ["2"]


@pytest.mark.parametrize("strange", ["1\n3\n", "hello\n", "1\n2\nhello", "1\n1\n"])
async def test_a_file_that_holds_something_else_is_never_touched(hub: PlainHub, tmp_path: Path, strange: str) -> None:
    out = tmp_path / "out"
    out.write_text(strange)
    with pytest.raises(ValueError, match=str(out)):
        await consume(hub.url, out, 5)
    assert out.read_text() == strange


async def test_a_reset_is_handed_on_with_both_numbers(tmp_path: Path) -> None:
    with plain_hub(ring=3) as hub:
        hub.publish(*"abcdefgh")
        out = tmp_path / "out"
        out.write_text("1\n2\n")
        with pytest.raises(StreamReset) as caught:
            await consume(hub.url, out, 20)
    assert (caught.value.last, caught.value.seq) == (2, 8)
    assert "reset" in str(caught.value)
    assert out.read_text() == "1\n2\n"


@pytest.mark.parametrize("code", [1000, 1002, 1008, 1009, 4001])
async def test_a_final_code_ends_it_and_is_named(hub: PlainHub, tmp_path: Path, code: int) -> None:
    async with trio.open_nursery() as nursery:

        async def close_soon() -> None:
            await until(lambda: bool(hub.subscribers))
            await trio.to_thread.run_sync(hub.close, code, "because")

        nursery.start_soon(close_soon)
        with pytest.raises(StreamClosed) as caught:
            await consume(hub.url, tmp_path / "out", 5)
    assert (caught.value.code, caught.value.reason) == (code, "because")
    assert str(code) in str(caught.value)


@pytest.mark.parametrize("code", [1001, 1011, 1012, 1013])
async def test_a_passing_code_is_tried_again(hub: PlainHub, tmp_path: Path, code: int) -> None:
    out = tmp_path / "out"
    hub.publish("a", "b")
    hub.end_with = code
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, hub.url, out, 2, 0.01, 0.02)
        await until(lambda: len(hub.asked) >= 3)
        hub.end_with = None
    assert lines(out) == [1, 2]


async def test_a_5xx_answer_passes_and_a_401_is_final(hub: PlainHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hub.publish("a")
    hub.refuse = 503
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, hub.url, out, 1, 0.01, 0.02)
        await trio.sleep(0.2)
        assert lines(out) == []
        hub.refuse = None
    assert lines(out) == [1]
    hub.refuse = 401
    with pytest.raises(StreamClosed) as caught:
        await consume(hub.url, out, 2)
    assert caught.value.code == 401


async def test_a_skipped_number_is_asked_for_again(hub: PlainHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hub.skip_once = {2}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, hub.url, out, 4, 0.01, 0.02)
        await until(lambda: bool(hub.subscribers))
        await trio.to_thread.run_sync(hub.publish, *"abcd")
    assert lines(out) == [1, 2, 3, 4]


async def test_a_wire_that_ends_before_the_upgrade_counts_as_1006(tmp_path: Path) -> None:
    tries = 0

    async def hang_up(stream: trio.SocketStream) -> None:
        nonlocal tries
        tries += 1
        await stream.receive_some(10_000)
        if tries == 4:  # three times without a word, then a word
            await stream.send_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(20), pytest.raises(StreamClosed) as caught:
            await consume(f"ws://127.0.0.1:{port}/sub", tmp_path / "out", 1, 0.01, 0.02)
        nursery.cancel_scope.cancel()
    assert caught.value.code == 403
    assert tries == 4


async def test_a_hub_that_vanishes_is_left_and_asked_again(
    hub: PlainHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kite_modules.sdk.stream.ASK_S", 0.2)
    out = tmp_path / "out"
    hub.publish("a")
    passes = True

    async def proxy(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", hub.port)

        async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            try:
                async for data in source:
                    if not passes:  # as a tunnel does: no word, no end
                        await trio.sleep_forever()
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()

        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, proxy, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as inner:
            inner.start_soon(consume, f"ws://127.0.0.1:{port}/sub", out, 2, 0.01, 0.02)
            await until(lambda: out.exists() and lines(out) == [1])
            passes = False
            await trio.sleep(0.3)
            passes = True
            await trio.to_thread.run_sync(hub.publish, "b")
            await until(lambda: lines(out) == [1, 2])
        nursery.cancel_scope.cancel()


async def test_a_second_writer_of_one_file_is_refused(hub: PlainHub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, hub.url, out, 1)
        await until(lambda: bool(hub.subscribers))
        with pytest.raises(BlockingIOError):
            await consume(hub.url, out, 1)
        await trio.to_thread.run_sync(hub.publish, "a")
    with contextlib.suppress(FileNotFoundError):
        assert lines(out) == [1]
