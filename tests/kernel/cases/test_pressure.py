"""Cases W-39 to W-46: back-pressure and liveness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.raw_peer import RawPeer, is_event
from tests.support.stage import Stage, stage

from kite_kernel.core.queues import CRITICAL

if TYPE_CHECKING:
    from collections.abc import Callable


def publish_frame(event: str, data: Any) -> bytes:
    note = {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": event, "data": data}}
    return client_frame(json.dumps(note, separators=(",", ":")).encode())


async def test_w39_a_subscriber_that_stops_reading_is_warned_and_cut_and_harms_nobody() -> None:
    async with stage("a", "b", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.>"]})
        await on.b.result("event.subscribe", {"events": ["x.>"]})
        on.b.take()
        on.a.stop_reading()
        one = publish_frame("x.t", "y" * 1000)
        sent = 0
        with trio.fail_after(60):
            while on.hub.board.peers["a"].link is not None or sent < 30_000:
                await on.c.send_bytes(one * 100)
                await on.c.settle()
                sent += 100
                assert sent <= 200_000
        await on.b.settle()
        assert len([m for m in on.b.take() if is_event("x.t")(m)]) == sent
        record = await on.closed_record("a")
        assert record["code"] == 4011
        assert "x.t" in json.dumps(record)
        assert [line for line in on.logs if "x.t" in json.dumps(line, default=str) and "a" in str(line)]
        on.a.read_again(on.nursery)
        await on.a.ended.wait()
        levels = [m["params"]["level"] for m in on.a.take() if m.get("method") == "pressure"]
        assert levels[:2] in (["warning", "critical"], ["warning"], [])  # what did not fit any more is in the record


async def test_w39_pressure_names_the_topic_at_each_level() -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.>"]})
        on.a.take()
        on.a.stop_reading()
        one = publish_frame("x.t", "y" * 20_000)
        with trio.fail_after(30):
            while on.hub.board.peers["a"].pressure != CRITICAL:
                await on.c.send_bytes(one)
                await on.c.settle()
        on.a.read_again(on.nursery)
        told = [(await on.a.notice("pressure")) for _ in range(2)]
        assert [notice["level"] for notice in told] == ["warning", "critical"]
        assert {notice["topic"] for notice in told} == {"x.t"}
        assert all(notice["messages"] > 0 and notice["bytes"] > 0 for notice in told)
        await trio.sleep(20)
        await on.a.settle()
        assert on.a.closed is None


@pytest.mark.parametrize(("count", "size"), [(5_000, 80), (25_000, 500)])
async def test_w40_a_burst_larger_than_the_queue_is_no_slow_reader(count: int, size: int) -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        await on.c.send_bytes(b"".join(publish_frame("x.t", [n, "z" * size]) for n in range(count)))
        await on.c.settle()
        await on.a.settle()
        numbers = [m["params"]["data"][0] for m in on.a.take() if is_event("x.t")(m)]
        assert numbers == list(range(count))
        assert on.a.closed is None


async def test_w41_a_cut_inside_a_large_event_leaves_whole_frames_and_then_an_end() -> None:
    async with stage("a", "c") as on:
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        on.a.stop_reading()
        big = publish_frame("x.t", "w" * 900_000)
        ident = await on.c.ask("a.slow", {"x": "v" * 100_000}, meta={"timeout": 0.5})
        for _ in range(6):
            await on.c.send_bytes(big)
        await on.c.answer_to(ident)
        on.set_tokens(a="another token")
        await trio.sleep(2)
        on.a.read_again(on.nursery)  # a torn frame would fail the client's own parser or leave a JSON error
        await on.a.ended.wait()
        heard = [json.loads(text) for text in on.a.heard]
        assert all(len(m["params"]["data"]) == 900_000 for m in heard if is_event("x.t")(m))


async def test_w42_a_peer_that_ignores_its_close_is_gone_within_a_second() -> None:
    async with stage("a", "b", "c") as on:
        await on.check_bystanders()
        on.a.stop_reading()
        began, before = trio.current_time(), on.kernel.door.open_connections
        on.set_tokens(a="another token")
        await on.check_bystanders()
        with trio.fail_after(5):
            while on.kernel.door.open_connections == before:
                await trio.sleep(0.05)
        assert trio.current_time() - began < 1.5
        assert (await on.closed_record("a"))["code"] == 4001


async def await_record(on: Stage, name: str, at_most_s: float) -> tuple[dict[str, Any], float]:
    """Wait until `kernel.closed` has a row of this module; return it and how long that took."""
    began = trio.current_time()
    while trio.current_time() - began < at_most_s:
        rows = [row for row in on.hub.board.closed if row["module_id"] == name]
        if rows:
            return rows[-1], trio.current_time() - began
        await trio.sleep(1)
    raise AssertionError(f"{name} was not closed within {at_most_s} s")


async def test_w43_a_silent_module_is_closed_4012_after_three_misses_while_calls_run() -> None:
    async with stage("a", "b", "c") as on:
        async with trio.open_nursery() as nursery:

            async def keep_calling() -> None:
                while True:
                    ident = await on.b.ask("c.echo", {})
                    await on.c.reply(await on.c.request("echo"), None)
                    await on.b.answer_to(ident)
                    await trio.sleep(2)

            nursery.start_soon(keep_calling)
            await trio.sleep(6)  # the quick interval holds from here on
            pings = on.a.pings
            on.a.stop_reading()
            record, took_s = await await_record(on, "a", 40)
            nursery.cancel_scope.cancel()
        assert pings >= 1
        assert record["code"] == 4012
        assert 10 <= took_s <= 22
        for count in (1, 2, 3):
            assert len(on.lines(f"[kernel] a ping timeout {count} times")) == 1
        assert on.lines("[kernel] a ping timeout")[0]["log_level"] == "warning"
        told = await on.b.event("module.offline")
        assert told["data"]["module_id"] == "a"


async def test_w43_the_first_call_after_a_quiet_time_brings_the_quick_interval_forward() -> None:
    async with stage("a", "b", "c") as on:
        await trio.sleep(40)
        await on.b.settle()  # a call to the kernel itself counts like any other
        on.a.stop_reading()
        async with trio.open_nursery() as nursery:

            async def keep_calling() -> None:
                while True:
                    await on.b.settle()
                    await trio.sleep(2)

            nursery.start_soon(keep_calling)
            record, took_s = await await_record(on, "a", 80)
            nursery.cancel_scope.cancel()
        assert record["code"] == 4012
        assert took_s < 25


async def test_w43_an_idle_system_finds_a_silent_module_within_75_seconds() -> None:
    async with stage("a", "b", "c") as on:
        on.a.stop_reading()
        record, took_s = await await_record(on, "a", 120)
        assert record["code"] == 4012
        assert took_s <= 78


async def test_w43_any_text_after_the_ping_is_life_and_websocket_pongs_are_not() -> None:
    async with stage("a", "b", "c") as on:
        on.a.answers_pings = False
        on.b.answers_pings = False
        async with trio.open_nursery() as nursery:

            async def say(peer: RawPeer, make: Callable[[], bytes]) -> None:
                while True:
                    await trio.sleep(3)
                    await peer.send_bytes(make())

            nursery.start_soon(say, on.a, lambda: publish_frame("x.alive", 1))
            nursery.start_soon(say, on.b, lambda: client_frame(b"", opcode=10))
            record, _ = await await_record(on, "b", 120)
            nursery.cancel_scope.cancel()
        assert record["code"] == 4012
        assert [row for row in on.hub.board.closed if row["module_id"] == "a"] == []


async def test_w46_pending_closed_and_stats_tell_who_and_nothing_secret() -> None:
    async with stage("a", "b", "c") as on:
        operator = await on.operator()
        on.b.stop_reading()
        await await_record(on, "b", 120)
        ident = await on.a.ask("c.slow", {"secret": "payload-canary"})
        request = await on.c.request("slow")
        await trio.sleep(10)
        pending = await operator.result("kernel.pending", {})
        (row,) = pending["calls"]
        assert (row["caller"], row["callee"]) == ("a", "c")
        assert row["method"] in ("slow", "c.slow")
        assert 9 < row["age_s"] < 14
        assert row["where"] == "callee"
        closed = (await operator.result("kernel.closed", {}))["closed"]
        assert (closed[0]["module_id"], closed[0]["code"]) == ("b", 4012)
        assert closed[0]["why"]
        assert closed[0]["when"]
        stats = await operator.result("kernel.get_connection_stats", {"module_id": "c"})
        (of_c,) = stats["modules"]
        assert of_c["calls_in_flight"] == 1
        said = json.dumps([pending, closed, stats])
        assert "payload-canary" not in said
        assert not any(token in said for token in on.tokens.values())
        await on.c.reply(request, None)
        await on.a.answer_to(ident)
