"""The codec under any bytes and any cut of them, against an obvious reader and against independent libraries."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.frames import client_frame
from tests.support.reference_codec import read_stream
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import CloseConnection, TextMessage
from wsproto.events import Ping as WsPing
from wsproto.events import Pong as WsPong

from kite_kernel.core.websocket import (
    Closed,
    Codec,
    Event,
    Fault,
    Ping,
    Pong,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)

LIMIT = 300
FRAGMENTS = 6
CORPUS = sorted((Path(__file__).parents[1] / "corpus" / "websocket").glob("*.hex"))


def whole(data: bytes) -> list[Event]:
    return without_reasons(Codec(max_message_bytes=LIMIT, max_fragments=FRAGMENTS).feed(data))


def in_pieces(data: bytes, cuts: list[int]) -> list[Event]:
    codec = Codec(max_message_bytes=LIMIT, max_fragments=FRAGMENTS)
    events: list[Event] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        events += codec.feed(data[begin:end])
    return without_reasons(events)


def without_reasons(events: list[Event]) -> list[Event]:
    return [Fault(event.code, "") if isinstance(event, Fault) else event for event in events]


payloads = st.one_of(
    st.binary(max_size=140),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(
        [b"x" * 125, b"x" * 126, b"x" * LIMIT, b"x" * (LIMIT + 1), b"\x03\xe8", b"\x0f\xaabye", b"\xed\xa0"]
    ),
)
frames = st.builds(
    client_frame,
    payloads,
    opcode=st.sampled_from([1, 1, 1, 0, 0, 9, 10, 8, 2, 3, 11]),
    fin=st.sampled_from([True, True, False]),
    mask=st.binary(min_size=4, max_size=4),
)
right_frames = st.builds(client_frame, st.text(max_size=40).map(str.encode), opcode=st.sampled_from([1, 9, 10]))
streams = st.one_of(
    st.binary(max_size=400),
    st.lists(frames, max_size=8).map(b"".join),
    st.tuples(st.lists(right_frames, max_size=6).map(b"".join), st.binary(max_size=20)).map(b"".join),
)
cuts = st.lists(st.integers(0, 4000), max_size=12)


@settings(max_examples=600, deadline=None)
@given(streams, cuts)
@example(client_frame(b"\xed\xa0", fin=False), [])
@example(client_frame(b"\xf0\x9f\x98", fin=False), [7])
def test_any_bytes_in_any_cut_give_what_the_obvious_reader_says(data: bytes, where: list[int]) -> None:
    expected = read_stream(data, limit=LIMIT, max_fragments=FRAGMENTS)
    assert whole(data) == expected
    assert in_pieces(data, where) == expected
    assert in_pieces(data, list(range(len(data)))) == expected


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus_gives_what_the_obvious_reader_says(path: Path) -> None:
    chance = random.Random(path.stem)
    for number, line in enumerate(path.read_text("ascii").split()):
        data = bytes.fromhex(line)
        expected = read_stream(data, limit=LIMIT, max_fragments=FRAGMENTS)
        assert whole(data) == expected, number
        assert in_pieces(data, [chance.randrange(len(data) + 1) for _ in range(5)]) == expected, number


def test_the_corpus_is_there() -> None:
    assert sum(len(path.read_text("ascii").split()) for path in CORPUS) > 100


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=200), st.tuples(st.sampled_from(["ping", "pong"]), st.binary(max_size=125)))),
    st.one_of(st.none(), st.tuples(st.sampled_from([1000, 1001, 3000, 4999]), st.text(max_size=30))),
    cuts,
)
def test_what_wsproto_sends_comes_out_and_what_comes_out_wsproto_reads(
    sent: list[str | tuple[str, bytes]], goodbye: tuple[int, str] | None, where: list[int]
) -> None:
    client = Connection(ConnectionType.CLIENT)
    wire, expected, answers = b"", list[Event](), b""
    for item in sent:
        if isinstance(item, str):
            wire += client.send(TextMessage(data=item))
            expected.append(item.encode())
            answers += text_frame(item.encode())
        else:
            kind, payload = item
            wire += client.send(WsPing(payload=payload) if kind == "ping" else WsPong(payload=payload))
            expected.append(Ping(payload) if kind == "ping" else Pong(payload))
            answers += ping_frame(payload) if kind == "ping" else pong_frame(payload)
    if goodbye is not None:
        wire += client.send(CloseConnection(code=goodbye[0], reason=goodbye[1]))
        expected.append(Closed(*goodbye))
        answers += close_frame(*goodbye)
    codec = Codec(max_message_bytes=1 << 20)
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in where), len(wire)]
    got = [event for at, end in itertools.pairwise(edges) for event in codec.feed(wire[at:end])]
    assert got == expected
    client.receive_data(answers)
    back = list(client.events())
    assert [_as_event(event) for event in back] == expected


def _as_event(event: object) -> Event:
    match event:
        case TextMessage(data=text):
            return text.encode()
        case WsPing(payload=payload):
            return Ping(bytes(payload))
        case WsPong(payload=payload):
            return Pong(bytes(payload))
        case CloseConnection(code=code, reason=reason):
            return Closed(code, reason or "")
        case _:
            raise AssertionError(event)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=80), st.lists(st.integers(0, 320), max_size=4)), max_size=6), cuts)
def test_the_fragments_of_websockets_are_joined(messages: list[tuple[str, list[int]]], where: list[int]) -> None:
    client = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN)
    for text, borders in messages:
        raw = text.encode()
        edges = [0, *sorted(border % (len(raw) + 1) for border in borders), len(raw)]
        pieces = [raw[at:end] for at, end in itertools.pairwise(edges)]
        client.send_text(pieces[0], fin=len(pieces) == 1)
        for number, piece in enumerate(pieces[1:], 2):
            client.send_continuation(piece, fin=number == len(pieces))
    wire = b"".join(client.data_to_send())
    codec = Codec(max_message_bytes=1 << 20)
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in where), len(wire)]
    got = [event for at, end in itertools.pairwise(edges) for event in codec.feed(wire[at:end])]
    assert got == [text.encode() for text, _ in messages]


def test_what_is_sent_in_every_length_class_is_read_by_websockets() -> None:
    client = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=1 << 20)
    sizes = [0, 1, 125, 126, 127, 65535, 65536, 200_000]
    client.receive_data(b"".join(text_frame(b"x" * size) for size in sizes) + close_frame(4010, "replaced"))
    received = client.events_received()
    read = [event for event in received if isinstance(event, Frame)]
    assert [len(frame.data) for frame in read if frame.opcode is Opcode.TEXT] == sizes
    assert client.close_rcvd is not None
    assert (client.close_rcvd.code, client.close_rcvd.reason) == (4010, "replaced")
