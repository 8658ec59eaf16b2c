"""What a program says on its NOTIFY_SOCKET, read strictly.

Source: sd_notify(3); spec 05 §4.
"""

from __future__ import annotations

from typing import Final

import attrs

STATUS_CHARS: Final = 200  # one line of `why`; more would drown the rest
EXTEND_MAX_S: Final = 3600.0  # an hour; a program that asks for more is asked again


@attrs.frozen
class Note:
    """One datagram: every field is None or False when it said nothing about it."""

    ready: bool = False
    stopping: bool = False
    watchdog: bool = False
    status: str | None = None
    extend_s: float | None = None


def parse_note(datagram: bytes) -> Note:
    """Read one datagram; lines that are not known are passed over, as sd_notify asks."""
    ready = stopping = watchdog = False
    status: str | None = None
    extend_s: float | None = None
    for line in datagram.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        match key:
            case "READY":
                ready = value.strip() == "1"
            case "STOPPING":
                stopping = value.strip() == "1"
            case "WATCHDOG":
                watchdog = value.strip() == "1"
            case "STATUS":
                status = "".join(char if char.isprintable() else "?" for char in value)[:STATUS_CHARS]
            case "EXTEND_TIMEOUT_USEC":
                extend_s = _usec(value)
            case _:
                pass
    return Note(ready=ready, stopping=stopping, watchdog=watchdog, status=status, extend_s=extend_s)


def _usec(value: str) -> float | None:
    text = value.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return min(int(text) / 1e6, EXTEND_MAX_S)
