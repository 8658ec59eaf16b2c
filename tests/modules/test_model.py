"""The model module: scripted answers are the same every time; an HTTP endpoint is streamed, retried and bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
import trio

from kite_modules.model.openai import OpenAI
from kite_modules.model.options import Rule
from kite_modules.model.scripted import Scripted, words_of
from kite_modules.model.wire import Delta, Message, Provider, ProviderError, Tool

RULES = [
    Rule(match="weather in (?P<where>\\w+)", tool="weather", arguments={"place": "Oslo"}),
    Rule(match="^rain$", reply="Take an umbrella."),
]


async def gathered(provider: Provider, messages: list[Message], tools: list[Tool] | None = None) -> list[Delta]:
    async with aclosing(provider.generate(messages, tools or [])) as deltas:
        return [delta async for delta in deltas]


def said(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("text", ["", " ", "one", "one two\n  three. ", "中文 也 可以"])
def test_words_joined_are_the_text_again(text: str) -> None:
    assert "".join(words_of(text)) == text


async def test_a_begun_answer_is_gone_on_with_at_the_very_word(autojump_clock: trio.abc.Clock) -> None:
    model = Scripted(RULES, word_s=1.0)
    question = Message("user", "hello there friend")
    whole = said(await gathered(model, [question]))
    assert whole == "You said: hello there friend"
    begun = whole[:14]
    assert said(await gathered(model, [question, Message("assistant", begun)])) == whole[14:]


async def test_a_script_asks_for_a_tool_and_answers_its_result(autojump_clock: trio.abc.Clock) -> None:
    model = Scripted(RULES, word_s=0.1)
    question = Message("user", "what is the weather in Oslo?")
    (delta,) = await gathered(model, [question], [Tool("weather")])
    assert delta.call is not None
    assert (delta.call.name, delta.call.arguments) == ("weather", {"place": "Oslo"})
    asked = Message("assistant", calls=[delta.call])
    result = Message("tool", "rain", call_id=delta.call.id)
    assert said(await gathered(model, [question, asked, result], [Tool("weather")])) == "Take an umbrella."


class Endpoint(BaseHTTPRequestHandler):
    """Answers by a list of (status, headers, lines)."""

    answers: ClassVar[list[tuple[int, dict[str, str], list[str]]]] = []
    seen: ClassVar[list[tuple[dict[str, str], Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Endpoint.seen.append((dict(self.headers), body))
        status, headers, lines = Endpoint.answers.pop(0)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write("".join(f"{line}\n\n" for line in lines).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Endpoint.answers, Endpoint.seen = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join(10)


def piece(**delta: Any) -> str:
    return "data: " + json.dumps({"choices": [{"delta": delta}]})


def call_piece(index: int, **fields: Any) -> str:
    return piece(tool_calls=[{"index": index, **fields}])


async def test_an_endpoint_is_streamed_with_text_and_whole_tool_calls(endpoint: str) -> None:
    Endpoint.answers = [
        (200, {}, [
            ": comment", piece(content="Hel"), piece(content="lo"), "data: not json",
            call_piece(0, id="c1", function={"name": "weather", "arguments": '{"pla'}),
            call_piece(0, function={"arguments": 'ce":"Oslo"}'}), "data: [DONE]",
        ]),
    ]  # fmt: skip
    model = OpenAI(endpoint, "m", api_key="canary-key", timeout_s=10, attempts=1)
    deltas = await gathered(model, [Message("user", "hi")], [Tool("weather")])
    assert said(deltas) == "Hello"
    assert deltas[-1].call is not None
    assert (deltas[-1].call.id, deltas[-1].call.arguments) == ("c1", {"place": "Oslo"})
    headers, body = Endpoint.seen[0]
    assert headers["Authorization"] == "Bearer canary-key"
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["tools"][0]["function"]["name"] == "weather"


async def test_a_busy_endpoint_is_asked_again_after_the_wait_that_it_names(endpoint: str) -> None:
    Endpoint.answers = [(503, {"Retry-After": "0.2"}, []), (429, {}, []), (200, {}, [piece(content="ok")])]
    model = OpenAI(endpoint, "m", timeout_s=10, attempts=3, chance=lambda: 0.0)
    assert said(await gathered(model, [Message("user", "hi")])) == "ok"
    assert len(Endpoint.seen) == 3


async def test_a_refusal_is_final_and_says_no_key(endpoint: str) -> None:
    Endpoint.answers = [(401, {}, ["no such key"])]
    model = OpenAI(endpoint, "m", api_key="canary-key", timeout_s=10, attempts=3)
    with pytest.raises(ProviderError, match="401") as refusal:
        await gathered(model, [Message("user", "hi")])
    assert not refusal.value.retryable
    assert "canary" not in str(refusal.value)
    assert len(Endpoint.seen) == 1


async def test_an_error_in_the_stream_and_broken_arguments_end_the_answer_clearly(endpoint: str) -> None:
    Endpoint.answers = [
        (200, {}, [piece(content="a"), 'data: {"error": {"message": "overloaded"}}']),
        (200, {}, [call_piece(0, id="c", function={"name": "t", "arguments": "{broken"})]),
    ]
    model = OpenAI(endpoint, "m", timeout_s=10, attempts=1)
    with pytest.raises(ProviderError, match="overloaded"):
        await gathered(model, [Message("user", "hi")])
    with pytest.raises(ProviderError, match="arguments"):
        await gathered(model, [Message("user", "hi")])


async def test_nothing_listening_is_said_after_the_tries(endpoint: str) -> None:
    model = OpenAI("http://127.0.0.1:9/v1", "m", timeout_s=5, attempts=2, chance=lambda: 0.0)
    with pytest.raises(ProviderError, match="ConnectError"):
        await gathered(model, [Message("user", "hi")])
