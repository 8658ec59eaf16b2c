"""The kernel's part of kite.toml, checked once against the contract, and frozen.

Sections of the other houses are skipped. All mistakes are told together. Source: spec 05-surface §6, 00 §33.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from kite_kernel._contract import CONFIG
from kite_kernel.core.permissions import Permissions
from kite_kernel.core.settings import Settings, Timing
from kite_kernel.core.stream_request import is_stream_name
from kite_kernel.core.topics import is_pattern
from kite_kernel.errors import EXIT_CONFIG, StartError

if TYPE_CHECKING:
    from pathlib import Path

_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|KB|MB|GB)?")
_BYTES: Final = {
    "": 1,
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
}
_REFERENCE: Final = re.compile(r"\$(?:\$|\{([^}]*)\}?)?")
_WHOLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# These come from outside only as a string that is nothing but ${NAME}.
_PLAIN_TYPES: Final = ("bool", "int", "number")
_OWN: Final = ("kernel", "timing", "ownership", "streams", "permissions")


@attrs.frozen
class Config:
    """What the kernel is run with. `streams` are the rows of `[streams.NAME]`, checked, defaults filled in."""

    settings: Settings = attrs.field(factory=Settings)
    host: str = "127.0.0.1"
    port: int = 0
    allow_remote: bool = False
    tls: tuple[str, str] | None = None
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    permissions: dict[str, Permissions] = attrs.field(factory=dict)
    streams_open: bool = False
    streams: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    ownership: dict[str, Any] = attrs.field(factory=dict)


def load(path: Path | None, *, standalone: bool) -> Config:
    """Read the file. Errors: StartError 78 with every mistake as `file:line:column: …`."""
    if path is None:
        return build({}, "", "kite.toml", standalone=standalone)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise StartError(EXIT_CONFIG, f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(EXIT_CONFIG, f"{path}: is no UTF-8 text") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+), column (\d+)", str(error))
        place = f":{match[1]}:{match[2]}" if match else ""
        raise StartError(EXIT_CONFIG, f"{path}{place}: {str(error).partition(' (at')[0]}") from None
    config = build(table, text, str(path), standalone=standalone, environ=os.environ)
    if config.tls is None:
        return config
    cert, key = (os.path.join(os.path.dirname(os.path.realpath(path)), file) for file in config.tls)
    return attrs.evolve(config, tls=(cert, key))


def build(
    table: dict[str, Any], text: str, name: str, *, standalone: bool, environ: Mapping[str, str] | None = None
) -> Config:
    """Check the kernel's sections of a parsed file; `${NAME}` comes from `environ`. Errors: StartError 78."""
    check = _Check(text, name, environ or {})
    kernel = check.section("kernel", table.get("kernel", {}), CONFIG["kernel"])
    timing = check.section("timing", table.get("timing", {}), CONFIG["timing"])
    ownership = check.section("ownership", table.get("ownership", {}), CONFIG["ownership"])
    streams_table = table.get("streams", {})
    named = {key: row for key, row in streams_table.items() if isinstance(row, dict)}
    flat = {key: row for key, row in streams_table.items() if not isinstance(row, dict)}
    streams = check.section("streams", flat, CONFIG["streams"])
    rows = {key: check.section(f"streams.{key}", row, CONFIG["streams.*"]) for key, row in named.items()}
    for key in named:
        if not is_stream_name(key):
            check.mistake(f"streams.{key}", "", "a stream's name is a-z, 0-9, '.', '_', '-', at most 128, without '..'")
    permissions = {}
    for key, row in table.get("permissions", {}).items():
        lists = check.section(f"permissions.{key}", row, CONFIG["permissions.*"])
        for kind, patterns in lists.items():
            for pattern in patterns or ():
                if not is_pattern(pattern):
                    check.mistake(f"permissions.{key}", kind, f"{pattern!r} is no pattern")
        permissions[key] = Permissions(*(_frozen(lists.get(kind)) for kind in ("call", "publish", "subscribe")))
    if kernel.get("max_message", 0) > kernel.get("queue_bytes", 0):
        check.mistake("kernel", "max_message", "must not be above queue_bytes")
    tls = kernel.get("tls")
    if not is_loopback(kernel.get("host") or "") and not (kernel.get("allow_remote") and tls):
        check.mistake("kernel", "host", "another host than loopback needs allow_remote = true and tls")
    if check.mistakes:
        raise StartError(EXIT_CONFIG, *check.mistakes)
    return Config(
        settings=Settings(
            timing=scaled(timing),
            max_message_bytes=kernel["max_message"],
            queue_messages=kernel["queue_messages"],
            queue_bytes=kernel["queue_bytes"],
            standalone=standalone,
        ),
        host=kernel["host"],
        port=kernel["port"] if text else 0,
        allow_remote=kernel["allow_remote"],
        tls=(tls["cert"], tls["key"]) if tls else None,
        origins=frozenset(origin.lower() for origin in kernel["origins"]),
        hosts=frozenset(host.lower() for host in kernel["hosts"]),
        permissions=permissions,
        streams_open=streams["open"],
        streams=rows,
        ownership={
            key: value * timing["scale"] if CONFIG["ownership"][key]["type"] == "duration" else value
            for key, value in ownership.items()
        },
    )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener on `host`; of names only localhost counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _frozen(patterns: list[str] | None) -> tuple[str, ...] | None:
    return None if patterns is None else tuple(patterns)


def scaled(timing: dict[str, Any]) -> Timing:
    """Multiply every duration by `scale`."""
    scale = float(timing["scale"])
    values = {
        key: value * scale if CONFIG["timing"][key]["type"] == "duration" else value for key, value in timing.items()
    }
    return Timing(**values)


class _Check:
    """Collects mistakes; knows where a key stands in the text."""

    def __init__(self, text: str, name: str, environ: Mapping[str, str]) -> None:
        self._lines = text.splitlines()
        self._name = name
        self._environ = environ
        self.mistakes: list[str] = []

    def mistake(self, section: str, key: str, why: str) -> None:
        """Note one mistake."""
        line, column = self._place(section, key)
        self.mistakes.append(f"{self._name}:{line}:{column}: [{section}] {key}: {why}")

    def _place(self, section: str, key: str) -> tuple[int, int]:
        inside = False
        header = re.compile(r"\s*\[\s*" + re.escape(section).replace(r"\.", r"\s*\.\s*") + r"\s*\]")
        for number, line in enumerate(self._lines, 1):
            if line.lstrip().startswith("["):
                inside = header.match(line) is not None
                if inside and not key:
                    return number, 1
            elif inside:
                match = re.match(r"(\s*)[\"']?" + re.escape(key) + r"[\"']?\s*[=.]", line)
                if match:
                    return number, len(match[1]) + 1
        return 1, 1

    def section(self, name: str, given: Any, keys: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Check one section; return its values with defaults (a key without either is None)."""
        if not isinstance(given, dict):
            self.mistake(name, "", "must be a table")
            given = {}
        for key in given:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, 1)
                self.mistake(name, key, "unknown key" + (f"; did you mean {near[0]}?" if near else ""))
        values: dict[str, Any] = {}
        for key, row in keys.items():
            value = given.get(key, row.get("default"))
            values[key] = None if value is None else self._value(name, key, value, row)
        return values

    def _value(self, section: str, key: str, value: Any, row: dict[str, Any]) -> Any:
        read = _READERS[row["type"]]
        try:
            found = read(self._follow(value, row["type"]))
        except (ValueError, TypeError) as error:
            self.mistake(section, key, str(error))
            return read(row["default"]) if "default" in row else None
        low, high = row.get("min"), row.get("max")
        if (low is not None and found < low) or (high is not None and found > high):
            self.mistake(section, key, f"must be from {low} to {high}")
        if "choices" in row and found not in row["choices"]:
            self.mistake(section, key, f"must be one of {', '.join(row['choices'])}")
        return found

    def _follow(self, value: Any, kind: str) -> Any:
        """Put in what `${NAME}` stands for, "$" for "$$"; the launcher reads the file by the same rule."""
        if kind == "table" and isinstance(value, dict):
            return {key: self._follow(item, "str") for key, item in value.items()}
        if not isinstance(value, str) or kind == "strlist":
            return value
        if kind in _PLAIN_TYPES:
            match = _WHOLE.fullmatch(value)
            return value if match is None else _plain(self._variable(match[0]))
        return _REFERENCE.sub(lambda match: "$" if match[0] in ("$", "$$") else self._variable(match[0]), value)

    def _variable(self, reference: str) -> str:
        match = _WHOLE.fullmatch(reference)
        if match is None:
            raise ValueError(f"{reference!r} must be ${{NAME}} with a variable's name; a plain dollar sign is $$")
        if match[1] not in self._environ:
            raise ValueError(f"{reference} is not set in the environment")
        return self._environ[match[1]]


def _plain(text: str) -> Any:
    """Read a variable's text as TOML would read it, text when it is neither number nor yes or no."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?[0-9]{1,30}\.[0-9]{1,30}", text) else text


def read_duration(value: Any) -> float:
    """Read `"1m30s"` into seconds. Errors: ValueError."""
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError('must be a duration such as "5s", "250ms" or "1m30s"')
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))


def read_size(value: Any) -> int:
    """Read `"8MiB"` into bytes. Errors: ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a size such as "1MiB" or "64KiB"')
    scale = _BYTES[match[2] or ""]
    return int(match[1]) * scale if match[1].isdigit() else int(float(match[1]) * scale)


def _typed(kind: type | tuple[type, ...], what: str) -> Any:
    def read(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"must be {what}")
        return value

    return read


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of texts")
    return value


def _tls(value: Any) -> dict[str, str]:
    if (
        not isinstance(value, dict)
        or set(value) != {"cert", "key"}
        or not all(isinstance(v, str) for v in value.values())
    ):
        raise ValueError('must be { cert = "…", key = "…" }')
    return value


_READERS: Final[dict[str, Any]] = {
    "str": _typed(str, "a text"),
    "bool": _typed(bool, "true or false"),
    "int": _typed(int, "a whole number"),
    "number": _typed((int, float), "a number"),
    "duration": read_duration,
    "size": read_size,
    "strlist": _texts,
    "table": _tls,
}
