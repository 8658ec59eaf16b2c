"""A conversation as it stands in its record: messages as items, tool calls inside the assistant's message. Pure.

States of a message: writing → done | stopped | failed. States of a call: waiting (for a person) → approved → running →
done | failed, or refused. Only the last running call of an unfinished message may run again, under its own id; a
refusal stays a refusal. Source: spec 70 §3.8, case F-21.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Item = dict[str, Any]

UNFINISHED: Final = ("writing",)
DECIDED: Final = ("done", "failed", "refused")


def user_message(message_id: str, text: str) -> Item:
    """Return what a person said."""
    return {"id": message_id, "role": "user", "text": text, "state": "done"}


def assistant_message(message_id: str) -> Item:
    """Return an answer that is about to be written."""
    return {"id": message_id, "role": "assistant", "parts": [{"text": "", "calls": []}], "state": "writing"}


def unfinished(items: Sequence[Item]) -> Item | None:
    """Return the answer that was being written, if the conversation ends with one."""
    last = items[-1] if items else None
    return last if last is not None and last["role"] == "assistant" and last["state"] in UNFINISHED else None


def add_text(message: Item, text: str) -> None:
    """Add to the part of the answer that is being written."""
    message["parts"][-1]["text"] += text


def add_call(message: Item, name: str, arguments: Any, *, approval: bool) -> Item:
    """Add a tool call under an id of its own, that stays the same whoever goes on with it."""
    number = sum(len(part["calls"]) for part in message["parts"]) + 1
    call = {
        "id": f"{message['id']}.{number}",
        "name": name,
        "arguments": arguments,
        "state": "waiting" if approval else "approved",
        "result": None,
    }
    message["parts"][-1]["calls"].append(call)
    return call


def open_calls(message: Item) -> list[Item]:
    """Return the calls of the present part that have no end yet."""
    return [call for call in message["parts"][-1]["calls"] if call["state"] not in DECIDED]


def find_call(message: Item, call_id: str) -> Item | None:
    """Return a call by its id."""
    return next((call for part in message["parts"] for call in part["calls"] if call["id"] == call_id), None)


def next_part(message: Item) -> None:
    """Begin the part that follows the results of tools."""
    message["parts"].append({"text": "", "calls": []})


def take_over(message: Item, interrupted_call_id: str | None) -> None:
    """Make an interrupted answer fit to be gone on with: of the running calls only the last may run again.

    `interrupted_call_id` names the one that a normal stop cut; None (a loss) means the last one that ran.
    """
    running = [call for part in message["parts"] for call in part["calls"] if call["state"] == "running"]
    for call in running[:-1]:
        call["state"], call["result"] = "failed", "interrupted"
    if running and interrupted_call_id not in (None, running[-1]["id"]):
        running[-1]["state"], running[-1]["result"] = "failed", "interrupted"


def for_model(items: Sequence[Item], system: str) -> list[dict[str, Any]]:
    """Return the conversation as the model reads it: a begun text at the end is a beginning to be gone on with."""
    out: list[dict[str, Any]] = [{"role": "system", "text": system}] if system else []
    for item in items:
        if item["role"] == "user":
            out.append({"role": "user", "text": item["text"]})
            continue
        for part in item["parts"]:
            calls = [{"id": c["id"], "name": c["name"], "arguments": c["arguments"]} for c in part["calls"]]
            if part["text"] or calls:
                out.append({"role": "assistant", "text": part["text"], "calls": calls})
            out += [{"role": "tool", "call_id": c["id"], "text": said_by(c)} for c in part["calls"]]
    return out


def said_by(call: Item) -> str:
    """Return what the model is told of a call's end."""
    if call["state"] == "refused":
        return "refused by the user"
    return str(call["result"])


def text_of(message: Item) -> str:
    """Return all that an answer says, calls aside."""
    return "".join(part["text"] for part in message["parts"]) if "parts" in message else str(message["text"])
