"""The chat over real processes: several replicas, answers that survive kills and stops, approvals that stay decided."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.client import dropped_after
from tests.support.kernel_process import KernelProcess
from trio_websocket import WebSocketConnection

WAIT_S = 40.0
SCALE = 0.15
LONG = " ".join(f"w{number}" for number in range(60))
SCRIPT = [
    {"match": "^long$", "reply": LONG},
    {"match": "^tool$", "tool": "slow", "arguments": {"seconds": 3}},
    {"match": "^ask$", "tool": "asked", "arguments": {"seconds": 0}},
    {"match": "ran", "reply": "The tool ran."},
    {"match": "refused", "reply": "Then not."},
]
TOOLS = [
    {"name": "slow", "method": "tools.run", "approval": False},
    {"name": "asked", "method": "tools.run", "approval": True},
]
TOOL_PROGRAM = '''
import os, trio
from kite_modules.sdk import Module, Call
module = Module("tools")
@module.method
async def run(seconds: float) -> str:
    """Note that it ran, after a while."""
    with open(os.environ["RUNS"], "a") as runs:
        runs.write("run\\n")
    await trio.sleep(seconds)
    return "ran"
module.run()
'''


class Instance:
    """A kernel and module processes, started and killed one by one."""

    def __init__(self, kernel: KernelProcess) -> None:
        self.kernel = kernel
        self.runs = kernel.folder / "runs"
        self.runs.touch()
        (kernel.folder / "tools.py").write_text(TOOL_PROGRAM, "utf-8")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        folder = self.kernel.folder
        files = {"token": self.kernel.tokens[name], "options": json.dumps(self.options(name))}
        for kind, text in files.items():
            (folder / f"{name}.{kind}").touch(mode=0o600)
            (folder / f"{name}.{kind}").write_text(text, "utf-8")
        env = {
            **os.environ,
            "KITE_URL": self.kernel.url,
            "KITE_MODULE_ID": name,
            "KITE_TOKEN_FILE": str(folder / f"{name}.token"),
            "KITE_OPTIONS_FILE": str(folder / f"{name}.options"),
            "RUNS": str(self.runs),
        }
        kind = name.partition("@")[0]
        program = [folder / "tools.py"] if kind == "tools" else ["-m", f"kite_modules.{kind}"]
        with (folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([sys.executable, "-P", *program], env=env, stdout=log, stderr=log)

    def options(self, name: str) -> dict[str, Any]:
        if name == "model":
            return {"word_s": 0.02, "script": SCRIPT}
        return {"tools": TOOLS, "save_every_s": 0.1} if name.startswith("chat") else {}

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(20)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    roles = dict.fromkeys(("model", "tools", "chat@1", "chat@2", "person"), "module")
    with KernelProcess(tmp_path, roles, scale=SCALE) as kernel:
        made = Instance(kernel)
        try:
            for name in ("model", "tools", "chat@1", "chat@2"):
                made.start(name)
            yield made
        finally:
            made.close()


class Person:
    """A raw client that calls chat.* as any program would."""

    def __init__(self, wire: WebSocketConnection) -> None:
        self._wire = wire
        self._number = 0

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self._wire.send_message(json.dumps(request))
        with trio.fail_after(WAIT_S):
            while True:
                answer = json.loads(await self._wire.get_message())
                if answer.get("id") == self._number:
                    return answer["result"] if "result" in answer else answer["error"]
                if answer.get("params", {}).get("event") == "system.ping":
                    pong = {"event": "system.pong", "data": answer["params"]["data"]}
                    message = {"jsonrpc": "2.0", "method": "event.publish", "params": pong}
                    await self._wire.send_message(json.dumps(message))

    async def until(self, chat_id: str, what: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        due = time.monotonic() + WAIT_S
        while True:
            found: dict[str, Any] = await self.call("chat.get", chat_id=chat_id)
            if "messages" in found and what(found):
                return found
            assert time.monotonic() < due, found
            await trio.sleep(0.05)


@asynccontextmanager
async def person(instance: Instance) -> AsyncIterator[Person]:
    async with dropped_after(f"{instance.kernel.url}/ws") as wire:
        someone = Person(wire)
        await someone.call("auth", token=instance.kernel.tokens["person"])
        due = time.monotonic() + WAIT_S
        while (
            "chats" not in await someone.call("chat.list") or len((await someone.call("replica.list"))["replicas"]) < 2
        ):
            assert time.monotonic() < due
            await trio.sleep(0.05)
        yield someone


def answer_of(found: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = found["messages"][-1]
    return message


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"])


async def owner_of(someone: Person, chat_id: str) -> str:
    shown = await someone.call("ownership.get", key=f"chat/{chat_id}")
    rows = (await someone.call("replica.list"))["replicas"]
    return next(row["module_id"] for row in rows if row["replica_id"] == shown["owner"]["replica_id"])


async def test_an_answer_is_written_and_streamed(instance: Instance) -> None:
    async with person(instance) as someone:
        chat_id = (await someone.call("chat.create", title="first"))["chat_id"]
        sent = await someone.call("chat.send", chat_id=chat_id, text="hello", message_id="u1")
        assert sent == {"message_id": "a-u1", "stream": f"chat.{chat_id}"}
        assert await someone.call("chat.send", chat_id=chat_id, text="hello", message_id="u1") == sent
        found = await someone.until(chat_id, lambda found: answer_of(found)["state"] == "done")
        assert [message["role"] for message in found["messages"]] == ["user", "assistant"]
        assert text_of(answer_of(found)) == "You said: hello"
        assert (await someone.call("stream.stats", stream=f"chat.{chat_id}"))["seq"] >= 3
        assert (await someone.call("chat.get", chat_id="nosuch"))["message"] == "there is no chat nosuch"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_another_replica_goes_on_with_the_same_message(instance: Instance, how: signal.Signals) -> None:
    async with person(instance) as someone:
        chat_id = (await someone.call("chat.create"))["chat_id"]
        await someone.call("chat.send", chat_id=chat_id, text="long", message_id="u1")
        await someone.until(chat_id, lambda found: "w9" in text_of(answer_of(found)))
        instance.processes[await owner_of(someone, chat_id)].send_signal(how)
        found = await someone.until(chat_id, lambda found: answer_of(found)["state"] == "done")
        assert [(message["id"], message["role"]) for message in found["messages"]] == [
            ("u1", "user"),
            ("a-u1", "assistant"),
        ]
        assert text_of(answer_of(found)) == LONG
        assert (await someone.call("ownership.get", key=f"chat/{chat_id}"))["epoch"] == 2


async def test_a_tool_call_that_the_stop_cut_runs_again_under_its_own_id(instance: Instance) -> None:
    async with person(instance) as someone:
        chat_id = (await someone.call("chat.create"))["chat_id"]
        await someone.call("chat.send", chat_id=chat_id, text="tool", message_id="u1")

        def calls(found: dict[str, Any]) -> list[dict[str, Any]]:
            return [call for part in answer_of(found)["parts"] for call in part["calls"]]

        running = await someone.until(chat_id, lambda found: [c for c in calls(found) if c["state"] == "running"])
        instance.processes[await owner_of(someone, chat_id)].terminate()
        found = await someone.until(chat_id, lambda found: answer_of(found)["state"] == "done")
        assert [(call["id"], call["state"], call["result"]) for call in calls(found)] == [
            (calls(running)[0]["id"], "done", "ran")
        ]
        assert text_of(answer_of(found)) == "The tool ran."


async def test_a_refusal_stays_a_refusal_over_a_kill(instance: Instance) -> None:
    async with person(instance) as someone:
        chat_id = (await someone.call("chat.create"))["chat_id"]
        await someone.call("chat.send", chat_id=chat_id, text="ask", message_id="u1")

        def call(found: dict[str, Any]) -> dict[str, Any]:
            found_calls = [call for part in answer_of(found)["parts"] for call in part["calls"]]
            return found_calls[0] if found_calls else {"state": ""}

        waiting = await someone.until(chat_id, lambda found: call(found)["state"] == "waiting")
        denied = await someone.call("chat.deny", chat_id=chat_id, call_id=call(waiting)["id"])
        assert denied == {"decided": True}
        owner = await owner_of(someone, chat_id)
        instance.processes[owner].kill()
        found = await someone.until(chat_id, lambda found: answer_of(found)["state"] == "done")
        assert call(found)["state"] == "refused"
        assert text_of(answer_of(found)) == "Then not."
        assert instance.runs.read_text("utf-8") == ""


async def test_an_approved_call_runs_and_a_stopped_answer_stays_where_it_was(instance: Instance) -> None:
    async with person(instance) as someone:
        chat_id = (await someone.call("chat.create"))["chat_id"]
        await someone.call("chat.send", chat_id=chat_id, text="ask", message_id="u1")
        waiting = await someone.until(chat_id, lambda found: answer_of(found)["parts"][0]["calls"])
        call_id = answer_of(waiting)["parts"][0]["calls"][0]["id"]
        assert await someone.call("chat.approve", chat_id=chat_id, call_id=call_id) == {"decided": True}
        await someone.until(chat_id, lambda found: answer_of(found)["state"] == "done")
        assert instance.runs.read_text("utf-8") == "run\n"

        await someone.call("chat.send", chat_id=chat_id, text="long", message_id="u2")
        await someone.until(chat_id, lambda found: "w5" in text_of(answer_of(found)))
        assert await someone.call("chat.stop", chat_id=chat_id) == {"stopped": True}
        found = await someone.until(chat_id, lambda found: found["state"] == "idle")
        assert answer_of(found)["state"] == "stopped"
        assert text_of(answer_of(found)) != LONG
