"""The watchdog's log: structlog to stderr, for people or as JSON lines. Never a token, never a payload."""

from __future__ import annotations

import sys
from typing import Any, Literal, TextIO

import structlog

Log = Any  # structlog's bound logger; its own type says no more


def make_log(style: Literal["console", "json"] = "console", *, stream: TextIO | None = None) -> Log:
    """Give a logger that writes to stderr, one line a fact."""
    out = sys.stderr if stream is None else stream
    render: Any = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    )
    return structlog.wrap_logger(
        structlog.PrintLogger(file=out),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(20),
    )
