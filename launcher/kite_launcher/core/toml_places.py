"""Where each key and value of a TOML text stands: the one thing that `tomllib` does not tell.

`read` gives the values (by `tomllib`, the library that decides what is TOML) together with a `Places` map from the
path of a value to the line and column of its name and of its value. The finder below runs only over a text that
`tomllib` accepted, so it never judges; it walks the same grammar and writes positions down. A text that is no TOML
comes back as one `Mistake` at the place where it broke.
Paths are tuples: table and key names as strings, positions in arrays as integers.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import attrs

from kite_launcher.core.spec import Mistake, Place

Path = tuple[str | int, ...]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"[ \t]*")
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")
_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@attrs.frozen
class Spot:
    """Where one entry stands: its name (an array's item: the item itself) and its value."""

    name: Place
    value: Place


class Places:
    """Answers where a path of the document stands; the nearest enclosing entry answers for what has no own place."""

    def __init__(self, spots: dict[Path, Spot]) -> None:
        self._spots = spots

    def name(self, path: Path) -> Place:
        """Return the place of the name that introduces `path`."""
        return self._spot(path).name

    def value(self, path: Path) -> Place:
        """Return the place where the value of `path` begins."""
        return self._spot(path).value

    def _spot(self, path: Path) -> Spot:
        for end in range(len(path), 0, -1):
            if (spot := self._spots.get(path[:end])) is not None:
                return spot
        return Spot(Place(1, 1), Place(1, 1))


@attrs.frozen
class Document:
    """A text that is TOML: its values and their places."""

    values: dict[str, Any]
    places: Places


def read(text: str) -> Document | Mistake:
    """Parse `text` (already decoded; CRLF and a byte order mark are fine) into values and places, or say where not."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        return Document(tomllib.loads(text), Places(_Finder(text).run()))
    except tomllib.TOMLDecodeError as error:
        return _syntax_mistake(text, str(error))
    except RecursionError:
        return Mistake(_deepest(text), "expected fewer brackets inside one another")
    except ValueError:
        # A whole number longer than Python reads at once (4300 digits) ends tomllib with a bare ValueError.
        return Mistake(_longest_number(text), "expected a number that a computer can hold")


def _deepest(text: str) -> Place:
    """Return where the longest run of opening brackets stands; only used once the parser gave up on the depth."""
    longest = max(re.finditer(r"[\[{][\[{\s=\w]*", text), key=lambda match: len(match.group()), default=None)
    return _Lines(text).place(longest.start() if longest else 0)


def _longest_number(text: str) -> Place:
    longest = max(re.finditer(r"[0-9_]+", text), key=lambda match: len(match.group()), default=None)
    return _Lines(text).place(longest.start() if longest else 0)


def _syntax_mistake(text: str, message: str) -> Mistake:
    lines = _Lines(text)
    found = _AT.search(message)
    said = _AT.sub("", message)
    said = f"not TOML: {said[:1].lower()}{said[1:]}"
    twice = _walk_broken(text).twice if "overwrite" in said or "twice" in said else None
    if twice is not None:
        return Mistake(twice, "not TOML: this name was given before")
    if found is not None and found.group(1) is not None:
        place = Place(int(found.group(1)), int(found.group(2)))
        in_name = re.search(r"key part|invalid statement|after a key|table declaration", said) is not None
        if in_name and not lines.char(place).isascii():
            said = "not TOML: a name with letters beyond a to z stands in quotes"
        return Mistake(place, _readable(said))
    # The end of the document is where it was noticed; where the string or bracket was opened is where it is wrong.
    opened = _walk_broken(text).opened
    return Mistake(lines.place(opened[-1] if opened else len(text.rstrip())), _readable(said))


def _readable(text: str) -> str:
    """Say what tomllib says of an unclosed string in words that name the mistake."""
    if "illegal character '\\n'" in text:
        return "not TOML: the line ends inside a string, expected its closing quote"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _walk_broken(text: str) -> _Finder:
    """Walk a text that is no TOML as far as it goes."""
    finder = _Finder(text)
    with suppress(IndexError, ValueError):
        finder.run()
    return finder


class _Lines:
    """Turns an offset into line and column."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)

    def char(self, place: Place) -> str:
        """Return the character at a place, "" behind the end."""
        start = self._starts[place.line - 1] + place.column - 1
        return self._text[start : start + 1]


class _Finder:
    """One walk over the text that notes the places of all entries.

    Offsets only ever grow; `opened` holds the starts of what is open and `twice` the first name that was given again,
    so that a broken text can say where it is wrong instead of where that was noticed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines = _Lines(text)
        self._spots: dict[Path, Spot] = {}
        self._counts: dict[Path, int] = {}
        self._given: set[Path] = set()
        self.opened: list[int] = []
        self.twice: Place | None = None

    def run(self) -> dict[Path, Spot]:
        """Walk the whole text. A text that tomllib refused ends it early with IndexError or ValueError."""
        table: Path = ()
        while True:
            self._skip_blank_lines()
            if self._at >= len(self._text):
                return self._spots
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._entry(table)

    def _header(self) -> Path:
        repeated = self._text.startswith("[[", self._at)
        self._at += 2 if repeated else 1
        path: Path = ()
        parts = list(self._key())
        for index, (part, place) in enumerate(parts):
            path = (*path, part)
            last = index == len(parts) - 1
            self._note(path, place, place)
            if last and repeated:
                self._counts[path] = self._counts.get(path, -1) + 1
            if path in self._counts:
                path = (*path, self._counts[path])
                self._note(path, place, place)
        self._at += 2 if repeated else 1
        if not repeated:
            self._give(path, parts[-1][1])
        return path

    def _entry(self, table: Path) -> None:
        path = table
        place = self._lines.place(self._at)
        for part, place in self._key():
            path = (*path, part)
            self._note(path, place, place)
        self._give(path, place)
        self._at += 1  # the equals sign
        self._blank()
        self._spots[path] = Spot(place, self._lines.place(self._at))
        self._value(path)

    def _key(self) -> Iterator[tuple[str, Place]]:
        while True:
            self._blank()
            place = self._lines.place(self._at)
            if self._text[self._at] in "\"'":
                start = self._at
                self._string()
                (name,) = tomllib.loads(self._text[start : self._at] + " = 0")
            else:
                match = _BARE.match(self._text, self._at)
                if match is None:
                    raise ValueError("no key")
                self._at, name = match.end(), match.group()
            yield name, place
            self._blank()
            if self._text[self._at] != ".":
                return
            self._at += 1

    def _value(self, path: Path) -> None:
        char = self._text[self._at]
        if char in "\"'":
            self._string()
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        else:
            match = _SCALAR.match(self._text, self._at)
            self._at = match.end() if match else self._at

    def _array(self, path: Path) -> None:
        self._open(1)
        index = 0
        while True:
            self._skip_blank_lines()
            if self._text[self._at] == "]":
                break
            item: Path = (*path, index)
            self._note(item, self._lines.place(self._at), self._lines.place(self._at))
            self._value(item)
            self._skip_blank_lines()
            if self._text[self._at] == ",":
                self._at += 1
            elif self._text[self._at] != "]":
                raise ValueError("no comma")
            index += 1
        self._close(1)

    def _inline_table(self, path: Path) -> None:
        self._open(1)
        while True:
            self._skip_blank_lines()
            if self._text[self._at] == "}":
                break
            self._entry(path)
            self._skip_blank_lines()
            if self._text[self._at] == ",":
                self._at += 1
            elif self._text[self._at] != "}":
                raise ValueError("no comma")
        self._close(1)

    def _string(self) -> None:
        quote = self._text[self._at]
        long = self._text.startswith(quote * 3, self._at)
        self._open(3 if long else 1)
        end = quote * 3 if long else quote
        while not self._text.startswith(end, self._at):
            if self._at >= len(self._text) or (not long and self._text[self._at] == "\n"):
                raise ValueError("no closing quote")
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._close(len(end))
        # Up to two quotes may stand directly before the closing three.
        while long and self._text.startswith(quote, self._at):
            self._at += 1

    def _open(self, length: int) -> None:
        self.opened.append(self._at)
        self._at += length

    def _close(self, length: int) -> None:
        self.opened.pop()
        self._at += length

    def _blank(self) -> None:
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _skip_blank_lines(self) -> None:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in " \t\n":
                self._at += 1
            else:
                return

    def _give(self, path: Path, place: Place) -> None:
        if path in self._given and self.twice is None:
            self.twice = place
        self._given.add(path)

    def _note(self, path: Path, name: Place, value: Place) -> None:
        self._spots.setdefault(path, Spot(name, value))
