"""What `[chat]` in kite.toml may say. Source: spec 70 §4."""

from __future__ import annotations

from typing import Any

import msgspec


class ToolOption(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the model may ask for: a method of a module, perhaps with a person's approval first."""

    name: str
    method: str
    description: str = ""
    parameters: dict[str, Any] = {}
    approval: bool = True
    timeout_s: float = 60.0


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the module."""

    model: str = "model.generate"
    system: str = ""
    tools: list[ToolOption] = []
    save_every_s: float = 0.5  # how much of an answer may have to be written again after a kill
    rounds_max: int = 8  # tool rounds in one answer
    approval_s: float = 600.0  # an approval that nobody gives is a refusal
