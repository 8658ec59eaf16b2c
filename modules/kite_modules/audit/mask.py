"""What must not get into the trail: secrets by the names they stand under, passwords in URLs, and sheer size.

Source: spec 80 §1, case X-36.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

DATA_BYTES_MAX: Final = 16384  # of one row: enough for every event of Kite's own, too little to fill a disk by
DEPTH_MAX: Final = 16
HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"(?i)(token|passw|secret|otp|recovery.?code|session|nonce|api.?key|authorization|cookie|credential|guard)"
)
_IN_URL: Final = re.compile(r"(://[^/?#\s:@]*):[^/?#\s@]+@")


def without_secrets(value: Any, depth: int = 0) -> Any:
    """Return a value whose members with secret names hold `***` instead, at any depth."""
    if depth > DEPTH_MAX:
        return "…"
    if isinstance(value, dict):
        return {
            _plain(str(name)): HIDDEN
            if _SECRET.search(str(name)) and item not in (None, True, False)
            else without_secrets(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item, depth + 1) for item in value]
    return _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> str:
    return _IN_URL.sub(rf"\1:{HIDDEN}@", text)


def fit(value: Any) -> Any:
    """Return the value, or, when it is too large for a row, how large it was and its beginning."""
    clean = without_secrets(value)
    text = json.dumps(clean, separators=(",", ":"))
    if len(text) <= DATA_BYTES_MAX:
        return clean
    return {"cut": True, "bytes": len(text), "begins": text[: DATA_BYTES_MAX // 2]}
