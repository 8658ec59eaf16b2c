"""What goes in and comes out of `model.generate`, whatever stands behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol

import msgspec


class ToolCall(msgspec.Struct, omit_defaults=True):
    """The model asks for a tool; `id` is its own name for this call."""

    id: str
    name: str
    arguments: dict[str, Any] = {}


class Message(msgspec.Struct, omit_defaults=True):
    """One message of a conversation. A `tool` message answers the call `call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: list[ToolCall] = []
    call_id: str = ""


class Tool(msgspec.Struct, omit_defaults=True):
    """A tool that the model may ask for; `parameters` is its JSON Schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Delta(msgspec.Struct, omit_defaults=True):
    """One piece of an answer: more text, or a whole tool call."""

    text: str = ""
    call: ToolCall | None = None


class ProviderError(Exception):
    """The model can't answer. `retryable`: another try later may go well."""

    def __init__(self, why: str, *, retryable: bool, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class Provider(Protocol):
    """Something that answers a conversation. A last message of the assistant is a beginning, to be gone on with."""

    def generate(self, messages: list[Message], tools: list[Tool]) -> AsyncGenerator[Delta, None]:
        """Yield the pieces of the answer. Raises: ProviderError. Cancel: safe, at any piece."""
        ...
