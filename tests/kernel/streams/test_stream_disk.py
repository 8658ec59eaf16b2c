"""Durable streams at work: safe before anyone hears of it, told when the disk fails, found again after a restart.

Cases F-26, F-27, F-29, F-30; spec 40-streams §2.
"""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.power_cut import PowerCutFiles
from tests.support.stream_box import StreamBox, heard, publish

from kite_kernel.store.stream_segment import READ_BYTES

DISK: dict[str, Any] = {"disk": {"durable": True, "ring": 5}}
SEGMENT = "/disk/00000000000000000001.log"


@pytest.fixture
def files() -> PowerCutFiles:
    return PowerCutFiles(random.Random(1))


def segment_of(folder: Path) -> str:
    return f"{folder}/streams{SEGMENT}"


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


async def test_nobody_hears_of_a_message_before_it_is_safe(tmp_path: Path, files: PowerCutFiles) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        sub, pub = await box.sub("disk"), await box.pub("disk", ack=1)
        await publish(pub, "first")
        assert len(await heard(sub, 1)) == 1
        files.gate = threading.Event()
        await pub.send("second")
        assert await heard(sub) == await heard(pub) == []
        assert (await box.stats("disk"))["seq"] == 1
        files.gate.set()
        assert await heard(pub, 1) == [{"seq": 2}]
        assert await heard(sub, 1) == [{"seq": 2, "data": "second"}]


async def test_one_sync_covers_all_that_wait(tmp_path: Path, files: PowerCutFiles) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        pubs = [await box.pub("disk", ack=1) for _ in range(20)]
        await publish(pubs[0], "first")
        files.gate = threading.Event()
        before = files.syncs
        for pub in pubs:
            await pub.send("x")
        await trio.sleep(0.05)
        files.gate.set()
        answers = [(await heard(pub, 1))[0]["seq"] for pub in pubs]
        assert sorted(answers) == list(range(2, 22))
        assert files.syncs - before <= 4


async def test_a_full_disk_is_said_loses_nothing_and_passes_by_itself(tmp_path: Path, files: PowerCutFiles) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        sub, pub, plain = await box.sub("disk"), await box.pub("disk", ack=1), await box.pub("disk")
        o = await box.auth("o")
        await publish(pub, "a", "b")
        files.room_bytes = 10
        await pub.send("c")
        (told,) = await heard(pub, 1)
        assert told["error"]["code"] == -32008
        assert told["error"]["data"] == {"reason": "full", "outcome": "not_sent"}
        error = (await o.ask("stream.publish", {"stream": "disk", "data": "d"}))["error"]
        assert (error["code"], error["data"]["reason"], error["data"]["outcome"]) == (-32008, "full", "not_sent")
        await plain.send("e")
        assert await plain.close_code() == (1013, "store full")
        assert box.plane.shelf.trouble() == "stream disk: store full"
        assert (await o.ask("stream.publish", {"stream": "other", "data": "goes on"}))["result"]["seq"] == 1
        files.room_bytes = None
        await until(lambda: box.plane.shelf.trouble() is None)  # found out without a publish
        assert await publish(pub, "f") == [3]
        assert [frame["data"] for frame in await heard(sub, 3)] == ["a", "b", "f"]
    async with StreamBox(tmp_path, DISK, files=files) as box:
        assert [frame["data"] for frame in await heard(await box.sub("disk", last=0), 3)] == ["a", "b", "f"]


async def test_a_failed_sync_is_unknown_and_the_log_proves_itself_before_it_goes_on(
    tmp_path: Path, files: PowerCutFiles
) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        pub = await box.pub("disk", ack=1, ids=1)
        await publish(pub, "a", "b")
        files.fail_syncs = 1
        await pub.send({"id": "x", "data": "c"})
        (told,) = await heard(pub, 1)
        assert told["error"]["data"] == {"reason": "unavailable", "outcome": "unknown"}
        for _ in range(2):  # the repeat is stored once
            await pub.send({"id": "x", "data": "c"})
        assert await heard(pub, 2) == [{"seq": 3}, {"seq": 3}]
        files.power_cut()
        assert box.plane.shelf.trouble() is None
    async with StreamBox(tmp_path, DISK, files=files) as box:
        assert [frame["data"] for frame in await heard(await box.sub("disk", last=0), 3)] == ["a", "b", "c"]


async def test_a_torn_tail_is_cut_counted_and_said_and_the_numbers_go_on(tmp_path: Path, files: PowerCutFiles) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        await publish(await box.pub("disk", ack=1), *"abcd")
        epoch = (await box.stats("disk"))["epoch"]
    size = files.size_bytes(segment_of(tmp_path))
    files.cut_file(segment_of(tmp_path), size - 20)
    async with StreamBox(tmp_path, DISK, files=files) as box:
        (line,) = box.lines("torn")
        assert (line["stream"], line["torn_bytes"], line["next_seq"]) == ("disk", 41 - 20, 4)
        sub = await box.sub("disk", last=2, epoch=epoch)
        assert await publish(await box.pub("disk", ack=1), "e") == [4]
        assert [frame["seq"] for frame in await heard(sub, 2)] == [3, 4]
        o = await box.auth("o")
        assert (await o.ask("stream.stats", {"stream": "disk"}))["result"]["torn_bytes"] == 21
    async with StreamBox(tmp_path, DISK, files=files) as box:
        assert box.lines("torn") == []


async def test_a_message_that_was_safe_and_is_broken_is_never_dropped_in_silence(
    tmp_path: Path, files: PowerCutFiles
) -> None:
    async with StreamBox(tmp_path, {**DISK, "fine": {"durable": True}}, files=files) as box:
        for stream in ("disk", "fine"):
            pub = await box.pub(stream, ack=1)
            for text in "abcd":
                await publish(pub, text)
    files.flip(segment_of(tmp_path), 48 + 45)
    before = files.read(segment_of(tmp_path), 0, 10_000)
    async with StreamBox(tmp_path, {**DISK, "fine": {"durable": True}}, files=files) as box:
        assert len(box.lines("stream can't be opened")) == 1
        assert await box.status_of("/sub/disk") == await box.status_of("/pub/disk") == 503
        o = await box.auth("o")
        error = (await o.ask("stream.publish", {"stream": "disk", "data": "x"}))["error"]
        assert (error["code"], error["data"]["reason"], error["data"]["outcome"]) == (-32008, "damaged", "not_sent")
        assert box.plane.shelf.trouble() == "stream disk: store damaged"
        assert await publish(await box.pub("fine", ack=1), "e") == [5]
        assert files.read(segment_of(tmp_path), 0, 10_000) == before
        assert (await o.ask("stream.delete", {"stream": "disk"}))["result"] == {}
        assert await publish(await box.pub("disk", ack=1), "anew") == [1]
    (aside,) = [name for name in files.paths() if "DAMAGED-disk-" in name and name.endswith(".log")]
    assert files.read(aside, 0, 10_000) == before


async def test_a_log_of_a_newer_version_is_left_alone(tmp_path: Path, files: PowerCutFiles) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        await publish(await box.pub("disk", ack=1), "a")
    files.write_whole(f"{tmp_path}/streams/disk/meta.json", b'{"schema":7,"epoch":"e","floor":1,"more":[]}')
    async with StreamBox(tmp_path, DISK, files=files) as box:
        (line,) = box.lines("stream can't be opened")
        assert "version 7" in line["why"]
        assert "version 1" in line["why"]
    assert bytes(files.view(f"{tmp_path}/streams/disk/meta.json")).startswith(b'{"schema":7')


async def test_a_durable_stream_replays_all_that_is_kept_not_only_its_ring(
    tmp_path: Path, files: PowerCutFiles
) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        pub = await box.pub("disk", ack=1)
        await publish(pub, *[f"m{n}" for n in range(1, 301)])
        await publish(pub, *["x" * 10_000] * 200)
        files.largest_read_bytes = 0
        sub = await box.sub("disk", last=0)
        await publish(pub, "live")
        assert [frame["seq"] for frame in await heard(sub, 501)] == list(range(1, 502))
        assert 0 < files.largest_read_bytes <= READ_BYTES  # never the whole log
    async with StreamBox(tmp_path, DISK, files=files) as box:
        assert [frame["seq"] for frame in await heard(await box.sub("disk", last=450), 51)] == list(range(451, 502))


async def test_retention_by_messages_is_exact_and_evicted_is_said(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, {"disk": {"durable": True, "ring": 5, "keep_messages": 100}}) as box:
        pub = await box.pub("disk", ack=1)
        for _ in range(10):
            await publish(pub, *["x" * 50] * 50)
        epoch = (await box.stats("disk"))["epoch"]
        assert [frame["seq"] for frame in await heard(await box.sub("disk", last=400), 100)] == list(range(401, 501))
        (reset,) = await heard(await box.sub("disk", last=399, epoch=epoch))
        assert reset == {"reset": True, "seq": 500, "epoch": epoch, "why": "evicted", "first": 401}
    assert sum(path.stat().st_size for path in (tmp_path / "streams/disk").glob("*.log")) < 400 * 100


async def test_retention_by_bytes_bounds_the_disk(tmp_path: Path) -> None:
    async with StreamBox(tmp_path, {"disk": {"durable": True, "ring": 5, "keep": "64KiB"}}) as box:
        pub = await box.pub("disk", ack=1)
        for _ in range(40):
            await publish(pub, *["x" * 450] * 10)
        o = await box.auth("o")
        stats = (await o.ask("stream.stats", {"stream": "disk"}))["result"]
        assert 0.8 * 65536 <= stats["disk_bytes"] <= 65536
        assert stats["first"] > 250
        sub = await box.sub("disk", last=stats["first"] - 1)
        assert [frame["seq"] for frame in await heard(sub, 401 - stats["first"])] == list(range(stats["first"], 401))


async def test_ids_are_remembered_over_restarts_and_sealed_segments(tmp_path: Path) -> None:
    config = {"disk": {"durable": True, "ring": 5, "keep": "1MiB"}}
    async with StreamBox(tmp_path, config) as box:
        pub = await box.pub("disk", ack=1, ids=1)
        for n in range(300):
            await pub.send({"id": f"id{n}", "data": "x" * 1000})
        assert (await heard(pub, 300))[-1] == {"seq": 300}
        assert len(list((tmp_path / "streams/disk").glob("*.idx"))) >= 2  # one is sealed
    async with StreamBox(tmp_path, config) as box:
        pub = await box.pub("disk", ack=1, ids=1)
        for n in (0, 150, 299, 300):
            await pub.send({"id": f"id{n}", "data": "again"})
        assert await heard(pub, 4) == [{"seq": 1}, {"seq": 151}, {"seq": 300}, {"seq": 301}]


async def test_what_waits_for_the_disk_is_bounded(
    tmp_path: Path, files: PowerCutFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kite_kernel.core.stream_commit.STREAM_WAITING", 10)
    async with StreamBox(tmp_path, DISK, files=files) as box:
        o = await box.auth("o")
        await o.ask("stream.publish", {"stream": "disk", "data": "first"})
        files.gate = threading.Event()
        idents = [await o.request("stream.publish", {"stream": "disk", "data": "x"}) for _ in range(30)]
        refused = await o.until(lambda frame: "error" in frame)
        assert refused["error"]["code"] == -32005
        assert refused["error"]["data"]["reason"] == "queue_full"
        assert refused["error"]["data"]["outcome"] == "not_sent"
        files.gate.set()
        with trio.fail_after(10):
            while len([frame for frame in o.seen if frame.get("id") in idents and "result" in frame]) < 10:
                await o.until(lambda frame: frame.get("id") in idents and not o.seen.append(frame))
        assert (await box.stats("disk"))["seq"] == 11


async def test_what_was_taken_in_is_safe_when_the_kernel_ends(tmp_path: Path, files: PowerCutFiles) -> None:
    async with StreamBox(tmp_path, DISK, files=files) as box:
        pub = await box.pub("disk")
        for n in range(500):
            await pub.send(f"m{n}")
        await until(lambda: box.plane.shelf.channels["disk"].published > 0)
        box.kernel.stop("kernel_stop")
        await box.ended.wait()
        published = box.plane.shelf.channels["disk"].published
    files.power_cut()
    async with StreamBox(tmp_path, DISK, files=files) as box:
        assert (await box.stats("disk"))["seq"] == published
