"""A model that says what a script says, word by word: the same answer to the same conversation, every time.

For tests, demos and rehearsals. Without a script it repeats what it was told.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence

import trio

from kite_modules.model.options import Rule
from kite_modules.model.wire import Delta, Message, Tool, ToolCall


def words_of(text: str) -> list[str]:
    """Split a text into words with the white space that follows each; joined they are the text again."""
    return re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", text)


def answer_of(rules: Sequence[Rule], messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[str, ToolCall | None]:
    """Decide the whole answer: a text, and perhaps a tool to ask for first."""
    asked = next((message for message in reversed(messages) if message.role in ("user", "tool")), None)
    said = asked.text if asked is not None else ""
    offered = {tool.name for tool in tools}
    for rule in rules:
        found = re.search(rule.match, said)
        if found is None:
            continue
        if asked is not None and asked.role == "user" and rule.tool in offered:
            calls = sum(len(message.calls) for message in messages)
            return "", ToolCall(f"call-{calls + 1}", rule.tool, dict(rule.arguments))
        return found.expand(rule.reply) if rule.reply else said, None
    return (f"The tool says: {said}" if asked is not None and asked.role == "tool" else f"You said: {said}"), None


class Scripted:
    """A Provider over rules. `word_s` is the pause before each word."""

    def __init__(self, rules: Sequence[Rule], *, word_s: float) -> None:
        self._rules = rules
        self._word_s = word_s

    async def generate(self, messages: list[Message], tools: list[Tool]) -> AsyncGenerator[Delta, None]:
        """See Provider: a begun answer is gone on with at the very word."""
        begun = messages[-1].text if messages and messages[-1].role == "assistant" and not messages[-1].calls else ""
        before = messages[:-1] if begun else messages
        text, call = answer_of(self._rules, before, tools)
        if begun and text.startswith(begun):
            text = text[len(begun) :]
        for word in words_of(text):
            await trio.sleep(self._word_s)
            yield Delta(text=word)
        if call is not None:
            await trio.sleep(self._word_s)
            yield Delta(call=call)
