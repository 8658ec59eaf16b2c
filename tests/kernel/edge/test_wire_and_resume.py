"""Whole kernel over memory streams: cuts at any byte, pressure, takeover, stop.

Source: 10 §8, 20 §1-4, cases W-27, W-41, W-43, W-55, W-58.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from tests.support.kernel_box import KernelBox, Peer
from trio_websocket import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Callable

Clock = trio.testing.MockClock


class Client:
    """A client that keeps its side of 10 §8: counts, keeps what it sent, comes back and sends again."""

    def __init__(self, box: KernelBox, name: str) -> None:
        self.box = box
        self.name = name
        self.received = 0
        self.sent: list[str] = []
        self.session = ""
        self.peer: Peer
        self.got: list[Any] = []

    async def connect(self) -> None:
        claim = {"resume": {"session": self.session, "received": self.received}} if self.session else {}
        self.peer = await self.box.auth(self.name, **claim)
        hello = self.peer.hello
        if self.session:
            assert hello["resumed"] is True
            for text in self.sent[hello["received"] :]:
                await self.put(text)
        self.session = hello["session"]

    async def put(self, text: str) -> None:
        with suppress(ConnectionClosed):  # it is kept in `sent` and goes again after the resume
            await self.peer.ws.send_message(text)

    async def send(self, frame: dict[str, Any]) -> None:
        text = json.dumps(frame)
        self.sent.append(text)
        await self.put(text)

    async def read(self) -> None:
        """Read until the wire is gone."""
        while True:
            try:
                text = await self.peer.ws.get_message()
            except ConnectionClosed:
                return
            self.received += 1
            self.got.append(json.loads(text))


@pytest.mark.parametrize("seed", range(12))
async def test_cuts_at_any_byte_lose_and_repeat_nothing(seed: int, autojump_clock: Clock) -> None:
    rng = random.Random(seed)
    async with KernelBox() as box:
        c = await box.ready("c", events=["a.said"])
        a = Client(box, "a")
        await a.connect()
        await a.send({"jsonrpc": "2.0", "id": "s", "method": "event.subscribe", "params": {"events": ["x.*"]}})
        await a.send({"jsonrpc": "2.0", "id": "r", "method": "registry.register", "params": {"methods": []}})
        heard: list[Any] = []

        async def listen() -> None:
            while True:
                heard.append((await c.event("a.said", within_s=1000))["data"])

        async def live() -> None:
            for cut in range(8):
                a.peer.stream.incoming.cut_after = rng.randrange(1, 2000)
                a.peer.stream.outgoing.cut_after = rng.randrange(1, 1500)
                with trio.move_on_after(2):
                    await a.read()
                a.peer.cut()
                await trio.sleep(rng.uniform(0, 4))
                if cut % 2:
                    await c.say("x.away", f"away {cut}")
                await a.connect()
            with trio.move_on_after(20):
                await a.read()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            nursery.start_soon(live)
            for n in range(150):
                await c.say("x.t", n)
                await a.send({"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "a.said", "data": n}})
                await trio.sleep(rng.uniform(0, 0.3))
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        told = [f["params"]["data"] for f in a.got if f.get("method") == "event" and f["params"]["event"] == "x.t"]
        assert told == list(range(150))
        assert heard == list(range(150))


async def test_a_stalled_wire_is_taken_over_at_once(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        a, c = await box.ready("a"), await box.ready("c")
        c.stall()
        began = trio.current_time()
        newer = await box.ready("c", register={"methods": ["echo"]})
        ident = await a.request("c.echo")
        await newer.reply((await newer.call_in())["id"], 1)
        assert (await a.answer_of(ident))["result"] == 1
        assert trio.current_time() - began < 0.2
        assert [line["event"] for line in box.lines("Closed old")] == ["[kernel] Closed old connection for c"]
        assert not [frame for frame in a.seen if frame["params"]["event"] == "module.offline"]
        await trio.sleep(1)
        assert box.kernel.door.open_connections == 2


async def test_who_reads_nothing_is_cut_and_reads_whole_frames_up_to_the_cut(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        a, c = await box.ready("a", events=["x.>"]), await box.ready("c")
        a.unread()
        for n in range(3000):
            await c.say("x.t", "y" * 1000)
            if n % 100 == 0:
                await trio.sleep(0.01)
        await trio.sleep(1.5)
        assert "a" not in {p.id for p in box.kernel.hub.board.peers.values() if p.link is not None}
        a.read_again()
        code, reason = await a.close_code()
        assert code in (4011, 1006)
        levels = [frame["params"]["level"] for frame in a.seen if frame.get("method") == "pressure"]
        assert levels in (["warning", "critical"], [])
        assert (await c.ask("event.publish", {"event": "x.t"}))["result"]["delivered"] == 1
        (line,) = [line for line in box.logs if line.get("key") == "queue_pressure"]
        assert line["topic"] == "x.t"
        assert line["module_id"] == "a"
        assert reason == "" or "x.t" in reason


async def test_rpc_of_a_slow_dashboard_goes_on(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        a, c = await box.ready("a"), await box.ready("c")
        await a.ask("event.subscribe", {"events": ["x.>"], "policy": "drop_oldest", "queue": 5})
        a.unread()
        for _ in range(500):
            await c.say("x.t", "y" * 1000)
        ident = await a.request("c.echo")
        await c.reply((await c.call_in())["id"], "still here")
        await trio.sleep(6)
        a.read_again()
        assert (await a.answer_of(ident))["result"] == "still here"
        gaps = [frame["params"] for frame in a.seen if frame.get("method") == "event.gap"]
        events = [frame for frame in a.seen if frame.get("method") == "event" and frame["params"]["event"] == "x.t"]
        assert sum(gap["lost"] for gap in gaps) + len(events) == 500


async def test_a_revoked_token_is_gone_within_a_second_even_unread(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        a, c = await box.ready("a", events=["x.>"]), await box.ready("c")
        a.unread()
        for _ in range(90):
            await c.say("x.t", "y" * 1000)
        del box.roles["a"]
        box.kernel.use_tokens(box.tokens())
        await trio.sleep(1)
        assert box.kernel.door.open_connections == 1
        assert "result" in await c.ask("kernel.info")


async def test_a_stop_waits_for_the_polite_and_cuts_the_rest(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        polite, deaf, mute = await box.ready("a"), await box.ready("b"), await box.ready("c")
        began = trio.current_time()
        box.kernel.stop("kernel_stop")
        told = await polite.event("module.shutdown")
        assert told["data"] == {"reason": "kernel_stop", "deadline_s": 10.0}
        await polite.say("module.shutdown_ack", {"module_id": "a"})
        await polite.ws.aclose(1000)
        deaf.unread()
        assert (await mute.close_code())[0] == 1001
        assert 9.9 <= trio.current_time() - began <= 10.1
        await box.ended.wait()
        assert trio.current_time() - began <= 11.1
        assert box.reason == "kernel_stop"


async def test_nobody_there_stops_at_once(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        began = trio.current_time()
        box.kernel.stop("kernel_stop")
        await box.ended.wait()
        assert trio.current_time() - began < 1.1


async def test_a_lost_launcher_ends_the_kernel_by_its_own_scope(autojump_clock: Clock) -> None:
    async with KernelBox({"a": "module", "launcher": "launcher"}, standalone=False) as box:
        a, launcher = await box.ready("a"), await box.ready("launcher")
        began = trio.current_time()

        async def read() -> None:
            while True:
                frame = json.loads(await a.raw())
                a.seen.append((trio.current_time() - began, frame))  # type: ignore[arg-type]

        launcher.cut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swallow_close, read)
            await box.ended.wait()
            nursery.cancel_scope.cancel()
        assert 44.9 <= trio.current_time() - began <= 46.1
        told = {f["params"]["event"]: round(at) for at, f in a.seen if f.get("method") == "event"}  # type: ignore[misc]
        assert told["module.offline"] == 5
        assert told["module.shutdown"] == 35


async def swallow_close(task: Callable[[], Any]) -> None:
    with suppress(ConnectionClosed):
        await task()


async def test_dead_wires_are_found_by_pings_over_the_real_timers(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        a, c = await box.ready("a"), await box.ready("c")
        await a.request("c.echo")
        c.stall()
        began = trio.current_time()
        while box.kernel.hub.board.peers["c"].link is not None:
            await a.notify("$/alive")
            await trio.sleep(1)
        assert trio.current_time() - began < 22
        assert [line["event"] for line in box.lines("ping timeout")] == [
            f"[kernel] c ping timeout {n} times" for n in (1, 2, 3)
        ]
        await a.until(lambda f: f.get("method") == "event" and f["params"]["event"] == "module.offline")


async def test_many_come_back_at_once_and_all_are_ready(autojump_clock: Clock) -> None:
    names = {f"m{n}": "module" for n in range(60)}
    async with KernelBox(names) as box:
        ready: list[Peer] = []

        async def come(name: str) -> None:
            ready.append(await box.ready(name))

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(come, name)
        assert len(ready) == 60
        assert {peer.state.value for peer in box.kernel.hub.board.peers.values()} == {"ready"}


async def test_a_strangers_bytes_one_a_second_buy_no_time(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        began = trio.current_time()
        peer = await box.connect()

        async def dribble() -> None:
            for byte in b"\x81\xfe":
                await trio.sleep(1)
                await peer.stream.send_all(bytes([byte]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dribble)
            code, _ = await peer.close_code()
            nursery.cancel_scope.cancel()
        assert code == 4002
        assert trio.current_time() - began <= 5.1


async def test_half_a_head_is_cut_after_five_seconds(autojump_clock: Clock) -> None:
    async with KernelBox() as box:
        stream = box.open_pipe()
        await stream.send_all(b"GET /ws HTTP/1.1\r\n")
        began = trio.current_time()
        assert await stream.receive_some() == b""
        assert trio.current_time() - began <= 5.1


async def test_a_fault_of_the_kernel_itself_ends_nobody_else(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever raises where it should never: one line that names the place, and the others go on."""
    box = KernelBox()
    async with box:
        a, b, c = await box.ready("a"), await box.ready("b"), await box.ready("c")
        hub = box.kernel.hub
        monkeypatch.setitem(hub.handlers, "kernel.info", lambda ask: 1 / 0)
        await a.request("kernel.info")
        assert (await a.close_code())[0] == 1006
        with monkeypatch.context() as patch:
            patch.setattr(type(hub.queues), "judge", lambda *_, **__: 1 / 0)
            patch.setattr(type(hub.liveness), "next_at", lambda _: trio.current_time())
            patch.setattr(type(hub.liveness), "on_time", lambda *_: 1 / 0)
            patch.setattr(type(hub.members), "on_away", lambda *_, **__: 1 / 0)
            await trio.sleep(8)
        ident = await b.request("c.echo")
        await c.reply((await c.call_in())["id"], "alive")
        assert (await b.answer_of(ident))["result"] == "alive"
        bugs = [line for line in box.logs if line.get("key") == "bug"]
        assert len(bugs) >= 3
        assert {line["kind"] for line in bugs} == {"ZeroDivisionError"}
        assert all(line["where"].startswith("test_wire_and_resume.py:") for line in bugs)
        box.logs[:] = [line for line in box.logs if line not in bugs]
