"""From what came back on a health call to one sample. Everything here was said by a module: nothing is believed.

Source: spec 60-watchdog §1; 05-surface §3 (`{status, why?, details?}`), §9 (reasons).
"""

from __future__ import annotations

from typing import Final

from kite_watchdog._contract import E_CONNECTION_LOST, E_DEADLINE, E_METHOD_NOT_FOUND, E_OFFLINE, E_OVERLOADED
from kite_watchdog.core.frames import Answer, decode, plain
from kite_watchdog.core.health import Kind, Sample

HEALTH_BYTES_MAX: Final = 65_536  # bytes; a larger answer is a fault of its own, and is not even decoded
WHY_MAX: Final = 300  # characters of a module's own words
# A module in its debounce or on its way to ready is neither well nor gone: a short cut is told to nobody.
STILL_OPEN: Final = ("debounce", "not_ready")
NO_WORD: Final = (
    E_OFFLINE,
    E_CONNECTION_LOST,
    E_METHOD_NOT_FOUND,
    E_OVERLOADED,
)  # the kernel's own, about the way there
STATUS: Final = {"ok": Kind.GOOD, "degraded": Kind.DEGRADED, "failing": Kind.FAILING}


def sample_of(answer: Answer, *, due_s: float) -> Sample | None:
    """Judge one answer. None = it says nothing about the module: the kernel lost it, was silent or too busy."""
    if answer.lost:
        return None
    if answer.error is None:
        return _of_result(answer.result)
    # An error with an `outcome` was made by the kernel; a module's own error passes untouched and counts as its word.
    by_kernel = bool(answer.outcome) and bool(answer.reason)
    if by_kernel and answer.error == E_OFFLINE and answer.reason not in STILL_OPEN:
        return Sample(Kind.AWAY, f"not on the wire ({answer.reason})")
    if by_kernel and answer.error == E_DEADLINE:
        return Sample(Kind.TIMEOUT, f"no health answer within {due_s:g} s")
    if by_kernel and answer.error in NO_WORD:
        return None
    return Sample(Kind.ERROR, f"health answered error {answer.error}: {plain(answer.message, WHY_MAX)}")


def _of_result(raw: bytes) -> Sample:
    if len(raw) > HEALTH_BYTES_MAX:
        return Sample(Kind.MALFORMED, f"health answered {len(raw)} bytes, more than {HEALTH_BYTES_MAX}")
    value = decode(raw, bytes_max=HEALTH_BYTES_MAX)
    if not isinstance(value, dict):
        return Sample(Kind.MALFORMED, "health answered no object")
    status, why = value.get("status"), value.get("why", "")
    kind = STATUS.get(status) if isinstance(status, str) else None
    if kind is None:
        return Sample(Kind.MALFORMED, "health answered without status ok, degraded or failing")
    if why is not None and not isinstance(why, str):
        return Sample(Kind.MALFORMED, "health answered a why that is no text")
    words = plain(why or "", WHY_MAX)
    if kind is Kind.GOOD:
        return Sample(kind, words)
    return Sample(kind, words or f"says {status}")
