"""Where things stand in a TOML text: every kind of key and value, and what is no TOML."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kite_launcher.core.spec import Mistake, Place
from kite_launcher.core.toml_places import Document, Path, read


def document(text: str) -> Document:
    found = read(text)
    assert isinstance(found, Document), found
    return found


def at(text: str, *path: str | int) -> tuple[tuple[int, int], tuple[int, int]]:
    places = document(text).places
    name, value = places.name(path), places.value(path)
    return (name.line, name.column), (value.line, value.column)


def test_a_key_and_its_value_have_places_of_their_own() -> None:
    assert at("\n  port = 80", "port") == ((2, 3), (2, 10))


def test_a_section_stands_where_its_name_stands() -> None:
    assert at("# x\n[ a . b ]\nc=1", "a", "b") == ((2, 7), (2, 7))
    assert at("# x\n[ a . b ]\nc=1", "a", "b", "c") == ((3, 1), (3, 3))


def test_the_first_mention_of_a_table_is_its_place() -> None:
    assert at("[a.b]\n[a.c]\n[a]\nx=1", "a") == ((1, 2), (1, 2))


def test_quoted_and_dotted_keys_are_found_under_their_meaning() -> None:
    text = '"q\\"k".\'z\'. y = 1\n'
    assert at(text, 'q"k', "z", "y") == ((1, 13), (1, 17))
    assert at('[module."a b\\u00e9"]\nx=1', "module", "a bé", "x") == ((2, 1), (2, 3))


def test_array_items_have_places_across_lines_comments_and_nested_values() -> None:
    text = 'a = [ "x", # [ "no"\n  ["y", "]"],\n  { k = 1, "l" = [2] },\n]\nb = 1'
    assert at(text, "a", 0)[1] == (1, 7)
    assert at(text, "a", 1, 1)[1] == (2, 9)
    assert at(text, "a", 2, "l") == ((3, 12), (3, 18))
    assert at(text, "b") == ((5, 1), (5, 5))


def test_strings_of_all_four_kinds_end_where_they_end() -> None:
    text = 'a = """x " \\""" y\n"""""\nb = \'\'\'\\\n\'\'\'\nc = "\\\\"\nd = \'\\\'\ne = """"q"""\nf = 1'
    assert at(text, "f") == ((8, 1), (8, 5))


def test_repeated_tables_are_counted() -> None:
    text = "[[s]]\nx=1\n[[s]]\nx=2\n[s.t]\ny=3\n"
    assert at(text, "s", 1, "x") == ((4, 1), (4, 3))
    assert at(text, "s", 1, "t", "y") == ((6, 1), (6, 3))


def test_windows_lines_and_a_byte_order_mark_move_nothing() -> None:
    assert at("\ufeff[a]\r\n\r\nb = 1\r\n", "a", "b") == ((3, 1), (3, 5))


def test_columns_count_characters() -> None:
    assert at("a = { '名' = '值值', b = 1 }", "a", "b") == ((1, 19), (1, 23))


def test_what_has_no_place_of_its_own_has_its_parents() -> None:
    places = document("[a]\nb = 1").places
    assert places.value(("a", "b", "c")) == Place(2, 5)
    assert places.value(("z",)) == Place(1, 1)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('a = 1\nb = "open\nc = 2\n', 2, 10),
        ("a = 1\nb = 'open", 2, 5),
        ('a = 1\n\nb = """x\n\ny\n', 3, 5),
        ("a = [1,\n2\n", 1, 5),
        ("a = 1\na = 2", 2, 1),
        ("[a]\n[a]", 2, 2),
        ("[a]\nb = [1,\n2]\n b = [\n3\n]", 4, 2),
        ("a = tru", 1, 5),
        ("\x01", 1, 1),
        ("a = 1\na.b = { c = [1 2], d = 1 }", 2, 16),
        ("a = { b = 1 c = 2 }\na = 3", 1, 13),
        ('a = [1,\n2\nb = """x', 3, 1),
        ("a = 1\r\nb = ]\r\n", 2, 5),
    ],
)
def test_what_is_no_toml_is_one_mistake_where_it_broke(text: str, line: int, column: int) -> None:
    found = read(text)
    assert isinstance(found, Mistake)
    assert found.place == Place(line, column)
    assert found.text.isprintable()


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 5000, "x = " + "{a=" * 5000])
def test_monsters_are_mistakes_not_faults(text: str) -> None:
    found = read(text)
    assert isinstance(found, Mistake)
    assert found.place == Place(1, 5)


_KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6),
)
_VALUES = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=8,
)


def spell(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return quote(value)
        case list():
            return "[ " + ", ".join(map(spell, value)) + " ]"
        case _:
            return "{ " + ", ".join(f"{quote(key)} = {spell(item)}" for key, item in value.items()) + " }"


def quote(text: str) -> str:
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def walk(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    found = [(path, value)] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += walk(item, (*path, key))
    return found


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _VALUES, max_size=5).filter(lambda d: not _has_surrogate(d)))
def test_every_value_of_any_document_reads_back_from_its_place(values: dict[str, Any]) -> None:
    text = "\n".join(f"{quote(key)} = {spell(item)}" for key, item in values.items())
    found = document(text)
    assert found.values == values
    lines = text.split("\n")
    for path, value in walk(values):
        place = found.places.value(path)
        rest = lines[place.line - 1][place.column - 1 :]
        assert rest.startswith(spell(value)), (path, rest)
    assert tomllib.loads(text) == values


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return any(0xD800 <= ord(char) <= 0xDFFF for char in value)
    if isinstance(value, dict):
        return any(_has_surrogate(key) or _has_surrogate(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_has_surrogate, value))
