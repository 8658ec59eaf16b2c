"""One table of kite.toml against its rows in the contract: typed values out, mistakes collected, nothing guessed.

A value has exactly the type that its row names; "80" is no integer and 15 is no duration. The one way for a number
or a yes/no to come from outside is a string that is nothing but `${NAME}`, which the file's writer asked for by name.
Strings may hold `${NAME}` too ("$$" = "$"), but for those that a program reads by its own rules (argv, regular
expressions, patterns). Source: spec 05 §6, spec 50 §5, 00 §33.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from kite_launcher.core.names import nearest
from kite_launcher.core.spec import Mistake
from kite_launcher.core.toml_places import Path, Places
from kite_launcher.core.units import (
    DURATION_MAX_S,
    parse_duration,
    parse_rate,
    parse_size,
    words_duration,
    words_size,
)

Row = Mapping[str, Any]

_REFERENCE: Final = re.compile(r"\$(?:\$|\{([^}]*)\}?)?")
_WHOLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SHOWN_MAX: Final = 40


@attrs.frozen
class FileFault:
    """Why a file that kite.toml names can't be read; `permission` when only its mode or owner stands in the way."""

    why: str
    permission: bool = False


@attrs.frozen
class Facts:
    """What the check may ask of the world outside the file; the edge answers, tests answer with dictionaries.

    `read(path)` gives a file's text. `user(name)` says whether that account exists. `program(argv0, cwd, path)`,
    `package(name)` and `file(path)` say what keeps a program, package or script from being started (None: nothing);
    where they are None the question is not asked, because a start reports it as that module's own failure instead
    (case S-45).
    """

    environ: Mapping[str, str]
    read: Callable[[str], str | FileFault]
    user: Callable[[str], bool]
    program: Callable[[str, str, str | None], str | None] | None = None
    package: Callable[[str], str | None] | None = None
    file: Callable[[str], str | None] | None = None


class _Wrong(Exception):
    """One value is refused; carries the mistake's text and the nearest valid name. Never leaves this file."""

    def __init__(self, text: str, near: str | None = None, path: Path = ()) -> None:
        super().__init__(text)
        self.text = text
        self.near = near
        self.path = path


class RowChecker:
    """Checks tables row by row and keeps every mistake with its place."""

    def __init__(self, places: Places, facts: Facts) -> None:
        self.places = places
        self.facts = facts
        self.mistakes: list[Mistake] = []

    def wrong(self, path: Path, text: str, *, near: str | None = None, permission: bool = False) -> None:
        """Note that the value at `path` is not right; its place is where the value begins."""
        fault = "permission" if permission else "config"
        self.mistakes.append(Mistake(self.places.value(path), text, near, fault))  # type: ignore[arg-type]

    def wrong_name(self, path: Path, text: str, *, near: str | None = None) -> None:
        """Note that the name at `path` is not right."""
        self.mistakes.append(Mistake(self.places.name(path), text, near))

    def table(self, path: Path, value: Any, rows: Mapping[str, Row], *, known: Iterable[str] = ()) -> dict[str, Any]:
        """Return the typed values of one table, a default for every row that is absent or wrong.

        A row without a default gives None. `known` are further names that the caller reads itself.
        """
        out = {name: self.default(row) for name, row in rows.items()}
        if not isinstance(value, dict):
            if value is not None:
                self.wrong(path, f"expected a table [{words_path(path)}], not {shown(value)}")
            return out
        for name, item in value.items():
            here = (*path, name)
            if name in rows:
                try:
                    out[name] = self.convert(here, item, rows[name])
                except _Wrong as wrong:
                    self.wrong(wrong.path or here, wrong.text, near=wrong.near)
            elif name not in known:
                near = nearest(name, (*rows, *known))
                self.wrong_name(here, f"unknown key {name!r} in [{words_path(path)}]", near=near)
        return out

    def default(self, row: Row) -> Any:
        """Return a row's default in its final form, or None."""
        default = row.get("default")
        if default is None:
            return None
        match row["type"]:
            case "duration":
                return parse_duration(default)
            case "size":
                return parse_size(default)
            case "rate":
                return parse_rate(default)
            case "strlist" | "command":
                return tuple(default)
            case _:
                return default

    def convert(self, path: Path, value: Any, row: Row) -> Any:
        """Return `value` in the form of its row. Raises the private refusal that `table` turns into a mistake."""
        kind = row["type"]
        if kind in ("int", "number", "bool") and isinstance(value, str) and (match := _WHOLE.fullmatch(value)):
            value = self._from_environment(match.group(1))
        if isinstance(value, str) and kind in ("str", "duration", "size", "rate") and not row.get("literal"):
            value = self.expand(value)
        if row.get("or_false") and value is False:
            return False
        if row.get("or_table") and isinstance(value, dict):
            return _table(path, value, row)
        return _CONVERT[kind](path, value, row)

    def expand(self, text: str) -> str:
        """Return `text` with `${NAME}` replaced from the environment and "$$" by "$"; any other "$" stays itself."""

        def replace(match: re.Match[str]) -> str:
            whole = match.group()
            if whole == "$$":
                return "$"
            if whole == "$":
                return "$"
            name = match.group(1)
            if _WHOLE.fullmatch(whole) is None:
                raise _Wrong(f"expected ${{NAME}} with a variable's name, not {whole!r}; a plain dollar sign is $$")
            if name not in self.facts.environ:
                raise _Wrong(f"${{{name}}} is not set in the environment", nearest(name, self.facts.environ))
            return self.facts.environ[name]

        return _REFERENCE.sub(replace, text)

    def expanded(self, path: Path, text: str) -> str:
        """Return `expand(text)`; a reference that can't be followed becomes a mistake at `path`."""
        try:
            return self.expand(text)
        except _Wrong as wrong:
            self.wrong(path, wrong.text, near=wrong.near)
            return text

    def _from_environment(self, name: str) -> Any:
        if name not in self.facts.environ:
            raise _Wrong(f"${{{name}}} is not set in the environment", nearest(name, self.facts.environ))
        text = self.facts.environ[name]
        if text in ("true", "false"):
            return text == "true"
        if re.fullmatch(r"[+-]?[0-9]{1,30}", text):
            return int(text)
        return float(text) if re.fullmatch(r"[+-]?[0-9]{1,30}\.[0-9]{1,30}", text) else text


def words_path(path: Path) -> str:
    """Return a path as a person writes it, `module.x.env`."""
    return ".".join(str(part) for part in path)


def shown(value: Any) -> str:
    """Return a short form of a wrong value for a message, in TOML's own spelling."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            text = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "…"
            return 'the string "' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + '"'
        case int() | float():
            return f"the number {value}" if len(str(value)) <= _SHOWN_MAX else "a number that long"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return f"the date {value}"


def _str(path: Path, value: Any, row: Row) -> str:
    if not isinstance(value, str):
        wish = f"one of {', '.join(row['choices'])}" if "choices" in row else row.get("expected", "a string")
        raise _Wrong(f"expected {wish}, not {shown(value)}")
    if "\0" in value:
        raise _Wrong("expected a string without NUL characters")
    if "pattern" in row and re.fullmatch(row["pattern"], value) is None:
        raise _Wrong(f"expected {row['expected']}, not {shown(value)}")
    if "choices" in row and value not in row["choices"]:
        raise _Wrong(f"expected one of {', '.join(row['choices'])}, not {shown(value)}", nearest(value, row["choices"]))
    return value


def _bool(path: Path, value: Any, row: Row) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"expected true or false, not {shown(value)}")
    return value


def _span(row: Row, words: Callable[[Any], str] = str) -> str:
    low, high = row.get("min"), row.get("max")
    if low is not None and high is not None:
        return f" from {words(low)} to {words(high)}"
    if low is not None:
        return f" of at least {words(low)}"
    return f" of at most {words(high)}" if high is not None else ""


def _in_range(value: float, row: Row) -> bool:
    return bool(row.get("min", -math.inf) <= value <= row.get("max", math.inf))


def _int(path: Path, value: Any, row: Row) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not _in_range(value, row):
        raise _Wrong(f"expected a whole number{_span(row)}, not {shown(value)}")
    return value


def _number(path: Path, value: Any, row: Row) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Wrong(f"expected a number{_span(row)}, not {shown(value)}")
    if not _in_range(value, row):
        raise _Wrong(f"expected a number{_span(row)}, not {shown(value)}")
    return float(value)


def _duration(path: Path, value: Any, row: Row) -> float:
    wish = 'a duration such as "500ms", "5s" or "2m"' + (", or false" if row.get("or_false") else "")
    seconds = parse_duration(value) if isinstance(value, str) else None
    if seconds is None:
        raise _Wrong(f"expected {wish}, not {shown(value)}")
    if row.get("positive") and seconds <= 0:
        raise _Wrong(f"expected a duration longer than nothing, not {shown(value)}")
    if seconds > DURATION_MAX_S:
        raise _Wrong(f'expected a duration of at most "{words_duration(DURATION_MAX_S)}", not {shown(value)}')
    return seconds


def _size(path: Path, value: Any, row: Row) -> int:
    size = parse_size(value) if isinstance(value, str) else None
    if size is None:
        raise _Wrong(f'expected a size such as "64KiB" or "10MiB", not {shown(value)}')
    if not _in_range(size, row):
        raise _Wrong(f"expected a size{_span(row, words_size)}, not {shown(value)}")
    return size


def _rate(path: Path, value: Any, row: Row) -> tuple[int, float]:
    rate = parse_rate(value) if isinstance(value, str) else None
    if rate is None:
        raise _Wrong(f'expected a rate such as "10/1h", not {shown(value)}')
    return rate


def _strings(path: Path, value: Any, row: Row) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Wrong(f'expected an array of strings such as ["a", "b"], not {shown(value)}')
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise _Wrong(f"expected a string, not {shown(item)}", path=(*path, index))
        if "\0" in item:
            raise _Wrong("expected a string without NUL characters", path=(*path, index))
    return tuple(value)


def _command(path: Path, value: Any, row: Row) -> tuple[str, ...]:
    if isinstance(value, str):
        raise _Wrong(f'expected the program and its arguments as an array such as ["prog", "arg"], not {shown(value)}')
    argv = _strings(path, value, row)
    if not argv or not argv[0]:
        raise _Wrong("expected at least the name of a program")
    return argv


def _table(path: Path, value: Any, row: Row) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"expected a table, not {shown(value)}")
    keys: Mapping[str, Any] | None = row.get("keys")
    if keys is None:
        return value
    out: dict[str, Any] = {}
    for name, item in value.items():
        if name not in keys:
            raise _Wrong(f"unknown key {name!r}, expected {', '.join(keys)}", nearest(name, keys), (*path, name))
        inner = keys[name] if isinstance(keys[name], Mapping) else {"type": keys[name]}
        try:
            out[name] = _CONVERT[inner["type"]]((*path, name), item, inner)
        except _Wrong as wrong:
            raise _Wrong(wrong.text, wrong.near, wrong.path or (*path, name)) from None
    if row.get("one_of") and len(out) != 1:
        raise _Wrong(f"expected exactly one of {', '.join(keys)}")
    missing = [name for name in row.get("all_of", ()) if name not in out]
    if missing:
        raise _Wrong(f"expected {' and '.join(missing)} too")
    return out


def _any(path: Path, value: Any, row: Row) -> Any:
    return value


_CONVERT: Final[Mapping[str, Callable[[Path, Any, Row], Any]]] = {
    "str": _str,
    "bool": _bool,
    "int": _int,
    "number": _number,
    "duration": _duration,
    "size": _size,
    "rate": _rate,
    "strlist": _strings,
    "command": _command,
    "table": _table,
    "env": _table,
    "any": _any,
}
