"""What `[backup]` in kite.toml may say. Source: spec 80 §3."""

from __future__ import annotations

import msgspec

DAY_S = 86_400.0


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the module; durations in seconds."""

    every: float = DAY_S
    keep: int = 7
    dir: str = ""  # default: backups/ in the state directory
