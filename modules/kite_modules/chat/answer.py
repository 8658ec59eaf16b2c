"""Writes one answer: model → text, tool calls → approvals → results → model again, everything under one owner's guard.

Each piece goes to the chat's stream at once and into the record every so often; what the record has is what a successor
goes on from, so a reader of the stream sees `at` (characters so far) and can tell a repeated piece. Source: spec 70 §4.
"""

from __future__ import annotations

import json
from typing import Any, Final

import trio

from kite_modules.chat import record
from kite_modules.chat.options import Options, ToolOption
from kite_modules.sdk import CallError, Kite
from kite_modules.sdk.own import Session

FLUSH_S: Final = 3.0  # for the last words before another replica goes on
ANSWER_S: Final = 3600.0
MODEL_TRIES: Final = 6


class Answer:
    """One answer under way. `decide` and `stop` are what people may do to it meanwhile."""

    def __init__(self, kite: Kite, session: Session, message: record.Item, options: Options) -> None:
        self._kite = kite
        self._session = session
        self._options = options
        self._tools = {tool.name: tool for tool in options.tools}
        self._decided = trio.Event()
        self._saved_at = trio.current_time()
        self._scope = trio.CancelScope()
        self.message = message
        self.chat_id = session.key.removeprefix("chat/")

    # ------------------------------------------------------------ by people

    async def decide(self, call_id: str, *, approved: bool) -> bool:
        """Approve or refuse a waiting call; False where it waits no more. Written before it counts."""
        call = record.find_call(self.message, call_id)
        if call is None or call["state"] != "waiting":
            return False
        call["state"] = "approved" if approved else "refused"
        await self._save()
        self._decided.set()
        return True

    def stop(self) -> None:
        """End the answer where it is."""
        self._scope.cancel()

    # ------------------------------------------------------------ the work

    async def run(self) -> None:
        """Write until the answer is done, stopped or failed; afterwards the record says which."""
        state, why = "stopped", None
        with self._scope:
            try:
                await self._rounds()
            except CallError as error:
                state, why = "failed", str(error)
            except trio.Cancelled:
                if not self._scope.cancel_called:  # this replica stops: another goes on from the last word
                    with trio.move_on_after(FLUSH_S, shield=True):
                        await self._save()
                raise
            else:
                state = "done"
        self.message["state"] = state
        if why is not None:
            self.message["why"] = why
        await self._save()
        await self._tell({"state": state, "why": why})

    async def _rounds(self) -> None:
        for _ in range(self._options.rounds_max):
            if not self.message["parts"][-1]["calls"]:
                await self._generate()
            if not self.message["parts"][-1]["calls"]:
                return
            for call in record.open_calls(self.message):
                await self._settle(call)
            record.next_part(self.message)
            await self._save()
        record.add_text(self.message, f"(stopped after {self._options.rounds_max} rounds of tools)")

    async def _generate(self) -> None:
        """Let the model write; when it is away for a while, go on from the last word once it is back."""
        for tries in range(1, MODEL_TRIES + 1):
            try:
                await self._generate_once()
            except CallError as error:
                if not error.later or tries == MODEL_TRIES:
                    raise
                await trio.sleep(min(5.0, 0.5 * 2.0**tries))
            else:
                return

    async def _generate_once(self) -> None:
        items = self._session.data.get("items", [])[:-1]
        asked = {
            "messages": record.for_model([*items, self.message], self._options.system),
            "tools": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in self._options.tools
            ],
        }
        async with self._kite.iterate(self._options.model, asked, timeout=ANSWER_S) as pieces:
            async for piece in pieces:
                if piece.get("call"):
                    self._take_call(piece["call"])
                else:
                    record.add_text(self.message, piece.get("text", ""))
                    await self._tell({"text": piece.get("text", "")})
                if trio.current_time() - self._saved_at >= self._options.save_every_s:
                    await self._save()
        await self._save()

    def _take_call(self, asked: dict[str, Any]) -> None:
        tool = self._tools.get(asked["name"])
        call = record.add_call(self.message, asked["name"], asked["arguments"], approval=bool(tool and tool.approval))
        if tool is None:
            call["state"], call["result"] = "failed", f"there is no tool {asked['name']}"

    async def _settle(self, call: record.Item) -> None:
        """Bring one call to its end: approval, run, result."""
        await self._tell({"call": call})
        while call["state"] == "waiting":
            with trio.move_on_after(self._options.approval_s) as waiting:
                await self._decided.wait()
                self._decided = trio.Event()
            if waiting.cancelled_caught and call["state"] == "waiting":
                call["state"] = "refused"
        if call["state"] in ("approved", "running"):
            await self._run_tool(call, self._tools[call["name"]])
        await self._save()
        await self._tell({"call": call})

    async def _run_tool(self, call: record.Item, tool: ToolOption) -> None:
        """Run a tool under the call's id as its idempotency key: an interrupted one that ran counts once."""
        call["state"] = "running"
        await self._save()
        async with self._session.tool_call(call["id"], name=call["name"]):
            try:
                result = await self._kite.call(
                    tool.method, call["arguments"], key=call["id"], timeout=tool.timeout_s, meta={"call_id": call["id"]}
                )
            except CallError as error:
                call["state"], call["result"] = "failed", str(error)
            else:
                call["state"], call["result"] = "done", result if isinstance(result, str) else json.dumps(result)

    # ------------------------------------------------------------ recording and telling

    async def _save(self) -> None:
        self._saved_at = trio.current_time()
        await self._session.write(append=[self.message], checkpoint={"message": self.message["id"]})

    async def _tell(self, piece: dict[str, Any]) -> None:
        """Put a piece on the chat's stream; a stream that is away costs nothing but the live view."""
        told = {"message": self.message["id"], "at": len(record.text_of(self.message)), **piece}
        try:
            await self._kite.call(
                "stream.publish", {"stream": f"chat.{self.chat_id}", "data": json.dumps(told, ensure_ascii=False)}
            )
        except CallError:
            return
