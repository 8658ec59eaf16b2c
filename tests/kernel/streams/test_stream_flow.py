"""Many readers, slow ones, vanished ones: nobody waits for them, nothing is lost in silence. Cases W-62 to W-64."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.kernel_box import Peer
from tests.support.stream_box import StreamBox, heard, publish
from trio.testing import MockClock

TIGHT = {"t": {"ring": 50, "queue": 5}}


async def read_until_closed(peer: Peer) -> tuple[list[int], tuple[int, str]]:
    code = await peer.close_code()
    return [frame["seq"] for frame in peer.seen], code


async def test_a_reader_that_reads_nothing_is_cut_and_the_others_get_all(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with StreamBox(tmp_path, TIGHT, pipe_bytes=8192) as box:
        slow, good = await box.sub("t"), await box.sub("t")
        slow.unread()
        pub = await box.pub("t", ack=1)
        numbers = [(await publish(pub, "x" * 1000))[0] for _ in range(200)]
        assert numbers == list(range(1, 201))
        assert [frame["seq"] for frame in await heard(good, 200)] == numbers
        stats = await box.stats("t")
        assert (stats["subscribers"], stats["dropped"]) == (1, 1)
        assert stats["bytes"] < 51 * 1100
        slow.read_again()  # within close_timeout it still reads what was on its wire, whole, and then why
        seqs, code = await read_until_closed(slow)
        assert code == (1013, "slow consumer")
        assert seqs == list(range(1, len(seqs) + 1))
        assert 5 < len(seqs) < 200
        (line,) = box.lines("slow stream subscriber")
        assert line["behind"] > 5


async def test_a_cut_reader_comes_back_with_last_and_misses_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with StreamBox(tmp_path, {"t": {"ring": 500, "queue": 5}}, pipe_bytes=4096) as box:
        pub = await box.pub("t", ack=1)
        got: list[int] = []
        sub = await box.sub("t", last=0)
        for _ in range(6):
            sub.unread()
            for _ in range(30):
                await publish(pub, "x" * 400)
            sub.read_again()
            seqs, code = await read_until_closed(sub)
            assert code[0] == 1013
            got += seqs
            sub = await box.sub("t", last=got[-1])
            got += [frame["seq"] for frame in await heard(sub, 30 * (len(got) // 30 + 1) - len(got))]
        got += [frame["seq"] for frame in await heard(sub)]
        assert got == list(range(1, 181))


async def test_a_burst_in_one_batch_is_no_reason_to_cut_a_reader_that_reads(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, TIGHT) as box:
        sub = await box.sub("t")
        pub = await box.pub("t")
        await pub.stream.send_all(b"".join(client_frame(b"x" * 80) for _ in range(5000)))
        assert [frame["seq"] for frame in await heard(sub, 5000)] == list(range(1, 5001))
        assert (await box.stats("t"))["dropped"] == 0


async def test_a_reader_slower_than_the_hub_gets_a_moment_and_a_publisher_loses_little(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with StreamBox(tmp_path, {"t": {"ring": 50, "queue": 20}}, pipe_bytes=20_000) as box:
        sub, dead = await box.sub("t"), await box.sub("t")
        dead.unread()
        pub = await box.pub("t")
        got: list[int] = []

        async def read_slowly() -> None:
            while len(got) < 400:
                got.append((await heard(sub, 1))[0]["seq"])
                await trio.sleep(0.0005)

        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly)
            for _ in range(400):
                await pub.send("x" * 1000)
        assert got == list(range(1, 401))
        assert trio.current_time() - began_at < 2
        assert (await box.stats("t"))["dropped"] == 1


async def test_the_patience_of_a_stream_is_bounded(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with StreamBox(tmp_path, TIGHT, pipe_bytes=2048) as box:
        pub = await box.pub("t", ack=1)
        began_at = trio.current_time()
        for _ in range(40):  # one reader after the other reads nothing
            dead = await box.sub("t")
            dead.unread()
            await publish(pub, *["x" * 1000] * 10)
        assert (await box.stats("t"))["dropped"] == 40
        assert trio.current_time() - began_at < 4.5  # not 40 pauses of 0.25 s


async def test_a_message_larger_than_a_queue_is_delivered_alone(tmp_path: Path) -> None:
    config = {"kernel": {"max_message": 100_000, "queue_bytes": 100_000}}
    async with StreamBox(tmp_path, {"t": {"queue": 5}}, config=config, pipe_bytes=4096) as box:
        sub = await box.sub("t")
        pub = await box.pub("t", ack=1)
        text = "\0" * 90_000  # six bytes each as JSON
        for n in range(1, 4):
            await publish(pub, text)
            assert await heard(sub, 1) == [{"seq": n, "data": text}]
        again = await box.sub("t", last=0)
        assert [frame["seq"] for frame in await heard(again, 3)] == [1, 2, 3]


@pytest.mark.parametrize("durable", [False, True])
async def test_replay_and_live_join_without_gap_or_twin_at_full_speed(tmp_path: Path, durable: bool) -> None:
    total = 1200
    async with StreamBox(tmp_path, {"t": {"ring": 3000, "durable": durable}}) as box:
        done = trio.Event()

        async def publish_all(pub: Peer) -> None:
            batch = b"".join(client_frame(b"x" * 20) for _ in range(50))
            for _ in range(total // 50):
                await pub.stream.send_all(batch)
                await trio.lowlevel.checkpoint()
            done.set()

        async def follow(begin: int) -> None:
            last = 0
            while last < total:
                sub = await box.sub("t", last=last)
                for _ in range(7 + begin * 13):
                    frame = (await heard(sub, 1))[0]
                    assert frame["seq"] == last + 1
                    last += 1
                    if last == total:
                        break
                sub.cut()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish_all, await box.pub("t"))
                for begin in range(10):
                    nursery.start_soon(follow, begin)
        assert done.is_set()


async def test_one_that_never_pongs_leaves_the_list_and_one_that_does_stays(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with StreamBox(tmp_path) as box:
        alive = await box.sub("t")
        gone = await box.sub("t")
        gone.unread()  # nor does it answer pings
        await trio.sleep(0.1)
        assert (await box.stats("t"))["subscribers"] == 2
        await trio.sleep(4.0)  # ping_interval + ping_timeout + close_timeout
        assert (await box.stats("t"))["subscribers"] == 1
        await trio.sleep(600)
        assert (await box.stats("t"))["subscribers"] == 1
        await publish(await box.pub("t", ack=1), "a")
        assert await heard(alive, 1) == [{"seq": 1, "data": "a"}]
        gone.read_again()
        assert (await gone.close_code())[0] == 1011


async def test_no_line_is_quiet_for_longer_than_the_ping_interval(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with StreamBox(tmp_path) as box:
        quiet: list[float] = []
        for peer in (await box.sub("t"), await box.pub("t")):
            receive = peer.stream.receive_some

            async def noted(max_bytes: int | None = None, receive: Any = receive) -> bytes:
                data: bytes = await receive(max_bytes)
                quiet.append(trio.current_time())
                return data

            peer.stream.receive_some = noted  # type: ignore[method-assign]
        await trio.sleep(6)
        instants = sorted({round(at, 3) for at in quiet})
        assert max(b - a for a, b in pairwise(instants)) <= 1.3
        assert len(instants) >= 4


async def test_a_stream_has_its_own_pings(tmp_path: Path, autojump_clock: MockClock) -> None:
    settings = {"t": {"ping_interval": "100ms", "ping_timeout": "200ms", "close_timeout": "100ms"}}
    async with StreamBox(tmp_path, settings) as box:
        gone = await box.sub("t")
        gone.unread()
        await trio.sleep(0.45)
        assert (await box.stats("t"))["subscribers"] == 0


async def test_a_publisher_that_reads_no_answers_is_read_from_no_further(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with StreamBox(tmp_path, {"t": {"ring": 10}}, pipe_bytes=65536) as box:
        pub = await box.pub("t", ack=1)
        pub.unread()
        batch = b"".join(client_frame(b"x") for _ in range(1000))
        sent = 0
        with trio.move_on_after(1.0):
            while sent < 200_000:
                await pub.stream.send_all(batch)
                sent += 1000
        assert sent < 100_000
        assert json.dumps(await box.stats("t"))
