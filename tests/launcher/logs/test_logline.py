"""The stored form of a line: every byte can be told back, and no control character gets into a file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kite_launcher.core.logline import (
    StoredLine,
    cut,
    escape,
    format_cut,
    format_record,
    incomplete_tail,
    parse_line,
    unescape,
)

TIME = "2026-11-30T09:12:13.123456Z"
NASTY = st.lists(
    st.sampled_from(
        [b"a", b"\\", b"\\x41", b"\n", b"\r", b"\t", b"\0", b"\x1b[31m", b"\x7f", b"\xff", b"\x88"]
        + [char.encode() for char in ("\x9b", "é", "你", "😀", " - ", "\u2028")]
        + ["😀".encode()[:2], "你".encode()[:1]]
    ),
    max_size=80,
).map(b"".join)


def stored(data: bytes, **how: object) -> list[StoredLine]:
    """Give the records that a closed stream with this output becomes."""
    part_bytes = int(str(how.get("part_bytes", 16 * 1024)))
    raw = format_cut(
        cut(data, closed=True, part_bytes=part_bytes), time=TIME, stream="out", run=7, part_bytes=part_bytes
    )
    lines = [parse_line(line) for line in raw.split(b"\n")[:-1]]
    assert raw == b"" or raw.endswith(b"\n")
    assert None not in lines
    return [line for line in lines if line is not None]


def told_back(lines: list[StoredLine]) -> bytes:
    """Join records to what the program wrote."""
    return b"".join(line.data + (b"" if line.cont or line.pause or line.nonl else b"\n") for line in lines)


@given(NASTY, st.integers(4, 70))
@settings(max_examples=400, deadline=None)
def test_every_byte_can_be_told_back_whatever_it_is(data: bytes, part_bytes: int) -> None:
    assert told_back(stored(data, part_bytes=part_bytes)) == data


@given(NASTY)
@settings(max_examples=200, deadline=None)
def test_no_control_character_gets_into_a_file(data: bytes) -> None:
    text = format_cut(cut(data, closed=True), time=TIME, stream="err", run=1).decode()
    assert not [char for char in text if (ord(char) < 32 and char not in "\t\n") or 127 <= ord(char) < 160]


def test_plain_text_stays_readable_with_single_backslashes() -> None:
    assert escape("C:\\temp\tschön 😀".encode()) == ("C:\\temp\tschön 😀", False)
    [line] = stored("C:\\temp\tschön 😀\n".encode())
    assert (line.text, line.esc, line.run, line.stream, line.time) == ("C:\\temp\tschön 😀", False, 7, "out", TIME)


def test_escaped_text_doubles_its_backslashes() -> None:
    text, esc = escape(b"\\x41\x00\x88\xff\x1b[31m")
    assert esc
    assert text == "\\\\x41\\x00\\x88\\xff\\x1b[31m"
    assert unescape(text) == b"\\x41\x00\x88\xff\x1b[31m"


def test_an_eight_bit_control_sequence_is_escaped_too() -> None:
    assert escape("\x9b31m".encode()) == ("\\xc2\\x9b31m", True)


def test_a_long_line_is_kept_in_parts_that_join_to_it() -> None:
    data = b"a" * 50_000 + b"end\n"
    lines = stored(data)
    assert [line.cont for line in lines] == [True, True, True, False]
    assert max(len(line.data) for line in lines) <= 16 * 1024
    assert told_back(lines) == data


def test_a_character_is_never_cut_in_two() -> None:
    data = ("x" + "😀" * 30_000).encode() + b"\n"
    lines = stored(data)
    assert len(lines) > 5
    assert not any(line.esc for line in lines)
    assert told_back(lines) == data


@pytest.mark.parametrize("char", ["é", "你", "😀"])
def test_an_unfinished_character_waits_for_its_rest(char: str) -> None:
    raw = char.encode()
    for length in range(1, len(raw)):
        assert incomplete_tail(b"ab" + raw[:length]) == length
        assert cut(b"ab" + raw[:length], pause=True).consume == 2
        assert cut(raw[:length], pause=True).consume == 0
    assert incomplete_tail(b"ab" + raw) == 0


def test_bytes_that_begin_no_character_do_not_wait() -> None:
    assert incomplete_tail(b"a\xff") == 0
    assert incomplete_tail(b"a\x88") == 0
    assert incomplete_tail(b"") == 0


def test_an_unfinished_line_waits_and_a_pause_shows_it() -> None:
    assert cut(b"one\ntwo").consume == 4
    paused = cut(b"one\ntwo", pause=True)
    assert (paused.consume, paused.parts) == (7, ((b"two", "p"),))


def test_the_last_line_without_newline_is_marked() -> None:
    [line] = stored(b"no newline")
    assert (line.text, line.nonl, line.cont) == ("no newline", True, False)


def test_an_empty_line_is_a_line() -> None:
    assert [line.text for line in stored(b"\n\na\n")] == ["", "", "a"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"torn", b"2026 out 1 - x", b"2026-11-30T09:12:13.1Z both 1 - x", b"2026-11-30T09:12:13.123Z out x - y"],
)
def test_what_is_no_record_is_not_read_as_one(raw: bytes) -> None:
    assert parse_line(raw) is None


def test_a_word_of_the_keeper_is_marked_as_its_own() -> None:
    line = parse_line(format_record(b"kite: 3 lines", "k", time=TIME, stream="err", run=0))
    assert line is not None
    assert (line.own, line.text) == (True, "kite: 3 lines")
