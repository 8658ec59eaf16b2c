"""How often a fresh instance may be started: the record as bytes, the window, and the back-off between two starts.

The record is `restarts.json`: `{"schema":1,"starts":[{"at","cause"}],"clock":{"boot_id","seconds":[…]}}`. `at` is for
people. The window is measured by CLOCK_BOOTTIME, so that a step of the wall clock neither frees nor eats budget;
after a reboot those numbers mean nothing and the stamps are all there is. Source: spec 60 §2, 05 §5, 00 §16, §30.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import attrs
import msgspec

BACKOFF_S: Final = 2.0  # seconds before the second start in the window; doubled for each further one
BACKOFF_MAX_S: Final = 60.0  # seconds
STARTS_KEPT: Final = 100  # entries; the window needs `restarts` of them, the rest is history for people
RECORD_BYTES_MAX: Final = 262_144  # bytes; a larger file was not written here


@attrs.frozen
class Start:
    """One start: ISO stamp with zone, cause, and CLOCK_BOOTTIME seconds where it was this boot."""

    at: str
    cause: str
    seconds: float | None = None


@attrs.frozen
class Allowed:
    """One more start may happen, after `delay_s`; it is number `number` of `of` in the window."""

    delay_s: float
    number: int
    of: int


@attrs.frozen
class Spent:
    """The budget is used up, and why in words."""

    why: str


@attrs.frozen
class Damaged:
    """The file is no record of this schema."""

    why: str


def decode_record(raw: bytes, *, boot_id: str) -> tuple[Start, ...] | Damaged:
    """Read `restarts.json`; b"" = there is none yet. Nothing in it is believed before its type was looked at."""
    if not raw:
        return ()
    if len(raw) > RECORD_BYTES_MAX:
        return Damaged(f"{len(raw)} bytes, more than {RECORD_BYTES_MAX}")
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return Damaged(f"no JSON: {error}")
    if not isinstance(value, dict) or value.get("schema") != 1 or not isinstance(value.get("starts"), list):
        return Damaged("not a record of schema 1")
    rows = value["starts"]
    if not all(isinstance(r, dict) and isinstance(r.get("at"), str) and isinstance(r.get("cause"), str) for r in rows):
        return Damaged("an entry without at and cause")
    clock = value.get("clock")
    seconds: Any = clock.get("seconds") if isinstance(clock, dict) and clock.get("boot_id") == boot_id else None
    if not isinstance(seconds, list) or len(seconds) != len(rows):
        seconds = [None] * len(rows)
    numbers = [float(s) if isinstance(s, int | float) and not isinstance(s, bool) else None for s in seconds]
    return tuple(Start(r["at"], r["cause"], s) for r, s in zip(rows, numbers, strict=True))


def encode_record(starts: tuple[Start, ...], *, boot_id: str) -> bytes:
    """Write the record; the oldest entries beyond what is kept are left out."""
    kept = starts[-STARTS_KEPT:]
    rows = [{"at": s.at, "cause": s.cause} for s in kept]
    clock = {"boot_id": boot_id, "seconds": [s.seconds for s in kept]}
    return msgspec.json.encode({"schema": 1, "starts": rows, "clock": clock}) + b"\n"


def age_s(start: Start, *, boottime: float, utc: datetime) -> float:
    """Seconds since a start. Unreadable or future stamps count as just now: a wrong clock frees no budget."""
    if start.seconds is not None and start.seconds <= boottime:
        return boottime - start.seconds
    try:
        at = datetime.fromisoformat(start.at)
        return max(0.0, (utc - at).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def decide_start(
    starts: tuple[Start, ...], *, restarts: int, within_s: float, scale: float, boottime: float, utc: datetime
) -> Allowed | Spent:
    """Say whether one more start may happen. Args: `within_s` is not scaled, the back-off is."""
    ages = sorted(age for s in starts if (age := age_s(s, boottime=boottime, utc=utc)) < within_s)
    if len(ages) >= restarts:
        return Spent(f"{len(ages)} starts of {restarts} within {within_s:g} s are used up")
    if not ages:
        return Allowed(0.0, 1, restarts)
    backoff_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(len(ages) - 1, 16)) * scale
    return Allowed(max(0.0, backoff_s - ages[0]), len(ages) + 1, restarts)
