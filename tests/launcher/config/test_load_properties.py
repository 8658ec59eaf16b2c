"""Whatever stands in a kite.toml, the check ends in a spec or in placed mistakes, never in a fault of its own."""

from __future__ import annotations

from typing import Any

import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from kite_launcher._contract import CONFIG
from kite_launcher.core.check_rows import Facts, FileFault
from kite_launcher.core.load import load_text
from kite_launcher.core.reload import plan_reload

FACTS = Facts({"A": "1"}, lambda path: FileFault("no such file") if "x" in path else "A=1\n", lambda user: user == "u")

_WORDS = st.sampled_from(
    [
        "",
        "x",
        "5s",
        "-1s",
        "64KiB",
        "${A}",
        "${B}",
        "$$",
        "${",
        "always",
        "TERM",
        "(",
        "077",
        "10/1h",
        "a.*",
        "127.0.0.1",
    ]
)
_SCALARS = st.one_of(
    _WORDS, st.integers(-3, 70000), st.booleans(), st.floats(allow_nan=True), st.dates(), st.text(max_size=4)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["log", "tcp", "file", "cert", "key", "nofile", "A", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
_NAMES = st.sampled_from(["a", "b", "A", "备", "kernel", "a/b", "logs"])


def _section(rows: dict[str, Any]) -> st.SearchStrategy[Any]:
    known = st.sampled_from(sorted(rows) or ["x"])
    return st.one_of(st.dictionaries(st.one_of(known, known, st.just("nope")), _VALUES, max_size=6), _SCALARS)


_DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **{name: _section(rows) for name, rows in CONFIG.items() if "." not in name and f"{name}.*" not in CONFIG},
        **{
            name.partition(".")[0]: st.one_of(st.dictionaries(_NAMES, _section(rows), max_size=3), _SCALARS)
            for name, rows in CONFIG.items()
            if name.endswith(".*")
        },
        "unknown": _VALUES,
    },
)


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_surrogate(item) for item in value.values())
    if isinstance(value, list):
        return any(map(_has_surrogate, value))
    return isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value)


@settings(deadline=None, max_examples=200)
@given(_DOCUMENTS)
def test_any_document_is_a_spec_or_placed_mistakes(document: dict[str, Any]) -> None:
    if _has_surrogate(document):
        return
    text = tomlkit.dumps(document)
    loaded = load_text(text, path="/lab/kite.toml", facts=FACTS)
    assert (loaded.spec is None) == bool(loaded.mistakes)
    lines = text.split("\n")
    places = [(mistake.place.line, mistake.place.column) for mistake in loaded.mistakes]
    assert places == sorted(places)
    for mistake in loaded.mistakes:
        assert 1 <= mistake.place.line <= len(lines)
        assert 1 <= mistake.place.column <= len(lines[mistake.place.line - 1]) + 1
        assert mistake.text
        assert mistake.line("kite.toml").isprintable()
    if loaded.spec is not None:
        assert plan_reload(loaded.spec, loaded.spec).empty


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60), st.text("[]{}=\"'\\\n#., ab1", max_size=60))
def test_any_text_is_a_spec_or_mistakes(one: str, two: str) -> None:
    for text in (one, two):
        loaded = load_text(text, path="/lab/kite.toml", facts=FACTS)
        assert (loaded.spec is None) == bool(loaded.mistakes)
