"""The JSON door under JSONTestSuite's files and under bytes made to hurt it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kite_kernel.core.frame import BadFrame, Envelope, is_batch, parse, split_batch

SUITE = Path(__file__).parents[1] / "corpus" / "json-test-suite" / "parsing.json"
CALL = b'{"jsonrpc":"2.0","id":1,"method":"c.echo","params":[%b]}'
VALID_ONCE_INSIDE = {"n_structure_no_data.json", "n_single_space.json"}  # nothing inside [] is an empty array
SLOW_S = 1.0  # a mebibyte takes milliseconds; what grows with its square takes hours


def cases(kind: str) -> list[tuple[str, bytes]]:
    rows = json.loads(SUITE.read_text("ascii"))
    return [
        (row["name"], (row["input"] if "input" in row else row["unit"] * row["times"] + row["rest"]).encode())
        for row in rows
        if row["name"].startswith(kind)
    ]


def door(payload: bytes) -> object:
    """What the door makes of a text frame, batch or not."""
    return split_batch(payload) if is_batch(payload) else parse(payload)


def by_name(kind: str) -> pytest.MarkDecorator:
    rows = cases(kind)
    return pytest.mark.parametrize("text", [text for _, text in rows], ids=[name for name, _ in rows])


def test_the_whole_suite_is_there() -> None:
    assert {kind: len(cases(kind)) for kind in "yni"} == {"y": 95, "n": 188, "i": 35}


@by_name("n_")
def test_what_is_no_json_is_refused_as_a_frame(text: bytes) -> None:
    refused = door(text)
    assert isinstance(refused, BadFrame)
    assert (refused.code, refused.id) in {(-32700, b"null"), (-32600, b"null")}
    assert refused.code == -32700 or refused.reason == "too_deep"


@pytest.mark.parametrize("row", cases("n_"), ids=lambda row: row[0])
def test_what_is_no_json_is_refused_inside_a_call(row: tuple[str, bytes]) -> None:
    name, text = row
    refused = parse(CALL % text)
    if name in VALID_ONCE_INSIDE:
        assert isinstance(refused, Envelope)
        return
    assert isinstance(refused, BadFrame)
    assert refused.code == -32700 or refused.reason == "too_deep"


@by_name("y_")
def test_what_is_json_passes_inside_a_call_as_the_same_bytes(text: bytes) -> None:
    envelope = parse(CALL % text)
    assert isinstance(envelope, Envelope)
    assert bytes(envelope.params) == b"[" + text + b"]"


@by_name("y_")
def test_json_that_is_no_request_is_never_called_unreadable(text: bytes) -> None:
    read = door(text)
    assert not isinstance(read, BadFrame) or read.code == -32600


@by_name("i_")
def test_where_readers_differ_it_passes_as_bytes_or_is_refused_and_never_raises(text: bytes) -> None:
    door(text)
    read = parse(CALL % text)
    if isinstance(read, Envelope):
        assert bytes(read.params) == b"[" + text + b"]"
    else:
        assert read.code == -32700 or read.reason == "too_deep"


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 70 + b'"' + b'\\"' * 500_000,
        b"[" * 70 + b'"' + b"\\\\" * 500_000,
        b'"' + b'\\"' * 500_000,
        b'{"a":' * 70 + b'"' + b'\\"' * 400_000,
        b'{"jsonrpc":"2.0","id":1,"method":"c.e","params":["' + b'\\"' * 400_000 + b'",NaN]}',
        b'{"jsonrpc":"2.0","id":1,"method":"c.e","params":["' + b"\\ud83d" * 150_000,
        b'{"jsonrpc":"2.0","id":1,"method":"c.e","params":["' + b"\\ud83d" * 150_000 + b'"]}',
        b'{"jsonrpc":"2.0","id":1, "method":"c.e","params":'
        + b"[" * 60
        + b'"'
        + b'[\\"' * 300_000
        + b'"'
        + b"]" * 60
        + b"}",
        b'{"jsonrpc":"2.0", "id":1,"method":"c.e","params":[' + b"1," * 400_000 + b"1]}",
        b'{"jsonrpc":"2.0","id":1,"method":"c.e","params":[' + b"9" * 1_000_000 + b"]}",
        b'{"jsonrpc":"2.0","id":1,"method":"c.e","params":[' + (b'"' + b"9" * 800 + b'",') * 1200 + b"1]}",
        b'"' * 1_000_000,
        b"\\" * 1_000_000,
        b"[" * 1_000_000,
        b'{"":' * 250_000,
        b"[]" * 500_000,
        b"[[]," * 250_000,
        b" " * 1_000_000,
        b"{" + b'"a":1,' * 150_000 + b'"b":2}',
        b"-" * 1_000_000,
        b"[" + b"0," * 500_000 + b"0]",
    ],
    ids=lambda text: text[:24].decode() + f"...{len(text)}",
)
def test_a_mebibyte_made_to_hurt_costs_no_more_than_its_length(hostile: bytes) -> None:
    began = time.perf_counter()
    door(hostile)
    assert time.perf_counter() - began < SLOW_S


@pytest.mark.parametrize(
    "text",
    [
        b'{"x":1,"x":2,"jsonrpc":"2.0","id":1,"id":2,"method":"c.ok"}',
        b'{"jsonrpc":"2.0","id":1,"method":"c.ok","x":1,"x":1,"method":"c.secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"c.ok","m\\u0065thod":"c.secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"c.ok","params":[],"params":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"result":2}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""},"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"c.ok"}',
        b'{"jsonrpc":"2.0","id":1,"method":"c.ok","meta":{},"meta":{"timeout":1}}',
    ],
)
def test_a_member_of_the_envelope_twice_is_minus_32600_whatever_stands_around_it(text: bytes) -> None:
    refused = parse(text)
    assert isinstance(refused, BadFrame)
    assert refused.code == -32600


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(json_values, max_size=3), st.booleans(), st.sampled_from([None, 1]))
def test_any_json_passes_untouched(values: list[object], plain: bool, indent: int | None) -> None:
    try:
        params = json.dumps(values, ensure_ascii=plain, indent=indent).encode()
    except UnicodeEncodeError:
        return
    envelope = parse(b'{"jsonrpc":"2.0","id":"a","method":"c.echo","params":%b}' % params)
    if isinstance(envelope, BadFrame):
        assert b"\\ud" in params or len(params) > 400  # lone surrogates, and numbers beyond the digits allowed
    else:
        assert bytes(envelope.params) == params


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]":,\\u0dD8eE+-. \n1', max_size=120))
def test_what_passes_is_json_for_a_second_reader(text: str) -> None:
    raw = text.encode()
    for payload in (raw, CALL % raw):
        if not isinstance(door(payload), BadFrame):
            json.loads(payload)
