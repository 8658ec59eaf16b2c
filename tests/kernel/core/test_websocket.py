"""The frame codec, law by law (RFC 6455 sections in the names of the groups)."""

import os

import pytest
from tests.support.frames import client_close, client_frame

from kite_kernel.core.mask import unmask, unmask_plainly
from kite_kernel.core.websocket import (
    Closed,
    Codec,
    Event,
    Fault,
    Ping,
    Pong,
    clip_reason,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
    text_header,
)

LIMIT = 1 << 20


def codec(limit: int = LIMIT, **options: int) -> Codec:
    return Codec(max_message_bytes=limit, **options)


def fed(data: bytes, limit: int = LIMIT) -> list[Event]:
    return codec(limit).feed(data)


def only_fault(data: bytes, limit: int = LIMIT) -> Fault:
    (event,) = fed(data, limit)
    assert isinstance(event, Fault)
    return event


# --- messages ---


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 255, 256, 65535, 65536, 200_000])
def test_a_message_of_any_length_class_comes_out_as_it_went_in(size: int) -> None:
    payload = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert fed(client_frame(payload)) == [payload]


def test_many_frames_in_one_read_come_out_in_order() -> None:
    assert fed(b"".join(client_frame(b"%d" % n) for n in range(1000))) == [b"%d" % n for n in range(1000)]


def test_a_fragmented_message_is_one_message_and_control_frames_may_stand_inside() -> None:
    wire = (
        client_frame(b"one ", fin=False)
        + client_frame(b"?", opcode=9)
        + client_frame(b"two ", opcode=0, fin=False)
        + client_frame(b"!", opcode=10)
        + client_frame(b"three", opcode=0)
        + client_frame(b"next")
    )
    assert fed(wire) == [Ping(b"?"), Pong(b"!"), b"one two three", b"next"]


def test_a_character_cut_by_a_fragment_border_is_carried_whole() -> None:
    raw = "\U0001f600".encode()
    for cut in (1, 2, 3):
        assert fed(client_frame(raw[:cut], fin=False) + client_frame(raw[cut:], opcode=0)) == [raw]


def test_empty_fragments_make_an_empty_message() -> None:
    assert fed(client_frame(b"", fin=False) + client_frame(b"", opcode=0)) == [b""]


def test_bytes_one_by_one_give_the_same_as_all_at_once() -> None:
    wire = client_frame(b"a" * 300) + client_frame("é".encode(), fin=False) + client_frame(b"z", opcode=0)
    wire += client_frame(b"", opcode=9) + client_close(1000, "bye")
    one = codec()
    assert [event for at in range(len(wire)) for event in one.feed(wire[at : at + 1])] == fed(wire)


def test_empty_input_is_no_event() -> None:
    assert fed(b"") == []


# --- limits ---


@pytest.mark.parametrize("limit", [0, 10, 125, 126, 1000, 70_000])
def test_exactly_the_limit_passes_and_one_byte_more_is_1009_at_the_header(limit: int) -> None:
    assert fed(client_frame(b"x" * limit), limit) == [b"x" * limit]
    frame = client_frame(b"x" * (limit + 1))
    header = frame[: len(frame) - limit - 1 - 4]  # without mask and payload
    fault = only_fault(header, limit)
    assert fault.code == 1009
    assert str(limit) in fault.reason
    assert only_fault(frame, limit) == fault


def test_a_declared_giant_is_refused_before_a_byte_of_it_is_held() -> None:
    tested = codec()
    (fault,) = tested.feed(b"\x81\xff" + (2**62).to_bytes(8, "big"))
    assert isinstance(fault, Fault)
    assert fault.code == 1009
    assert tested.held_bytes == 0


def test_the_limit_counts_bytes_over_all_fragments() -> None:
    tested = codec(10)
    assert tested.feed(client_frame("éééé".encode(), fin=False)) == []
    (fault,) = tested.feed(client_frame(b"xyz", opcode=0))
    assert isinstance(fault, Fault)
    assert fault.code == 1009


def test_a_raised_limit_judges_the_frames_that_follow() -> None:
    tested = codec(4)
    tested.max_message_bytes = 100
    assert tested.feed(client_frame(b"x" * 100)) == [b"x" * 100]


def test_endless_empty_fragments_are_1009() -> None:
    tested = codec(max_fragments=3)
    wire = client_frame(b"", fin=False) + client_frame(b"", opcode=0, fin=False) * 2
    assert tested.feed(wire) == []
    (fault,) = tested.feed(client_frame(b"", opcode=0, fin=False))
    assert fault == Fault(1009, "message of more than 3 frames")


def test_the_fragments_of_one_message_are_not_counted_against_the_next() -> None:
    two = client_frame(b"a", fin=False) + client_frame(b"b", opcode=0)
    assert codec(max_fragments=2).feed(two * 50) == [b"ab"] * 50


def test_what_is_held_never_exceeds_the_limit_by_more_than_a_control_frame() -> None:
    tested = codec(1000)
    frame = client_frame(b"x" * 1000, fin=False) + client_frame(b"y" * 100, opcode=9)[:-1]
    for at in range(0, len(frame), 7):
        tested.feed(frame[at : at + 7])
        assert tested.held_bytes <= 1000 + 131


# --- 5.1, 5.2, 5.4, 5.5: frames that are never right ---


@pytest.mark.parametrize("bit", [0x40, 0x20, 0x10])
@pytest.mark.parametrize("opcode", [0, 1, 2, 8, 9, 10])
def test_reserved_bits_are_1002(bit: int, opcode: int) -> None:
    assert only_fault(bytes((0x80 | bit | opcode,))).code == 1002


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
def test_unknown_opcodes_are_1002_at_the_first_byte(opcode: int) -> None:
    assert only_fault(bytes((0x80 | opcode,))).code == 1002


@pytest.mark.parametrize("opcode", [1, 8, 9, 10])
@pytest.mark.parametrize("size", [0, 5, 125, 126, 127])
def test_an_unmasked_frame_is_1002(opcode: int, size: int) -> None:
    assert only_fault(bytes((0x80 | opcode, size)) + b"12345678").code == 1002


def test_binary_is_1003() -> None:
    assert only_fault(client_frame(b"{}", opcode=2)).code == 1003


@pytest.mark.parametrize("opcode", [8, 9, 10])
def test_a_control_frame_over_125_bytes_is_1002(opcode: int) -> None:
    assert only_fault(client_frame(b"x" * 126, opcode=opcode)).code == 1002


@pytest.mark.parametrize("opcode", [8, 9, 10])
def test_a_fragmented_control_frame_is_1002(opcode: int) -> None:
    assert only_fault(client_frame(b"", opcode=opcode, fin=False)).code == 1002


@pytest.mark.parametrize("fin", [True, False])
def test_a_continuation_of_nothing_is_1002(fin: bool) -> None:
    assert only_fault(client_frame(b"x", opcode=0, fin=fin)).code == 1002


def test_a_continuation_after_a_finished_message_is_1002() -> None:
    *_, fault = fed(client_frame(b"a", fin=False) + client_frame(b"b", opcode=0) + client_frame(b"c", opcode=0))
    assert isinstance(fault, Fault)
    assert fault.code == 1002


@pytest.mark.parametrize("opcode", [1, 2])
def test_a_new_message_inside_an_unfinished_one_is_1002(opcode: int) -> None:
    assert only_fault(client_frame(b"a", fin=False) + client_frame(b"b", opcode=opcode)).code == 1002


@pytest.mark.parametrize(
    "header",
    [b"\x81\xfe\x00\x7d", b"\x81\xff" + (65535).to_bytes(8, "big"), b"\x81\xff" + (1 << 63).to_bytes(8, "big")],
    ids=["126 for a short one", "127 for a middle one", "top bit"],
)
@pytest.mark.parametrize("more", [b"", b"maskand it goes on"])
def test_lengths_that_are_not_minimal_are_1002(header: bytes, more: bytes) -> None:
    assert only_fault(header + more).code == 1002


# --- 8.1: text ---

NOT_UTF8 = [b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xc0\x80", b"\x80", b"ok \xe2\x82"]


@pytest.mark.parametrize("raw", NOT_UTF8)
def test_text_that_is_not_utf8_is_1007_whole_fragmented_and_byte_by_byte(raw: bytes) -> None:
    assert only_fault(client_frame(raw)).code == 1007
    assert only_fault(client_frame(raw[:1], fin=False) + client_frame(raw[1:], opcode=0)).code == 1007
    tested, frame = codec(), client_frame(raw)
    events = [event for at in range(len(frame)) for event in tested.feed(frame[at : at + 1])]
    assert [event.code for event in events if isinstance(event, Fault)] == [1007]
    assert len(events) == 1


@pytest.mark.parametrize("bad", [b"\xc3\x28", b"\xed\xa0", b"\xf4\x90", b"\xff"])
def test_a_bad_prefix_fails_before_its_frame_or_message_ends(bad: bytes) -> None:
    assert only_fault(client_frame(bad, fin=False)).code == 1007
    frame = client_frame(bad + b"x" * 100)
    assert only_fault(frame[: 6 + len(bad)]).code == 1007


def test_messages_before_the_bad_one_are_still_given() -> None:
    good, fault = fed(client_frame(b"good") + client_frame(b"\xff"))
    assert good == b"good"
    assert isinstance(fault, Fault)


# --- 5.5.1, 7.4: goodbye ---


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1011, 1012, 1014, 3000, 3999, 4000, 4010, 4999])
def test_a_goodbye_gives_its_code_and_reason(code: int) -> None:
    assert fed(client_close(code, "später")) == [Closed(code, "später")]


def test_an_empty_goodbye_has_no_code() -> None:
    assert fed(client_frame(b"", opcode=8)) == [Closed(None, "")]


@pytest.mark.parametrize("code", [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535])
def test_a_close_code_that_is_never_sent_is_1002(code: int) -> None:
    assert only_fault(client_close(code, "")).code == 1002


def test_a_close_frame_of_one_byte_is_1002() -> None:
    assert only_fault(client_frame(b"\x03", opcode=8)).code == 1002


def test_a_close_reason_that_is_not_utf8_is_1007() -> None:
    assert only_fault(client_frame(b"\x03\xe8\xff", opcode=8)).code == 1007


@pytest.mark.parametrize("last", [client_close(1000, ""), b"\x83"], ids=["goodbye", "fault"])
def test_nothing_is_accepted_after_the_end(last: bytes) -> None:
    tested = codec()
    assert len(tested.feed(client_frame(b"begun", fin=False) + last + client_frame(b"late"))) == 1
    assert tested.finished
    assert tested.feed(client_frame(b"later")) == []
    assert tested.held_bytes == 0


# --- what is sent ---


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_a_text_frame_has_the_shortest_header(size: int) -> None:
    header = text_header(size)
    assert text_frame(b"x" * size) == header + b"x" * size
    assert len(header) == (2 if size < 126 else 4 if size < 65536 else 10)


def test_control_frames_are_whole_and_unmasked() -> None:
    assert ping_frame(b"a") == b"\x89\x01a"
    assert ping_frame() == b"\x89\x00"
    assert pong_frame(b"b") == b"\x8a\x01b"
    assert close_frame(None) == b"\x88\x00"
    assert close_frame(4001, "no") == b"\x88\x04\x0f\xa1no"
    with pytest.raises(ValueError, match="125"):
        pong_frame(b"x" * 126)


def test_a_close_reason_is_clipped_to_whole_characters_of_123_bytes() -> None:
    frame = close_frame(4001, "é" * 300)
    assert len(frame) <= 2 + 125
    assert frame[4:].decode() == "é" * 61
    assert clip_reason("x" * 123) == b"x" * 123
    assert clip_reason("\ud83d!") == b"?!"


# --- 5.3 ---


@pytest.mark.parametrize("size", [*range(10), 125, 126, 2047, 2048, 2049, 2050, 2051, 10_000])
def test_both_ways_to_undo_a_mask_agree_with_the_definition(size: int) -> None:
    data, mask = os.urandom(size), os.urandom(4)
    plain = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    assert unmask_plainly(data, mask) == plain
    assert unmask(data, mask) == plain
