"""`python -m kite_modules.chat`: conversations. Several replicas serve them under one name; each answer has one owner.

Source: spec 70 §4.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from typing import Any, Final

import trio

from kite_modules.chat import record
from kite_modules.chat.answer import Answer
from kite_modules.chat.options import Options
from kite_modules.sdk import CallError, Kite, Module, Refused, log
from kite_modules.sdk.own import Fenced, Offer, Replica

TEXT_MAX: Final = 100_000
_NAME: Final = os.environ.get("KITE_MODULE_ID", "chat")
# Replicas are modules of their own (chat@1, chat@2 …) behind one service; alone the module itself has the name.
module = Module("chat", options=Options, service="chat" if _NAME != "chat" else None)


class Desk:
    """What this replica has in hand."""

    def __init__(self, kite: Kite, replica: Replica, nursery: trio.Nursery) -> None:
        self.kite = kite
        self.replica = replica
        self.nursery = nursery
        self.answers: dict[str, Answer] = {}

    async def begin(self, chat_id: str, text: str, message_id: str, answer_id: str, ready: trio.Event) -> None:
        """Own the chat, record both messages, say so, and write the answer."""
        async with self.replica.own(f"chat/{chat_id}", create=False, route_key=chat_id) as session:
            answer = record.assistant_message(answer_id)
            await session.append(record.user_message(message_id, text), answer)
            ready.set()
            await self._write(chat_id, Answer(self.kite, session, answer, self.kite.options))

    async def go_on(self, offer: Offer) -> None:
        """Go on with an interrupted answer, under its own id; nothing is said in anybody's name."""
        try:
            async with self.replica.recover(offer) as session:
                message = record.unfinished(session.data.get("items", []))
                if message is None:
                    return
                cut = session.interrupted_call
                record.take_over(message, cut["id"] if isinstance(cut, dict) else None)
                await self._write(
                    offer.key.removeprefix("chat/"), Answer(self.kite, session, message, self.kite.options)
                )
        except CallError:
            return  # another was first, or the lease ran out: the record says who goes on

    async def _write(self, chat_id: str, answer: Answer) -> None:
        self.answers[chat_id] = answer
        try:
            await answer.run()
        finally:
            del self.answers[chat_id]


desks: list[Desk] = []


def desk() -> Desk:
    if not desks:
        raise Refused("this replica is not ready yet", code=-1)
    return desks[0]


@module.method
async def create(title: str = "") -> dict[str, str]:
    """Begin a conversation; returns its id."""
    chat_id = secrets.token_hex(8)
    kite, data = desk().kite, {"title": title[:200], "items": []}
    await kite.call("ownership.create", {"key": f"chat/{chat_id}", "route_key": chat_id, "data": data})
    # The stream begins here, so that a reader may come before the first answer.
    began = json.dumps({"message": "", "at": 0, "state": "created"})
    await kite.call("stream.publish", {"stream": f"chat.{chat_id}", "data": began})
    return {"chat_id": chat_id}


@module.method
async def send(chat_id: str, text: str, message_id: str = "") -> dict[str, str]:
    """Say something; the answer comes on the stream `chat.<id>` and in `chat.get`. The same message_id counts once."""
    if not text or len(text) > TEXT_MAX:
        raise Refused(f"text must have 1 to {TEXT_MAX} characters", code=-2)
    at = desk()
    message_id = message_id or f"u-{secrets.token_hex(8)}"
    answer_id = f"a-{message_id}"
    shown = await read(at.kite, chat_id)
    answer = {"message_id": answer_id, "stream": f"chat.{chat_id}"}
    if any(item["id"] == message_id for item in shown["data"].get("items", ())):
        return answer
    ready, failure = trio.Event(), list[Exception]()

    async def write() -> None:
        try:
            await at.begin(chat_id, text, message_id, answer_id, ready)
        except Fenced:
            raise
        except Exception as error:
            if ready.is_set():
                log.say(logging.ERROR, f"chat {chat_id}: the answer failed: {type(error).__name__}: {error}")
            failure.append(error)
            ready.set()

    at.nursery.start_soon(write)
    await ready.wait()
    if failure:
        if isinstance(failure[0], CallError) and failure[0].reason in ("running", "interrupted"):
            raise Refused("an answer is being written; stop it or wait", code=-3, data={"state": failure[0].reason})
        raise failure[0]
    return answer


async def read(kite: Kite, chat_id: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await kite.call("ownership.get", {"key": f"chat/{chat_id}"})
    except CallError as error:
        if error.code == -32602:
            raise Refused(f"there is no chat {chat_id}", code=-4) from None
        raise
    return found


@module.method
async def get(chat_id: str) -> dict[str, Any]:
    """Return a conversation: title, state and messages."""
    shown = await read(desk().kite, chat_id)
    data = shown["data"]
    return {
        "chat_id": chat_id,
        "title": data.get("title", ""),
        "state": shown["state"],
        "stream": f"chat.{chat_id}",
        "messages": data.get("items", []),
    }


@module.method(name="list")
async def list_chats() -> dict[str, Any]:
    """Return all conversations, without their messages."""
    found = await desk().kite.call("ownership.list", {"prefix": "chat/"})
    return {
        "chats": [
            {
                "chat_id": row["key"].removeprefix("chat/"),
                "title": row["data"].get("title", ""),
                "state": row["state"],
                "messages": len(row["data"].get("items", ())),
            }
            for row in found["records"]
        ]
    }


@module.method
async def stop(chat_id: str) -> dict[str, bool]:
    """End the answer that is being written."""
    here = desk().answers.get(chat_id)
    if here is not None:
        here.stop()
        return {"stopped": True}
    return await _at_the_owner(chat_id, "stop", {"chat_id": chat_id}, {"stopped": False})


@module.method
async def approve(chat_id: str, call_id: str) -> dict[str, bool]:
    """Let a waiting tool call run."""
    return await _decide("approve", chat_id, call_id, approved=True)


@module.method
async def deny(chat_id: str, call_id: str) -> dict[str, bool]:
    """Refuse a waiting tool call; the refusal stays, whoever goes on with the answer."""
    return await _decide("deny", chat_id, call_id, approved=False)


async def _decide(method: str, chat_id: str, call_id: str, *, approved: bool) -> dict[str, bool]:
    here = desk().answers.get(chat_id)
    if here is not None:
        return {"decided": await here.decide(call_id, approved=approved)}
    return await _at_the_owner(chat_id, method, {"chat_id": chat_id, "call_id": call_id}, {"decided": False})


async def _at_the_owner(
    chat_id: str, method: str, params: dict[str, Any], otherwise: dict[str, bool]
) -> dict[str, bool]:
    """Ask the replica that owns the chat; nobody owns it, or it is this one: there is nothing to do."""
    kite = desk().kite
    owner = (await read(kite, chat_id))["owner"]
    if owner is None or owner["replica_id"] == desk().replica.replica_id:
        return otherwise
    rows = (await kite.call("replica.list"))["replicas"]
    name = next((row["module_id"] for row in rows if row["replica_id"] == owner["replica_id"]), None)
    if name is None or name == kite.module_id:
        return otherwise
    answer: dict[str, bool] = await kite.call(f"{name}.{method}", params)
    return answer


async def main(kite: Kite) -> None:
    """Be a replica: own what is asked of this process, go on with what others lost."""
    async with kite.replica({"module": "chat"}) as replica, trio.open_nursery() as nursery:
        desks[:] = [Desk(kite, replica, nursery)]
        async with replica.recoveries() as offers:
            async for offer in offers:
                nursery.start_soon(desks[0].go_on, offer)


if __name__ == "__main__":
    module.run(main)
