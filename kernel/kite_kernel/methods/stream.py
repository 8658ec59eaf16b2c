"""`stream.publish`, `stream.list`, `stream.stats`, `stream.delete`. Source: spec 05-surface §7, 40-streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import structlog

from kite_kernel._contract import (
    E_INVALID_PARAMS,
    E_INVALID_REQUEST,
    E_OVERLOADED,
    E_STORE_UNAVAILABLE,
    STREAM_ID_BYTES,
)
from kite_kernel.core.asking import LATER, Refused
from kite_kernel.core.stream_commit import StoreFailed
from kite_kernel.core.stream_request import is_stream_name
from kite_kernel.core.text import encode
from kite_kernel.methods.stream_report import lags_of, numbers_of

if TYPE_CHECKING:
    from kite_kernel.core.asking import Answer, Ask, Handler
    from kite_kernel.edge.stream_channel import Channel
    from kite_kernel.edge.stream_shelf import Shelf

_log = structlog.get_logger()


class Plane(Protocol):
    """What the methods need of the stream plane."""

    shelf: Shelf

    def flush_soon(self, channel: Channel) -> None:
        """Send to the subscribers once the read batch is through."""

    def start_soon(self, act: Any, *args: Any) -> None:
        """Run an async function beside."""

    def settle(self) -> None:
        """Send answers that were given later."""


def stream_methods(plane: Plane) -> dict[str, Handler]:
    """Return the methods of the family, by name."""
    methods = StreamMethods(plane)
    return {
        "stream.publish": methods.publish,
        "stream.list": methods.list_all,
        "stream.stats": methods.stats,
        "stream.delete": methods.delete,
    }


class StreamMethods:
    """The family on one plane."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._shelf = plane.shelf

    def publish(self, ask: Ask) -> Answer:
        """Store one message and answer its number once it is safe; the same `id` again gets the first number."""
        name, data, message_id = ask.params["stream"], ask.params["data"], ask.params.get("id")
        if not is_stream_name(name):
            return _bad("stream")
        if message_id is not None and len(message_id.encode()) > STREAM_ID_BYTES:
            return _bad("id")
        if name in self._shelf.damaged:
            return Refused(E_STORE_UNAVAILABLE, self._shelf.damaged[name], stream=name)
        channel = self._shelf.find_or_make(name)
        if channel is None:
            return Refused(E_INVALID_REQUEST, "limit", message="too many streams")
        answers: list[bytes | Refused] = []
        waits = False

        def answer(outcome: int | StoreFailed) -> None:
            answers.append(_outcome(channel, outcome))
            if waits:
                ask.answer(answers[0])

        channel.publish(data, message_id, answer, in_batch=False)
        if not answers:
            waits = True
            return LATER
        self._plane.flush_soon(channel)
        return answers[0]

    def list_all(self, ask: Ask) -> Answer:
        """Name every stream with its numbers."""
        del ask
        rows = [numbers_of(channel) for _, channel in sorted(self._shelf.channels.items())]
        rows += [{"stream": name, "state": state} for name, state in sorted(self._shelf.damaged.items())]
        return encode({"streams": rows})

    def stats(self, ask: Ask) -> Answer:
        """Say the numbers of one stream, and how far behind each subscriber is."""
        name = ask.params["stream"]
        if is_stream_name(name) and name in self._shelf.damaged:
            return Refused(E_STORE_UNAVAILABLE, self._shelf.damaged[name], stream=name)
        channel = self._shelf.find(name)
        if channel is None:
            return _bad("stream", "no such stream")
        return encode(numbers_of(channel) | {"lags": lags_of(channel, now=ask.now)})

    def delete(self, ask: Ask) -> Answer:
        """Close a stream's wires and forget it."""
        name = ask.params["stream"]
        if self._shelf.find(name) is None and name not in self._shelf.damaged:
            return _bad("stream", "no such stream")
        self._plane.start_soon(self._delete, ask, name)
        return LATER

    async def _delete(self, ask: Ask, name: str) -> None:
        try:
            await self._shelf.delete(name)
        except OSError as error:
            _log.error("[kernel] stream not deleted", key="stream_delete", stream=name, why=error.strerror)
            ask.answer(Refused(E_STORE_UNAVAILABLE, "unavailable", outcome="unknown", stream=name))
        else:
            ask.answer(b"{}")
        self._plane.settle()


def _bad(field: str, message: str = "") -> Refused:
    return Refused(E_INVALID_PARAMS, "invalid_params", message=message, field=field)


def _outcome(channel: Channel, outcome: int | StoreFailed) -> bytes | Refused:
    if isinstance(outcome, int):
        return b'{"seq":%d,"epoch":%b}' % (outcome, encode(channel.stream.epoch))
    if outcome.reason == "queue_full":
        return Refused(E_OVERLOADED, "queue_full", message=outcome.why, retry_after=1.0)
    return Refused(E_STORE_UNAVAILABLE, outcome.reason, outcome=outcome.outcome, stream=channel.stream.name)
