"""What `[logs]` in kite.toml may say. Source: spec 80 §3."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the module."""

    follow_max: int = 32  # followers at once
