"""What `[relay]` in kite.toml may say. Source: spec 80 §1."""

from __future__ import annotations

from typing import Any

import msgspec


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the module, durations in seconds as the launcher hands them over."""

    listen: str = "127.0.0.1:7391"
    tls: Any = "auto"  # auto | off | {cert, key}
    origins: list[str] = []
    session_idle: float = 12 * 3600.0
    session_max: float = 30 * 86400.0
