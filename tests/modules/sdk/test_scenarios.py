"""What authors rely on, against the authors' in-memory hub and against the real kernel alike, on the virtual clock.

Source: spec 30-clients §2, 10-wire §4-8, cases W-22, W-53…W-55.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from tests.support.sdk_kernels import SdkKernel, open_kernel

from kite_modules.sdk import Call, CallError, Event, Kite, Module, NotConnected, Refused
from kite_modules.sdk.session import State

KINDS = ("hub", "kernel")
both = pytest.mark.parametrize("kind", KINDS)
Clock = trio.testing.MockClock


class Shop:
    """A module with one of everything; `seen` notes what happened in it."""

    def __init__(self) -> None:
        self.module = Module("a")
        self.seen: list[Any] = []
        module, seen = self.module, self.seen

        @module.method
        async def greet(name: str, times: int = 1) -> str:
            """Greet."""
            return f"hello {name}" * times

        @module.method(name="plus")
        def add(a: int, b: int = 1) -> int:
            return a + b

        @module.method
        async def count(n: int) -> Any:
            for number in range(n):
                seen.append(number)
                yield number

        @module.method
        async def slow(seconds: float = 1000) -> str:
            try:
                await trio.sleep(seconds)
            except trio.Cancelled:
                seen.append("cancelled")
                raise
            return "slept"

        @module.method
        async def who(call: Call) -> str:
            return call.caller

        @module.method
        async def refuse() -> None:
            raise Refused("sold out", code=17, data={"left": 0})

        @module.method
        async def broken() -> None:
            raise RuntimeError("a secret detail")

        @module.method
        async def unsayable() -> object:
            return object()

        @module.on("orders.>")
        async def order(event: Event) -> None:
            if event.data == "bad":
                raise ValueError("one bad event")
            seen.append((event.name, event.data, event.source))

        @module.on_shutdown
        async def farewell(reason: str) -> None:
            seen.append(f"farewell {reason}")


@both
async def test_a_call_is_answered_checked_and_described(kind: str, autojump_clock: Clock) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        assert await kite.call("a.greet", {"name": "you", "times": 2}) == "hello youhello you"
        assert await kite.call("a.plus", [1, 2]) == 3
        assert await kite.call("a.who") == "me"
        assert await kite.call("a.health") == {"status": "ok"}
        methods = {row["name"]: row for row in (await kite.call("registry.get_module", {"module_id": "a"}))["methods"]}
        assert methods["greet"]["params"]["properties"]["times"] == {"type": "integer", "default": 1}
        assert methods["greet"]["doc"] == "Greet."


@both
async def test_a_failed_call_says_why_and_whether_to_repeat(kind: str, autojump_clock: Clock) -> None:
    async def failure(method: str, params: Any = None, **more: Any) -> CallError:
        with pytest.raises(CallError) as caught:
            await kite.call(method, params, **more)
        return caught.value

    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        bad = await failure("a.greet", {"name": 7})
        assert (bad.code, bad.data["field"], bad.repeat) == (-32602, "name", "safe")
        missing = await failure("a.nope")
        assert (missing.code, missing.outcome) == (-32601, "not_sent")
        nobody = await failure("zz.run")
        assert (nobody.code, nobody.reason, nobody.repeat) == (-32001, "unknown_module", "safe")
        refused = await failure("a.refuse")
        assert (refused.code, refused.message, refused.data, refused.repeat) == (17, "sold out", {"left": 0}, "no")
        broken = await failure("a.broken")
        assert (broken.code, broken.data["type"], broken.repeat) == (-32603, "RuntimeError", "with_key")
        assert "secret detail" not in str(broken.data) + broken.message
        unsayable = await failure("a.unsayable")
        assert (unsayable.code, unsayable.outcome) == (-32603, "done")
        late = await failure("a.slow", timeout=2)
        assert (late.code, late.outcome, late.later) == (-32003, "unknown", True)
        await trio.sleep(1)
        assert shop.seen == ["cancelled"]


@both
async def test_cancelling_a_call_cancels_its_handler(kind: str, autojump_clock: Clock) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        with trio.move_on_after(1):
            await kite.call("a.slow")
        await trio.sleep(1)
        assert shop.seen == ["cancelled"]
        assert kite.statistics()["in_flight"] == 0


@both
async def test_a_yielding_method_never_runs_further_ahead_than_its_credit(kind: str, autojump_clock: Clock) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        async with kite.iterate("a.count", {"n": 30}, credit=4) as values:
            await trio.sleep(2)
            assert len(shop.seen) <= 5  # four are on their way, the fifth waits
            got = [value async for value in values]
        assert got == list(range(30))
        assert values.result == {"yielded": 30}
        assert values.refused == 0
        async with kite.iterate("a.count", {"n": "x"}) as values:
            with pytest.raises(CallError, match="invalid params"):
                await anext(aiter(values))


@both
async def test_events_come_in_order_and_a_bad_one_ends_nothing(kind: str, autojump_clock: Clock) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        assert await kite.publish("orders.a", 1) == 1
        assert await kite.publish("orders.a", "bad") == 1
        assert await kite.publish("orders.a.b", {"id": 2}) == 1
        assert await kite.publish("other", 3) == 0
        await trio.sleep(1)
        assert shop.seen == [("orders.a", 1, "me"), ("orders.a.b", {"id": 2}, "me")]


@both
async def test_a_block_hears_events_and_stops_hearing_them(kind: str, autojump_clock: Clock) -> None:
    async with open_kernel(kind) as kernel, kernel.client("me") as kite, kernel.client("you") as other:
        async with kite.subscribe("x.*", "y") as events:
            assert await other.publish("x.1", 1) == 1
            assert await other.publish("y", 2) == 1
            assert [(await anext(events)).data, (await anext(events)).data] == [1, 2]
        await trio.sleep(0.5)
        assert await other.publish("x.1", 1) == 0


@both
async def test_a_cut_of_two_seconds_loses_nothing(kind: str, autojump_clock: Clock) -> None:
    """W-55: calls, answers and events exactly once and in order, and nobody is told."""
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        answers: list[str] = []
        offline: list[str] = []

        async def call_slowly() -> None:
            answers.append(await kite.call("a.slow", {"seconds": 3}))

        async with kite.subscribe("module.offline") as gone, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call_slowly)
            await trio.sleep(1)
            kernel.cut("me")
            kernel.cut("a")
            assert await kite.publish("orders.kept", 1, away="wait") == 1
            await trio.sleep(4)
            offline += [event.data["module_id"] for event in list(gone._queue)]
        assert answers == ["slept"] * 3
        assert offline == []
        assert shop.seen == [("orders.kept", 1, "me")]
        assert kite.statistics()["resumes"] == 1


@both
async def test_a_hundred_cuts_lose_nothing(kind: str, autojump_clock: Clock) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        for number in range(100):
            await kite.publish("orders.n", number, away="keep")
            if number % 3 == 0:
                kernel.cut("me" if number % 2 else "a")
            assert await kite.call("a.plus", {"a": number}) == number + 1
            await kite.wait_open()
        await trio.sleep(10)
        assert [data for _, data, _ in shop.seen] == list(range(100))


@both
async def test_another_kernel_ends_calls_as_unknown_and_takes_everybody_back(kind: str, autojump_clock: Clock) -> None:
    """W-54: each call ends once; subscribe → register → ready by itself; publishes meanwhile kept in order."""
    shop = Shop()
    ends: list[tuple[int, str | None]] = []

    async def call_for_ever(kite: Kite) -> None:
        with pytest.raises(CallError) as caught:
            await kite.call("a.slow")
        ends.append((caught.value.code, caught.value.outcome))

    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call_for_ever, kite)
            await trio.sleep(0.5)
            nursery.start_soon(_restart, kernel)
            await trio.sleep(0.5)
            assert kite.state is not State.OPEN
            for number in range(5):
                assert await kite.publish("orders.away", number) is None
            with pytest.raises(CallError) as caught:
                await kite.publish("orders.away", 9, away="refuse")
            assert (caught.value.code, caught.value.outcome) == (-32001, "not_sent")
        assert ends == [(-32002, "unknown")] * 3
        await kernel.wait_state("a", "ready")
        assert await kite.call("a.greet", {"name": "again"}) == "hello again"
        await kite.wait_open()
        await trio.sleep(1)
        assert kite.statistics()["kept"] == 0
        got = [data for name, data, _ in shop.seen if name == "orders.away"]
        assert got == list(range(len(got)))  # in order; those before the module was back had nobody to hear them


async def _restart(kernel: SdkKernel) -> None:
    await kernel.restart(away_s=3.0)


@both
async def test_a_call_to_a_module_on_its_way_back_waits_or_refuses_as_asked(kind: str, autojump_clock: Clock) -> None:
    """W-22."""
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.running(shop.module, name="a"), kernel.client("me") as kite:
        kernel.cut("a")
        await trio.sleep(0.1)
        with pytest.raises(CallError) as caught:
            await kite.call("a.plus", {"a": 1}, wait=False)
        assert (caught.value.code, caught.value.outcome) == (-32001, "not_sent")
        assert await kite.call("a.plus", {"a": 1}) == 2


@both
@pytest.mark.parametrize("reason", ["module_stop", "instance_stop", "launcher_lost"])
async def test_a_module_that_is_told_to_end_finishes_says_farewell_and_stays_away(
    kind: str, reason: str, autojump_clock: Clock
) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.client("me") as kite:
        answers: list[Any] = []

        async def last_call() -> None:
            answers.append(await kite.call("a.slow", {"seconds": 2}))

        async with trio.open_nursery() as nursery:
            async with kernel.running(shop.module, name="a") as module_kite:
                nursery.start_soon(last_call)
                await trio.sleep(0.5)
                await kernel.shut_down("a", reason)
                await trio.sleep_forever()
            assert module_kite.stopping.is_set()
            assert module_kite.state is State.STOPPED
        assert answers == ["slept"]
        assert shop.seen == [f"farewell {reason}"]
        await kernel.wait_state("a", "offline")


@both
async def test_who_leaves_by_itself_says_so_and_is_offline_at_once(kind: str, autojump_clock: Clock) -> None:
    shop = Shop()
    async with open_kernel(kind) as kernel, kernel.client("me") as kite, kite.subscribe("module.*") as events:
        async with kernel.running(shop.module, name="a"):
            await trio.sleep(1)
        left_at = trio.current_time()
        with trio.fail_after(30):
            names = []
            while "module.offline" not in names:
                names.append((await anext(events)).name)
        assert names == ["module.ready", "module.exiting", "module.offline"]
        assert trio.current_time() - left_at < 4
        assert shop.seen == ["farewell done"]


async def test_the_same_id_elsewhere_ends_the_older_process(autojump_clock: Clock) -> None:
    async with open_kernel("kernel") as kernel:
        with pytest.raises(NotConnected) as caught:
            async with kernel.running(Shop().module, name="a"), kernel.running(Shop().module, name="a"):
                await trio.sleep_forever()
        assert caught.value.close_code == 4010


async def test_a_call_of_exactly_the_bound_is_answered(autojump_clock: Clock) -> None:
    """W-08: the frame that the kernel forwards is longer than the one it took, and the SDK takes that, too."""
    module = Module("c")

    @module.method
    async def echo(x: str) -> str:
        return x

    bound = 1 << 20
    async with open_kernel("kernel") as kernel, kernel.running(module, name="c"), kernel.client("me") as kite:
        head = len('{"jsonrpc":"2.0","id":1,"method":"c.echo","params":{"x":""},"meta":{"timeout":30.0}}')
        text = "y" * (bound - head)
        assert await kite.call("c.echo", {"x": text}, timeout=30) == text
        with pytest.raises(CallError) as caught:
            await kite.call("c.echo", {"x": text + "y" * 64}, timeout=30)
        assert (caught.value.reason, caught.value.outcome) == ("limit", "not_sent")
        assert await kite.call("c.echo", {"x": "still here"}) == "still here"
