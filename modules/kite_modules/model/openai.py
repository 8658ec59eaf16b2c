"""Any endpoint that speaks OpenAI's chat completions, streamed. Retries before the first piece, never after it.

Bounded in every way: connect and read deadlines, the size of a line, the number of tries, Retry-After up to a minute.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import httpx
import trio

from kite_modules.model.wire import Delta, Message, ProviderError, Tool, ToolCall

LINE_BYTES_MAX: Final = 1 << 20
CONNECT_S: Final = 10.0
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 10.0
RETRY_AFTER_MAX_S: Final = 60.0
_RETRYABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def body_of(model: str, messages: list[Message], tools: list[Tool]) -> dict[str, Any]:
    """Return the request of a streamed completion."""
    body: dict[str, Any] = {"model": model, "stream": True, "messages": [_message(m) for m in messages]}
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters or {"type": "object", "properties": {}},
                },
            }
            for tool in tools
        ]
    return body


def _message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        row["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
            for c in message.calls
        ]
    if message.role == "tool":
        row["tool_call_id"] = message.call_id
    return row


class Gathered:
    """Tool calls come in fragments, by index; they are whole once the answer ends."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, str]] = {}

    def add(self, fragments: Any) -> None:
        """Take the `tool_calls` of one piece; what has the wrong form is left out."""
        for fragment in fragments if isinstance(fragments, list) else ():
            if not isinstance(fragment, dict) or not isinstance(fragment.get("index", 0), int):
                continue
            part = self._parts.setdefault(fragment.get("index", 0), {"id": "", "name": "", "arguments": ""})
            function = fragment.get("function")
            function = function if isinstance(function, dict) else {}
            part["id"] = fragment.get("id") or part["id"]
            part["name"] += function.get("name") or ""
            part["arguments"] += function.get("arguments") or ""

    def calls(self) -> list[ToolCall]:
        """Return the whole calls. Raises: ProviderError for arguments that are no JSON object."""
        found = []
        for index, part in sorted(self._parts.items()):
            try:
                arguments = json.loads(part["arguments"] or "{}")
            except ValueError:
                arguments = None
            if not isinstance(arguments, dict) or not part["name"]:
                raise ProviderError(f"tool call {index} has no valid name and arguments", retryable=True)
            found.append(ToolCall(part["id"] or f"call-{index + 1}", part["name"], arguments))
        return found


def piece_of(line: str) -> dict[str, Any] | None:
    """Return the delta of one server-sent line; None for anything else. Raises: ProviderError for an error object."""
    if not line.startswith("data:"):
        return None
    text = line[5:].strip()
    if text == "[DONE]":
        return None
    try:
        event = json.loads(text)
    except ValueError:
        return None
    if isinstance(event, dict) and event.get("error"):
        raise ProviderError(f"the endpoint says: {str(event['error'])[:300]}", retryable=False)
    choices = event.get("choices") if isinstance(event, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    delta = choices[0].get("delta")
    return delta if isinstance(delta, dict) else None


class OpenAI:
    """A Provider over HTTP. `api_key` goes into the Authorization header and nowhere else."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "",
        timeout_s: float,
        attempts: int,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        self._attempts = attempts
        self._chance = chance

    async def generate(self, messages: list[Message], tools: list[Tool]) -> AsyncGenerator[Delta, None]:
        """See Provider."""
        body = body_of(self._model, messages, tools)
        for attempt in range(1, self._attempts + 1):
            begun = False
            try:
                async with aclosing(self._once(body)) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
            except ProviderError as error:
                if begun or not error.retryable or attempt == self._attempts:
                    raise
                own_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (attempt - 1)) * (1 + 0.2 * self._chance())
                await trio.sleep(max(own_s, min(error.retry_after_s or 0.0, RETRY_AFTER_MAX_S)))
            else:
                return

    async def _once(self, body: dict[str, Any]) -> AsyncGenerator[Delta, None]:
        gathered = Gathered()
        failure: ProviderError | None = None
        delta = None
        try:
            async with (
                httpx.AsyncClient(timeout=self._timeout, headers=self._headers) as client,
                client.stream("POST", self._url, json=body) as response,
            ):
                if response.status_code != 200:
                    raise await _refusal(response)
                async for line in response.aiter_lines():
                    if len(line) > LINE_BYTES_MAX:
                        raise ProviderError("the endpoint sent a line without end", retryable=False)
                    try:
                        delta = piece_of(line)
                    except ProviderError as error:
                        failure = error  # what follows is read to its end, so that the wire is left in order
                    if delta is None or failure is not None:
                        continue
                    gathered.add(delta.get("tool_calls"))
                    if isinstance(delta.get("content"), str) and delta["content"]:
                        yield Delta(text=delta["content"])
        except httpx.HTTPError as error:
            raise ProviderError(f"{self._url}: {type(error).__name__}", retryable=True) from error
        if failure is not None:
            raise failure
        for call in gathered.calls():
            yield Delta(call=call)


async def _refusal(response: httpx.Response) -> ProviderError:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > 2000:
            break
    after = response.headers.get("retry-after", "")
    return ProviderError(
        f"the endpoint answered {response.status_code}: {body[:200].decode('utf-8', 'replace')}",
        retryable=response.status_code in _RETRYABLE,
        retry_after_s=float(after) if after.replace(".", "", 1).isdigit() else None,
    )
