"""`python -m kite_modules.logs`: `logs.query`, `logs.follow`, `logs.modules`.

What is on the disk is read by the one program that knows its form (`kite-launch logs --json`): one child follows and
fills the ring; a question about another time starts one for itself, bounded in time and number. Source: spec 80 §3.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from kite_modules.logs.options import Options
from kite_modules.logs.ring import Line, Ring, wanted
from kite_modules.sdk import Kite, Module, Refused, log

LIMIT_MAX: Final = 5000
BEGIN_LINES: Final = 2000  # what the ring begins with
READ_BYTES: Final = 1 << 16
LINE_BYTES_MAX: Final = 1 << 20
SEARCH_S: Final = 20.0
RETRY_S: Final = 1.0
BATCH: Final = 200  # lines in one value of `follow`

module = Module("logs", options=Options)
ring = Ring()
searches = trio.CapacityLimiter(2)


class State:
    """What changes: whether somebody must be woken, and how many follow."""

    arrived = trio.Event()
    followers = 0
    fault = ""


def state_dir() -> Path:
    """Return the instance's state directory: this module's own is `modules/logs` in it."""
    return Path(os.environ.get("KITE_STATE_DIR", ".")).resolve().parent.parent


def command(*words: str) -> list[str]:
    """Return the program that reads logs."""
    return [sys.executable, "-P", "-m", "kite_launcher", "logs", "--json", "--state-dir", str(state_dir()), *words]


def environment() -> dict[str, str]:
    """Return this process's environment without what is a module's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KITE_")}


async def reading(
    argv: list[str], *, stderr: int, task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the reader of logs; its output is a pipe. Cancel: it is ended."""
    await trio.run_process(
        argv, env=environment(), stdout=subprocess.PIPE, stderr=stderr, check=False, task_status=task_status
    )


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncGenerator[Line, None]:
    """Yield the objects of a child's output, one a line; what is none is left out."""
    rest = b""
    while True:
        data = await stream.receive_some(READ_BYTES)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        for text in whole:
            try:
                row = json.loads(text)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("line"), str):
                row.pop("schema", None)
                yield row


async def fill(kite: Kite) -> None:
    """Follow all logs for as long as this module runs; a reader that ends is started again."""
    del kite
    begin = BEGIN_LINES
    while True:
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(reading, command("-f", "-n", str(begin)), stderr=subprocess.DEVNULL))
            async for line in lines_of(process.stdout):
                ring.add(line)
                State.arrived.set()
                State.arrived = trio.Event()
        begin = 0  # what came meanwhile is on the disk; no line stands in the ring twice
        State.fault = "the reader of the logs ended"
        log.say(logging.WARNING, "the reader of the logs ended and is started again")
        await trio.sleep(RETRY_S)
        State.fault = ""


module.task(fill)


def checked(limit: int) -> int:
    """Refuse a limit out of range."""
    if not 1 <= limit <= LIMIT_MAX:
        raise Refused(f"limit must be from 1 to {LIMIT_MAX}", code=-2)
    return limit


@module.method
async def query(
    modules: list[str] | None = None,
    grep: str | None = None,
    limit: int = 500,
    after: int | None = None,
    since: str | None = None,
    until: str | None = None,
    run: int | None = None,
) -> dict[str, Any]:
    """Return lines, oldest first, and `after`: the number to ask after for what comes next.

    `modules`: these alone; `grep`: a text that the line holds; `after`: what came since then (`missed`: lines that
    went from memory meanwhile); `since`, `until`, `run`: another time, from the disk.
    """
    limit = checked(limit)
    wants = wanted(modules, grep)
    if since is None and until is None and run is None:
        if after is not None:
            found, upto, missed = ring.after(after, wants, limit)
            return {"lines": found, "after": upto, "missed": missed}
        return {"lines": ring.newest(wants, limit), "after": ring.last, "missed": 0}
    words = [
        f"--{name}={value}" for name, value in (("since", since), ("until", until), ("run", run)) if value is not None
    ]
    return {"lines": await search(words, modules or [], grep, limit), "after": ring.last, "missed": 0}


async def search(words: Sequence[str], modules: Sequence[str], grep: str | None, limit: int) -> list[Line]:
    """Read another time from the disk. Raises: Refused."""
    if any(name.startswith("-") for name in modules):
        raise Refused("modules: no such name", code=-2)
    wants = wanted(None, grep)
    found: deque[Line] = deque(maxlen=limit)
    said: list[bytes] = []
    with trio.move_on_after(SEARCH_S) as bound:
        async with searches, trio.open_nursery() as nursery:
            process = await nursery.start(partial(reading, command(*words, *modules), stderr=subprocess.PIPE))
            nursery.start_soon(_hear, process.stderr, said)
            async for line in lines_of(process.stdout):
                if wants(line):
                    found.append(line)
            await process.wait()
    if bound.cancelled_caught:
        raise Refused(f"reading took longer than {SEARCH_S:.0f} s; ask for less", code=-3)
    if process.returncode not in (0, 3):
        raise Refused(b"".join(said).decode("utf-8", "replace").strip()[:300] or "the logs can't be read", code=-2)
    return list(found)


async def _hear(stream: trio.abc.ReceiveStream, said: list[bytes]) -> None:
    async for data in stream:
        if len(said) < 8:
            said.append(bytes(data))


@module.method
async def follow(
    kite: Kite, modules: list[str] | None = None, grep: str | None = None, after: int | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield {lines, after, missed} as lines come, until the caller has enough."""
    if State.followers >= kite.options.follow_max:
        raise Refused(f"{kite.options.follow_max} follow already", code=-4)
    State.followers += 1
    try:
        wants = wanted(modules, grep)
        at = ring.last if after is None else after
        while True:
            arrived = State.arrived
            found, at, missed = ring.after(at, wants, BATCH)
            if found or missed:
                yield {"lines": found, "after": at, "missed": missed}
            elif at >= ring.last:
                await arrived.wait()
    finally:
        State.followers -= 1


@module.method(name="modules")
async def list_modules() -> dict[str, Any]:
    """Return whose logs there are, with the bytes and files that each takes."""
    found: dict[str, dict[str, Any]] = {}
    folder = trio.Path(state_dir() / "logs")
    for path in await folder.iterdir():
        name, mark, number = path.name.rpartition(".log")
        if not mark or (number and not number.lstrip(".").isdigit()):
            continue
        row = found.setdefault(name, {"module": name, "bytes": 0, "files": 0})
        row["bytes"] += (await path.stat()).st_size
        row["files"] += 1
    return {"modules": sorted(found.values(), key=lambda row: str(row["module"])), "kept": ring.last - ring.first + 1}


@module.method
async def health() -> dict[str, str]:
    """Say whether the logs are being read."""
    return {"status": "degraded", "why": State.fault} if State.fault else {"status": "ok"}


if __name__ == "__main__":
    module.run()
