"""JSON on the command line, in and out: read once, carried as it was written. Source: spec 05-surface §3."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from kite_modules.cli.fail import USAGE, Failure

_STDIN_BYTES_MAX = 16 * 1024 * 1024


def read_value(words: Sequence[str], *, what: str, structured: bool) -> msgspec.Raw | dict[str, Any] | None:
    """Return the JSON that a command line gives: one JSON text, `-` for stdin, or `name=text` and `name:=JSON` pairs.

    Args: `structured` asks for an object or array. Returns: None where nothing was given. Raises: Failure 64.
    """
    if not words:
        return None
    if len(words) == 1 and (words[0] == "-" or not _is_pair(words[0])):
        text = _stdin() if words[0] == "-" else words[0].encode("utf-8", "surrogateescape")
        return _raw(text, what, structured)
    pairs: dict[str, Any] = {}
    for word in words:
        if not _is_pair(word):
            raise Failure(USAGE, f"{what} is one JSON text, or name=text and name:=JSON pairs", "quote JSON with '…'")
        name, _, value = word.partition("=")
        if name.endswith(":"):
            pairs[name[:-1]] = _raw(value.encode("utf-8", "surrogateescape"), f"{what} {name[:-1]}", False)
        else:
            pairs[name] = value
    return pairs


def _is_pair(word: str) -> bool:
    name = word.partition("=")[0]
    return "=" in word and bool(name.rstrip(":")) and name[0] not in '{["' and not name[0].isdigit()


def _stdin() -> bytes:
    text = sys.stdin.buffer.read(_STDIN_BYTES_MAX + 1)
    if len(text) > _STDIN_BYTES_MAX:
        raise Failure(USAGE, f"stdin holds more than {_STDIN_BYTES_MAX} bytes")
    return text


def _raw(text: bytes, what: str, structured: bool) -> msgspec.Raw:
    try:
        raw = msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        reason = str(error).partition(" (byte")[0].replace("JSON is malformed: ", "")
        raise Failure(USAGE, f"{what} is no JSON: {reason}", "quote it with '…', or use name=text pairs") from None
    if structured and bytes(raw).lstrip()[:1] not in (b"{", b"["):
        raise Failure(USAGE, f"{what} must be an object or an array", 'for example \'{"name":"you"}\'')
    return raw


def pretty(raw: bytes) -> str:
    """Return JSON for people: indented where stdout is a terminal, one line elsewhere; numbers stay as they came."""
    indent = 2 if sys.stdout is not None and sys.stdout.isatty() else 0
    return msgspec.json.format(raw, indent=indent).decode("utf-8") if indent else raw.decode("utf-8")
