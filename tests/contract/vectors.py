"""Reads the language-neutral vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parents[2] / "kernel" / "contract" / "vectors"
LAWS = ("close", "backoff", "legacy", "resume", "framing", "policy", "network", "session", "errors")


def load(law: str) -> list[dict[str, Any]]:
    """Return the vectors of one law."""
    vectors: list[dict[str, Any]] = json.loads((DIRECTORY / f"{law}.json").read_text("utf-8"))["vectors"]
    return vectors
