"""Log lines: to stderr alone, as text for people or JSON for machines; nothing that a peer chose can break a line.

Source: spec 20-kernel §8, case X-38.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_LONGEST: Final = 500  # characters of one value


def set_up(kind: Literal["console", "json"]) -> None:
    """Configure structlog for this process."""
    last: Any = structlog.processors.JSONRenderer(ensure_ascii=False) if kind == "json" else _render_console
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _tame,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _tame(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape whatever could move a terminal or begin a line of its own."""
    del logger, method
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = tame(value)
    return event


def say_bug(text: str, error: BaseException, **fields: object) -> None:
    """Say that the kernel itself was at fault: kind and place, never the exception's text, which may hold a payload."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    trace, where = error.__traceback__, "?"
    while trace is not None:
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    structlog.get_logger().error(f"[kernel] {text}", key="bug", kind=type(error).__name__, where=where, **fields)


def tame(text: str) -> str:
    """Return `text` on one line, without control, bidi or other invisible characters, bounded in length."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _render_console(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    del logger, method
    stamp, level, text = event.pop("timestamp", ""), str(event.pop("level", "info")), event.pop("event", "")
    event.pop("key", None)
    rest = " ".join(f"{key}={value}" for key, value in event.items() if value is not None)
    return f"{stamp} {level.upper():7} {text}" + (f"  {rest}" if rest else "")
