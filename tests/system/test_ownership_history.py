"""Histories of guarded writes and reads against a real kernel that is killed again and again: they are linearizable.

The object is a list that one owner appends to and anybody reads. A history is linearizable when its operations can be
put in one order that keeps real time; for a list that only grows that order is the list itself, so the check is exact:
every acknowledged append stands once; who saw fewer items did not begin after somebody who saw more had ended; an
append that had ended before a read began is seen by it; nothing appears that nobody wrote.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.support.client import dropped_after
from tests.support.kernel_process import KernelProcess
from trio_websocket import ConnectionClosed, HandshakeError

KEY = "history"
SECONDS = 4.0
READERS = 3
NAMES = itertools.count()


@attrs.frozen
class Operation:
    """One call: when it began and ended, and what it was told. `items` of a read, `item` of an append."""

    began: float
    ended: float
    item: str | None = None
    items: tuple[str, ...] = ()
    acknowledged: bool = True


def check(history: list[Operation]) -> None:
    """Raise AssertionError when no order explains the history."""
    appends = {op.item: op for op in history if op.item is not None}
    reads = sorted((op for op in history if op.item is None), key=lambda op: len(op.items))
    final = reads[-1].items
    assert len(set(final)) == len(final), "an item stands twice"
    assert set(final) <= set(appends), "an item that nobody wrote"
    for op in appends.values():
        assert not op.acknowledged or op.item in final, f"{op.item} was acknowledged and is lost"
    for fewer, more in itertools.pairwise(reads):
        assert more.items[: len(fewer.items)] == fewer.items, "two readers saw two orders"
    for read in reads:
        for op in appends.values():
            if op.acknowledged and op.ended < read.began:
                assert op.item in read.items, f"a read that began later does not see {op.item}"
            if op.began > read.ended:
                assert op.item not in read.items, f"a read sees {op.item} before it was written"
    for one, other in itertools.combinations(reads, 2):
        if len(one.items) != len(other.items):
            assert not other.ended < one.began, "a read went back in time"


class Client:
    """Calls over a wire of its own, made anew whenever the kernel is gone."""

    def __init__(self, kernel: KernelProcess) -> None:
        self._kernel = kernel

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the whole answer; None = nobody knows what became of it."""
        try:
            with trio.fail_after(5):
                async with dropped_after(f"{self._kernel.url}/ws") as wire:
                    name = f"h{next(NAMES)}"
                    auth = {"token": self._kernel.tokens["o"], "module_id": name}
                    for number, (what, given) in enumerate((("auth", auth), (method, params))):
                        request = {"jsonrpc": "2.0", "id": number, "method": what, "params": given}
                        await wire.send_message(json.dumps(request))
                    while True:
                        answer: dict[str, Any] = json.loads(await wire.get_message())
                        if answer.get("id") == 1:
                            return answer
        except (ConnectionClosed, HandshakeError, OSError, trio.TooSlowError, ExceptionGroup):
            return None


@pytest.mark.parametrize("seed", [1, 2])
async def test_histories_over_kills_of_the_kernel_are_linearizable(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    history: list[Operation] = []
    with KernelProcess(tmp_path, {"o": "operator"}) as kernel:
        client = Client(kernel)
        made = (await client.call("replica.register", {}) or {})["result"]
        await client.call("ownership.create", {"key": KEY, "data": {"items": []}})
        bearer = {"replica_id": made["replica_id"], "replica_token": made["token"]}
        guard = (await client.call("ownership.claim", {"key": KEY, **bearer}) or {})["result"]["guard"]
        due = time.monotonic() + SECONDS

        async def write() -> None:
            for number in itertools.count():
                if time.monotonic() > due:
                    return
                name, began = f"i{number}", time.monotonic()
                params = {"key": KEY, "guard": guard, "append": [{"id": name}], "nonce": name}
                answer = await client.call("ownership.write", params)
                while answer is None and chance.random() < 0.5:  # asked again under its nonce, or left unknown
                    answer = await client.call("ownership.write", params)
                history.append(Operation(began, time.monotonic(), name, acknowledged="result" in (answer or {})))

        async def read() -> None:
            while time.monotonic() < due:
                began = time.monotonic()
                answer = await client.call("ownership.get", {"key": KEY})
                if answer is not None and "result" in answer:
                    items = tuple(item["id"] for item in answer["result"]["data"]["items"])
                    history.append(Operation(began, time.monotonic(), items=items))
                await trio.sleep(0.005)

        async def kill() -> None:
            while time.monotonic() < due - 1:
                await trio.sleep(chance.uniform(0.3, 0.9))
                await trio.to_thread.run_sync(kernel.kill)
                await trio.to_thread.run_sync(kernel.start)

        async with trio.open_nursery() as nursery:
            for task in (write, kill, *[read] * READERS):
                nursery.start_soon(task)
        began = time.monotonic()
        last = await client.call("ownership.get", {"key": KEY})
        assert last is not None
        items = tuple(item["id"] for item in last["result"]["data"]["items"])
        history.append(Operation(began, time.monotonic(), items=items))
    check(history)
    assert len(items) > 20  # there was something to check


def test_the_checker_finds_what_is_wrong() -> None:
    good = [
        Operation(0, 1, "a"),
        Operation(2, 3, items=("a",)),
        Operation(4, 5, "b"),
        Operation(6, 7, items=("a", "b")),
    ]
    check(good)
    for wrong in (
        [*good, Operation(8, 9, "c"), Operation(10, 11, items=("a", "b"))],  # acknowledged, then not seen
        [*good, Operation(8, 9, items=("a",))],  # a read that went back
        [*good, Operation(8, 9, items=("b", "a", "x"))],  # another order, and a stranger
        [*good, Operation(8, 9, items=("a", "b", "b"))],  # twice
        [Operation(0, 1, items=("a",)), Operation(2, 3, "a"), Operation(4, 5, items=("a",))],  # seen before written
    ):
        with pytest.raises(AssertionError):
            check(wrong)
