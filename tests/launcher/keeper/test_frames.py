"""Frames between launcher and keeper, and the values in them: what is sent is what is read, and nothing else is."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_launcher.core.keeper_frames import FRAME_MAX_BYTES, BadFrame, FrameReader, encode_frame
from kite_launcher.core.keeper_orders import Exited, KeeperSettings, KeptRecord, LogState, LogTrouble, SpawnOrder

TEXT = st.text(st.characters(codec=None), max_size=20)


@given(st.lists(st.dictionaries(TEXT.filter(lambda key: key != "fds"), TEXT, max_size=4), max_size=5), st.data())
def test_frames_are_whole_however_the_bytes_arrive(frames: list[dict[str, str]], data: st.DataObject) -> None:
    raw = b"".join(encode_frame(frame) for frame in frames)
    reader, got = FrameReader(), []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        got += [frame for frame, _ in reader.feed(raw[:size], [])]
        raw = raw[size:]
    assert got == frames


def test_descriptors_go_to_the_frames_that_say_so_in_their_order() -> None:
    reader = FrameReader()
    first, second, third = encode_frame({"a": 1}, 2), encode_frame({"b": 2}), encode_frame({"c": 3}, 1)
    assert reader.feed(first[:3], [7, 8, 9]) == []
    assert reader.feed(first[3:] + second + third, []) == [
        ({"a": 1, "fds": 2}, [7, 8]),
        ({"b": 2}, []),
        ({"c": 3, "fds": 1}, [9]),
    ]
    assert list(reader.spare) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",
        (FRAME_MAX_BYTES + 1).to_bytes(4, "big"),
        b"\0\0\0\x02[]",
        b"\0\0\0\x01x",
        b"\0\0\0\x0a" + b'{"fds":-1}',
        b"\0\0\0\x09" + b'{"fds":1}',
        b"\0\0\0\x0c" + b'{"fds":null}',
        b"\0\x01\x86\xa0" + b"[" * 100_000,
    ],
)
def test_what_is_no_frame_is_refused(raw: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameReader().feed(raw, [])


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(BadFrame):
        encode_frame({"a": "x" * FRAME_MAX_BYTES})


def test_an_order_arrives_as_it_was_given() -> None:
    order = SpawnOrder(
        name="x@1",
        argv=("a b", "\udcff"),
        env={"A": "é\n"},
        cwd="/",
        fds={9: 3, 4: 5},
        rlimits={"nofile": (1, 2)},
        user="nobody",
        umask=0o77,
        nice=-5,
        stdin="pipe",
        ready_log="up",
    )
    [(frame, _)] = FrameReader().feed(encode_frame({"order": order.to_wire()}), [])
    assert SpawnOrder.from_wire(frame["order"], [50, 60]) == attrs.evolve(order, fds={4: 50, 9: 60})
    with pytest.raises(ValueError, match="zip"):
        SpawnOrder.from_wire(frame["order"], [50])
    with pytest.raises((KeyError, TypeError)):
        SpawnOrder.from_wire({"targets": []}, [])


def test_what_is_told_arrives_as_it_was_said_and_newer_members_are_passed_over() -> None:
    exited = Exited(name="x", run=2, pid=3, start_ticks=4, status=None, at="now", seq=9)
    record = KeptRecord(name="x", role="module", run=1, pid=2, start_ticks=3, argv=("a",), started_at="now", out=5)
    settings = KeeperSettings(max_bytes=1, files=2, max_age_s=3.0, total_bytes=4, abandoned_s=5.0, mark="m")
    trouble = LogTrouble(name="x", failing=True, errno=28, why="full", path="/x", dropped_lines=1, dropped_bytes=2)
    state = LogState(ok=False, troubles=(trouble,), exits_lost=1, lines=2, bytes=3)
    assert Exited.from_wire({**exited.to_wire(), "newer": 1}) == exited
    assert KeptRecord.from_wire({**record.to_wire(), "newer": 1}) == record
    assert KeeperSettings.from_wire({**settings.to_wire(), "newer": 1}) == settings
    assert LogState.from_wire(state.to_wire()) == state
    with pytest.raises(TypeError):
        Exited.from_wire({})
