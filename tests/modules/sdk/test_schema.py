"""Hints become checks and JSON Schema. Source: spec 30-clients §2, issue's SDK list."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, TypedDict

import attrs
import msgspec
import pytest

from kite_modules.sdk import Module
from kite_modules.sdk.schema import BadParams, Signature, signature_of


@attrs.define
class Size:
    width: int
    height: int = 1


@dataclasses.dataclass
class Colour:
    red: float


class Point(msgspec.Struct):
    x: int


class Opaque:
    """Nothing that JSON could say."""


class Options(TypedDict):
    fast: bool


async def everything(
    path: str,
    size: Size,
    colour: Colour,
    point: Point,
    options: Options,
    mode: Literal["a", "b"],
    tags: list[str],
    many: dict[str, int],
    limit: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3,
    maybe: int | None = None,
) -> Size:
    """Take one of each."""
    return size


GOOD: dict[str, Any] = {
    "path": "p",
    "size": {"width": 2},
    "colour": {"red": 0.5},
    "point": {"x": 1},
    "options": {"fast": True},
    "mode": "a",
    "tags": ["t"],
    "many": {"k": 1},
}


@pytest.fixture(scope="module")
def signature() -> Signature:
    return signature_of(everything)


def read(signature: Signature, params: Any) -> dict[str, Any]:
    return signature.read(msgspec.Raw(msgspec.json.encode(params)))


def test_values_arrive_as_the_authors_own_classes(signature: Signature) -> None:
    got = read(signature, GOOD)
    assert got["size"] == Size(2)
    assert got["colour"] == Colour(0.5)
    assert got["point"] == Point(1)
    assert "limit" not in got  # the author's own default stays the author's


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"path": 1}, "path"),
        ({"size": {"width": "2"}}, "size"),
        ({"size": 7}, "size"),
        ({"colour": {"red": "dark"}}, "colour"),
        ({"point": {}}, "point"),
        ({"options": {"fast": 1}}, "options"),
        ({"mode": "c"}, "mode"),
        ({"tags": [1]}, "tags"),
        ({"many": {"k": "v"}}, "many"),
        ({"limit": 0}, "limit"),
        ({"limit": 2.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"maybe": "x"}, "maybe"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(signature: Signature, change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadParams) as caught:
        read(signature, GOOD | change)
    assert caught.value.field == field
    assert caught.value.why


def test_a_missing_one_is_named(signature: Signature) -> None:
    with pytest.raises(BadParams) as caught:
        read(signature, {name: value for name, value in GOOD.items() if name != "mode"})
    assert caught.value.field == "mode"


@pytest.mark.parametrize("params", [7, "x", None, True])
def test_params_that_are_no_object_are_refused(signature: Signature, params: Any) -> None:
    with pytest.raises(BadParams):
        read(signature, params)


def test_numbers_that_no_reader_holds_are_refused(signature: Signature) -> None:
    with pytest.raises(BadParams):
        signature.read(msgspec.Raw(b'{"path":1e400}'))


def test_params_by_position_are_the_same() -> None:
    def f(a: int, b: str = "x") -> None: ...

    assert read(signature_of(f), [1]) == {"a": 1}
    assert read(signature_of(f), [1, "y"]) == {"a": 1, "b": "y"}
    with pytest.raises(BadParams, match="2 parameters"):
        read(signature_of(f), [1, "y", 3])


def test_the_schema_tells_required_defaults_bounds_and_result(signature: Signature) -> None:
    schema = signature.params_schema
    assert schema["required"] == ["path", "size", "colour", "point", "options", "mode", "tags", "many"]
    assert schema["properties"]["limit"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 3}
    assert schema["properties"]["mode"] == {"enum": ["a", "b"]}
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Size"]["properties"]["height"]["default"] == 1
    assert signature.result_schema is not None
    assert signature.result_schema["properties"]["width"] == {"type": "integer"}
    assert signature.doc == "Take one of each."


def test_a_yielding_method_describes_what_it_yields() -> None:
    async def values(n: int) -> AsyncIterator[str]:
        yield str(n)

    assert signature_of(values).result_schema == {"type": "string"}


def test_a_type_that_no_json_fits_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="parameter 'thing'"):

        @Module("x").method
        async def f(thing: Opaque) -> None: ...


def test_a_hint_that_nobody_can_resolve_is_told_at_the_start() -> None:
    module = Module("x")

    async def f(thing: Local) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    module.method(f)  # it might be defined further down
    with pytest.raises(TypeError, match=r"f: .*'Local'"):
        module.described()


def test_open_parameters_are_taken_and_star_args_refused() -> None:
    def takes(a: int, **rest: Any) -> None: ...

    def star(*rest: int) -> None: ...

    assert read(signature_of(takes), {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(TypeError, match="rest"):
        signature_of(star)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda m: m.on(), "pattern"),
        (lambda m: m.on("a..b"), "pattern"),
        (lambda m: m.on("a.>.b"), "pattern"),
        (lambda m: m.on("a", concurrency=0), "concurrency"),
        (lambda m: m.task(lambda kite: None), "async def"),
        (lambda m: m.method("name"), "function"),
        (lambda m: m.method(name=" x")(lambda: None), "method name"),
        (lambda m: Module("x", concurrency=0), "concurrency"),
    ],
)
def test_an_authors_slip_is_told_at_once(wrong: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        wrong(Module("x"))
