"""What `[model]` in kite.toml may say. Source: spec 70 §4, 05 §6."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a script: when the last message matches `match`, say `reply` or ask for `tool`."""

    match: str
    reply: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the module. `api_key_file` names a file that only its user can read; a key is never written here."""

    provider: Literal["scripted", "openai"] = "scripted"
    base_url: str = "http://127.0.0.1:11434/v1"
    api_key_file: str = ""
    model: str = "default"
    timeout_s: float = 120.0
    attempts: int = 4
    word_s: float = 0.02  # scripted: the pause between two words
    script: list[Rule] = []
    concurrency: int = 8
