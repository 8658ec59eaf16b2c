"""`kite chat [CHAT_ID]`: talk to the chat module; answers are shown as they are written. Source: spec 70 §4.

A cut wire, or another replica going on with the answer, is not seen: the stream is resumed where it was read, and `at`
tells what was shown already.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from typing import Any

import trio

from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import NO, OK, Failure, complain, safe, say, say_json
from kite_modules.cli.ownership import table
from kite_modules.sdk.client import Kite

FINAL = ("done", "stopped", "failed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("chat_id", nargs="?", metavar="CHAT_ID", help="go on with this chat; default: a new one")
    parser.add_argument("--say", metavar="TEXT", help="say this, show the answer, and end")
    parser.add_argument("--title", default="", help="of a new chat")
    parser.add_argument("--list", action="store_true", help="list the chats")


def run(args: argparse.Namespace) -> int:
    """Talk, or list."""
    return run_connected(args, lambda kite: _listed(kite, args) if args.list else _talk(kite, args))


async def _listed(kite: Kite, args: argparse.Namespace) -> int:
    chats = (await kite.call("chat.list"))["chats"]
    if args.json:
        say_json({"chats": chats})
        return OK
    rows = [(row["chat_id"], row["state"], str(row["messages"]), row["title"]) for row in chats]
    say("\n".join(table(("CHAT", "STATE", "MESSAGES", "TITLE"), rows)))
    return OK


async def _talk(kite: Kite, args: argparse.Namespace) -> int:
    chat_id = args.chat_id or (await kite.call("chat.create", {"title": args.title}))["chat_id"]
    if args.chat_id:
        shown = await kite.call("chat.get", {"chat_id": chat_id})
        if not args.json and args.say is None:
            for message in shown["messages"]:
                say(f"{'you' if message['role'] == 'user' else 'kite'}: {_text(message)}")
    if args.say is not None:
        answer = await _exchange(kite, chat_id, args.say, quiet=args.json)
        if args.json:
            say_json({"chat_id": chat_id, "message": answer})
        return OK if answer["state"] == "done" else NO
    complain(f"chat {chat_id}; an empty line or Ctrl+D ends")
    async for line in _lines():
        await _exchange(kite, chat_id, line, quiet=False)
    return OK


async def _lines() -> AsyncIterator[str]:
    """Yield what is typed, until an empty line or the end."""
    while True:
        if sys.stdin.isatty():
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        if not line.strip():
            return
        yield line.strip()


async def _exchange(kite: Kite, chat_id: str, text: str, *, quiet: bool) -> dict[str, Any]:
    """Say something and show the answer while it is written; returns the whole answer."""
    name = f"chat.{chat_id}"
    stats = await kite.stream(name).stats()
    sent = await kite.call("chat.send", {"chat_id": chat_id, "text": text})
    shown = 0
    async with kite.stream(name).subscribe(last=0 if stats is None else int(stats["seq"])) as records:
        async for record in records:
            piece = record.json()
            if piece["message"] != sent["message_id"]:
                continue
            new = piece.get("text", "")[-(piece["at"] - shown) :] if piece["at"] > shown else ""
            shown = max(shown, piece["at"])
            if new and not quiet:
                sys.stdout.write(safe(new))
                sys.stdout.flush()
            if piece.get("call", {}).get("state") == "waiting":
                await _ask(kite, chat_id, piece["call"])
            if piece.get("state") in FINAL:
                if not quiet:
                    say("" if piece["state"] == "done" else f" ({piece['state']}: {piece.get('why') or 'by hand'})")
                break
    found = await kite.call("chat.get", {"chat_id": chat_id})
    answer: dict[str, Any] = next(m for m in found["messages"] if m["id"] == sent["message_id"])
    return answer


async def _ask(kite: Kite, chat_id: str, call: dict[str, Any]) -> None:
    """Let a person decide about a tool call."""
    if not sys.stdin.isatty():
        raise Failure(NO, f"{call['name']} waits for an approval", f"kite call chat.approve or chat.deny {chat_id}")
    sys.stdout.write(f"\n{safe(call['name'])}({safe(str(call['arguments']))}): let it run? [y/N] ")
    sys.stdout.flush()
    word = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    verdict = "approve" if word.strip().lower() in ("y", "yes", "j", "是") else "deny"
    await kite.call(f"chat.{verdict}", {"chat_id": chat_id, "call_id": call["id"]})


def _text(message: dict[str, Any]) -> str:
    if "parts" in message:
        return "".join(part["text"] for part in message["parts"])
    return str(message["text"])
