"""Durations, sizes and rates as kite.toml writes them, as numbers.

"500ms", "1.5s", "2m", "1h30m", "7d"; "64KiB"; "10/1h". Whatever is read here the kernel reads as the same number.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern}){{1,5}}")
_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(B|KiB|MiB|GiB|TiB)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

# Ten years: what is longer is a slip of the finger, and timers stay exact.
DURATION_MAX_S: Final = 3650 * 86400.0


def parse_duration(text: str) -> float | None:
    """Return the seconds that `text` means ("500ms" → 0.5), or None when it is no duration."""
    if _DURATION.fullmatch(text) is None:
        return None
    # Milliseconds are divided, not multiplied: 10000ms is exactly 10 s.
    parts = (
        float(number) / 1000 if unit == "ms" else float(number) * _SECONDS[unit] for number, unit in _PART.findall(text)
    )
    return sum(parts)


def parse_size(text: str) -> int | None:
    """Return the bytes that `text` means ("64KiB" → 65536), or None when it is no size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    return int(number) * _BYTES[unit] if number.isdigit() else int(float(number) * _BYTES[unit])


def parse_rate(text: str) -> tuple[int, float] | None:
    """Return (count, seconds) of a rate such as "10/1h", or None when it is none."""
    count, slash, span = text.partition("/")
    seconds = parse_duration(span)
    if not slash or seconds is None or seconds <= 0 or re.fullmatch(r"[0-9]{1,9}", count) is None or int(count) < 1:
        return None
    return int(count), seconds


def words_duration(seconds: float) -> str:
    """Return a duration as a person writes it, in the unit that needs the fewest digits: 0.5 → "500ms"."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"


def words_size(size_bytes: int) -> str:
    """Return a size as a person writes it: 65536 → "64KiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _BYTES[unit] == 0:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return f"{size_bytes}B"
