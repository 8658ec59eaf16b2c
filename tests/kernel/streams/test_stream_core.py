"""The pure rooms of streams: frames and cursors, requests, tagged frames, the commit queue, the pulse, the numbers."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.power_cut import PowerCutFiles

from kite_kernel._contract import STREAM_IDS
from kite_kernel.core.stream import Frames, Stream, StreamConfig, Subscriber, message_frame
from kite_kernel.core.stream_commit import CommitQueue, StoreFailed
from kite_kernel.core.stream_pulse import Beat, Pulse
from kite_kernel.core.stream_request import (
    BadRequest,
    PubRequest,
    StatsRequest,
    SubRequest,
    is_stream_name,
    is_stream_path,
    read_request,
    read_tagged,
)
from kite_kernel.store.stream_numbers import StreamNumbers


def stream_of(**config: int) -> Stream[str]:
    return Stream("t", StreamConfig(**config), epoch="e")


def subscriber(stream: Stream[str], last: int | None = None) -> Subscriber[str]:
    return Subscriber(stream.join(last, None).cursor, joined_at=0.0, hand="h")


# ---- frames and cursors


def test_a_frame_is_made_once_and_shared_by_all_who_stand_at_the_same_place() -> None:
    stream = stream_of()
    readers = [subscriber(stream) for _ in range(3)]
    for n in range(5):
        stream.publish(f"m{n}")
    taken = [stream.take(reader) for reader in readers]
    assert taken[0] is taken[1] is taken[2]
    assert taken[0] == b"".join(message_frame(n + 1, f"m{n}") for n in range(5))
    assert [stream.take(reader) for reader in readers] == [b"", b"", b""]


def test_a_chunk_holds_at_least_one_frame_and_ends_soon() -> None:
    frames = Frames(keep=100)
    for size in (10, 200_000, 10, 10):
        frames.append(b"x" * size)
    assert [frames.chunk(cursor)[1] for cursor in range(5)] == [2, 2, 4, 4, 4]
    frames.forget_joined()
    assert frames.chunk(2) == (b"x" * 20, 4)


def test_frames_leave_in_trim_by_count_and_bytes_and_the_newest_stays() -> None:
    frames = Frames(keep=3, bytes_max=100)
    for _ in range(10):
        frames.append(b"x" * 10)
    assert (frames.oldest, frames.bytes) == (1, 100)
    frames.trim(floor=5)
    assert frames.oldest == 5
    frames.trim()
    assert (frames.oldest, frames.bytes) == (8, 30)
    frames.append(b"x" * 500)
    frames.trim()
    assert (frames.oldest, frames.seq, frames.bytes) == (11, 11, 500)
    frames.append(b"x" * 10)
    frames.append(b"x" * 10)
    frames.trim(15)
    assert (frames.oldest, frames.bytes) == (13, 10)
    assert frames.bytes_after(12) == 10


def test_a_queue_is_full_with_one_more_than_it_holds_and_only_once_it_was_caught_up() -> None:
    stream = stream_of(ring=5, queue=3)
    for n in range(5):
        stream.publish(str(n))
    replaying = subscriber(stream, 0)
    live = subscriber(stream)
    assert stream.take(live) == b""
    for _ in range(3):
        stream.publish("x")
    assert not stream.is_slow(live)
    stream.publish("x")
    assert stream.is_slow(live)
    assert not stream.is_slow(replaying)
    stream.frames.trim()
    assert stream.is_lost(replaying)
    assert stream.is_slow(replaying)
    assert stream.take(replaying) is None
    stream.subscribers |= {live, replaying}
    stream.drop(live)
    stream.drop(live)
    assert (stream.dropped, stream.statistics().subscribers) == (1, 1)
    assert dict(stream.lags()) == {replaying: 9}


def test_bytes_count_too_but_one_large_entry_is_no_reason() -> None:
    stream = stream_of(queue_bytes=100)
    reader = subscriber(stream)
    stream.take(reader)
    stream.publish("x" * 500)
    assert not stream.is_slow(reader)
    stream.publish("y")
    assert stream.is_slow(reader)


def test_a_durable_stream_replays_from_its_log_whatever_the_ring_holds() -> None:
    stream: Stream[str] = Stream("t", StreamConfig(ring=2, queue=2), epoch="e", seq=100, first=41)
    assert stream.first == 41
    assert stream.join(40, None).reset is None
    assert stream.join(39, None).reset == b'{"reset":true,"seq":100}'
    reader = subscriber(stream, 40)
    assert stream.take(reader) is None
    assert not stream.is_slow(reader)
    stream.logged_first = 500
    assert stream.first == 101


def test_ids_are_remembered_beyond_the_ring_and_not_for_ever() -> None:
    stream = stream_of(ring=1)
    for n in range(STREAM_IDS + 5):
        stream.remember(f"id{n}", n)
    assert stream.known("id4") is None
    assert stream.known("id5") == 5


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("PPPTFJ"), st.integers(0, 9)), max_size=80), st.integers(1, 6))
def test_every_reader_reads_each_number_after_its_own_or_is_told(steps: list[tuple[str, int]], ring: int) -> None:
    """Publish, trim, flush some, join anywhere: what a reader is handed is always cursor+1, cursor+2, …"""
    stream = stream_of(ring=ring, queue=3)
    readers: list[tuple[Subscriber[str], list[int]]] = []
    for verb, n in steps:
        if verb == "P":
            stream.publish(str(stream.seq + 1))
        elif verb == "T":
            stream.frames.trim()
        elif verb == "J":
            join = stream.join(n, None)
            assert (join.reset is not None) == (n > stream.seq or n + 1 < stream.first)
            readers.append((Subscriber(join.cursor, joined_at=0.0, hand="h"), [join.cursor]))
        elif readers:
            reader, read = readers[n % len(readers)]
            while data := stream.take(reader):
                for part in data.split(b'{"seq":')[1:]:
                    number = int(part.split(b",")[0])
                    assert number == read[-1] + 1
                    assert f'"data":"{number}"'.encode() in part
                    read.append(number)
            if data is None:
                assert stream.is_slow(reader)
                readers.remove((reader, read))
            else:
                assert read[-1] == stream.seq
    assert len(stream.frames._frames) == stream.seq - stream.frames.oldest + 1


# ---- requests


def test_paths_and_queries_are_read_to_the_letter() -> None:
    assert read_request("/pub", ()) == PubRequest("default")
    assert read_request("/pub/a.b_c-1", [("ack", "1"), ("ids", "1"), ("other", "x")]) == PubRequest(
        "a.b_c-1", True, True
    )
    assert read_request("/sub/t", [("last", "007"), ("epoch", "e")]) == SubRequest("t", 7, "e")
    assert read_request("/stats/t", ()) == StatsRequest("t")
    assert read_request("/sub/t", [("epoch", "e" * 129)]) == BadRequest(400, "epoch has more than 128 characters")
    for path in ("/pub/", "/sub/A", "/sub/.a", "/stats/" + "x" * 129):
        assert isinstance(read_request(path, ()), BadRequest)
    assert is_stream_name("x" * 128)
    assert [is_stream_path(path) for path in ("/pub", "/sub/x", "/subs", "", "pub")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@given(st.text(), st.text())
def test_a_tagged_frame_gives_its_members_back(message_id: str, data: str) -> None:
    frame = json.dumps({"data": data, "id": message_id}).encode()
    if len(message_id.encode()) <= 128:
        assert read_tagged(frame) == (message_id, data)
    else:
        assert read_tagged(frame) == (None, frame.decode())


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "null",
        "[]",
        '["id","data"]',
        '{"id":"a"}',
        '{"id":1,"data":"x"}',
        '{"id":"a","data":null}',
        '{"id":"a","data":"x","id":"b"}',
        '{"id":"a","data":"x"} x',
        '{"ID":"a","data":"x"}',
        '{"id":"\\ud83d","data":"x"}',
        "[" * 100_000,
    ],
)
def test_every_other_frame_is_a_plain_message_stored_whole(frame: str) -> None:
    assert read_tagged(frame.encode()) == (None, frame)


# ---- on the way to the disk


def answers() -> tuple[list[int | StoreFailed], "CommitQueue"]:
    return [], CommitQueue(10)


def test_groups_keep_the_order_and_failed_numbers_are_given_again() -> None:
    told, queue = answers()
    for n in range(4):
        assert queue.add("x" * 10, f"id{n}", told.append) is not None
    assert [waiting.seq for waiting in queue.take(25)] == [11, 12]
    with pytest.raises(RuntimeError):
        queue.take()
    assert queue.find("id3") is not None
    assert [waiting.seq for waiting in queue.committed()] == [11, 12]
    assert (queue.durable_seq, len(queue), queue.find("id0")) == (12, 2, None)
    assert [waiting.seq for waiting in queue.take(1)] == [13]
    assert [waiting.seq for waiting in queue.failed()] == [13, 14]
    assert (len(queue), queue.bytes, queue.find("id3")) == (0, 0, None)
    fresh = queue.add("again", None, told.append)
    assert fresh is not None
    assert fresh.seq == 13
    assert queue.take() == [fresh]
    queue.committed()
    assert queue.take() == []
    assert queue.committed() == []


def test_what_waits_is_bounded_but_a_batch_that_is_here_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    told, queue = answers()
    monkeypatch.setattr("kite_kernel.core.stream_commit.STREAM_WAITING", 2)
    assert [queue.add("x", None, told.append) is not None for _ in range(3)] == [True, True, False]
    assert queue.add("x", None, told.append, in_batch=True) is not None
    assert queue.is_full


# ---- the pulse


def test_a_wire_is_asked_every_interval_and_given_up_after_the_timeout() -> None:
    pulse = Pulse(now=0.0, interval_s=1.0)
    beats = [pulse.beat(now=at / 4, interval_s=1.0, timeout_s=2.0) for at in range(1, 13)]
    assert [at for at, beat in enumerate(beats, 1) if beat is Beat.PING] == [4, 8]
    assert beats[-1] is Beat.DEAD
    pulse.heard_at = 3.1
    assert pulse.beat(now=3.2, interval_s=1.0, timeout_s=2.0) is Beat.PING


def test_an_own_absence_is_no_silence_of_the_peer() -> None:
    pulse = Pulse(now=0.0, interval_s=1.0)
    assert pulse.beat(now=1.0, interval_s=1.0, timeout_s=2.0) is Beat.PING
    pulse.forgive(now=20.0)
    assert pulse.beat(now=20.0, interval_s=1.0, timeout_s=2.0) is not Beat.DEAD
    assert pulse.beat(now=22.1, interval_s=1.0, timeout_s=2.0) is Beat.DEAD
    fresh = Pulse(now=0.0, interval_s=1.0)
    fresh.forgive(now=5.0)
    assert fresh.asked_at is None


# ---- the numbers of volatile streams


def test_numbers_are_never_given_twice_in_one_epoch_whenever_the_kernel_dies() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        disk = PowerCutFiles(rng)
        given_out: dict[str, int] = {}
        for life in range(4):
            numbers = StreamNumbers(disk, "/state/streams/numbers.json")
            epoch, seq = numbers.begin("t", f"fresh{life}")
            assert seq >= given_out.get(epoch, 0)
            for _ in range(rng.randint(0, 5000)):
                seq += 1
                if numbers.needs_block("t", seq):
                    numbers.reserve("t", seq)
            given_out[epoch] = seq
            if rng.random() < 0.5:
                numbers.close({"t": seq, "never-begun": 7})
                assert StreamNumbers(disk, "/state/streams/numbers.json").begin("t", "x") == (epoch, seq)


def test_a_broken_file_means_new_epochs() -> None:
    disk = PowerCutFiles(random.Random(0))
    for raw in (b"", b"{", b'{"schema":9,"streams":{}}', b'{"schema":1,"streams":{"t":{"epoch":"e"}}}'):
        disk.write_whole("/n", raw)
        numbers = StreamNumbers(disk, "/n")
        assert numbers.was_broken
        assert numbers.begin("t", "fresh") == ("fresh", 0)
    numbers.forget("t")
    assert numbers.begin("t", "fresher") == ("fresher", 0)


def test_streams_that_were_put_away_go_on_until_too_many_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kite_kernel.store.stream_numbers.AWAY_MAX", 2)
    numbers = StreamNumbers(PowerCutFiles(random.Random(0)), "/n")
    for at, name in enumerate("abcd", 1):
        numbers.begin(name, f"epoch-{name}")
        numbers.reserve(name, 1)
        numbers.put_away(name, at)
    assert [numbers.begin(name, "fresh") for name in "abcd"] == [
        ("fresh", 0),
        ("fresh", 0),
        ("epoch-c", 3),
        ("epoch-d", 4),
    ]
