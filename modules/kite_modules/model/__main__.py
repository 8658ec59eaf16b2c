"""`python -m kite_modules.model`: serves `model.generate`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from kite_modules.model.openai import OpenAI
from kite_modules.model.options import Options
from kite_modules.model.scripted import Scripted
from kite_modules.model.wire import Message, Provider, ProviderError, Tool
from kite_modules.sdk import Kite, Module, Refused, SettingsError

module = Module("model", options=Options)
providers: list[Provider] = []  # the one provider of this process, made at its first use


def provider_of(options: Options) -> Provider:
    """Return what the options ask for. Raises: SettingsError that names the file and the mend."""
    if options.provider == "scripted":
        return Scripted(options.script, word_s=options.word_s)
    return OpenAI(
        options.base_url,
        options.model,
        api_key=_key(options.api_key_file),
        timeout_s=options.timeout_s,
        attempts=options.attempts,
    )


def _key(name: str) -> str:
    if not name:
        return ""
    path = Path(name)
    try:
        mode = path.stat().st_mode
        key = path.read_text("utf-8").strip()
    except OSError as error:
        raise SettingsError(f"[model] api_key_file: {path}: {error.strerror}", exit_code=78) from None
    if mode & 0o077 and os.name == "posix":
        raise SettingsError(f"[model] api_key_file: others can read {path}: chmod 600 {path}", exit_code=77)
    return key


@module.method
async def generate(
    kite: Kite, messages: list[Message], tools: list[Tool] | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Answer a conversation, piece by piece: each value is {text} or {call: {id, name, arguments}}."""
    if not providers:
        providers.append(provider_of(kite.options))
    try:
        async with aclosing(providers[0].generate(messages, tools or [])) as deltas:
            async for delta in deltas:
                yield {"call": delta.call} if delta.call is not None else {"text": delta.text}
    except ProviderError as error:
        raise Refused(str(error), code=-1, data={"retryable": error.retryable}) from error


if __name__ == "__main__":
    module.run()
