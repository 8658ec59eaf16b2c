"""What the SDK says in its module's log: one line per change of state, fields beside the text, never a token.

A library's log is routed by its host, so this is the standard library's `logging` under the name `kite` (structlog
would cost each small module its import); `install` gives a process without any logging set-up a plain or JSON line on
stderr.
Source: spec 20-kernel §8 for the users' own texts.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

logger: Final = logging.getLogger("kite")

FATAL: Final = "[module] 致命错误 (code {code})，退出"
RATE_LIMITED: Final = "[module] 速率限制，{delay}s 后重试 ({attempt}/{max})"


def say(level: int, text: str, **fields: Any) -> None:
    """Write one line; `fields` stand beside the text."""
    logger.log(level, "%s", text, extra={"kite_fields": fields})


def _escape(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if not text.isprintable():
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created))
        fields = getattr(record, "kite_fields", {})
        tail = "".join(f" {key}={_escape(value)}" for key, value in fields.items())
        text = record.getMessage()
        shown = text if text.isprintable() else json.dumps(text, ensure_ascii=False)
        return f"{stamp} {record.levelname} {shown}{tail}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "kite_fields", {})
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created))
        head = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**head, **fields}, ensure_ascii=False, default=str)


def install(*, json_lines: bool = False) -> None:
    """Give the process a log on stderr, unless its author has set up logging already."""
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if json_lines else _Plain())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
