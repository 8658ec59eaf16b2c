"""Authors of asyncio and of plain threads get the same module, at a real kernel. Source: spec 30-clients §2."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.kernel_process import KernelProcess

from kite_modules.sdk import CallError, Event, NotConnected, Settings, aio, threads

BOUND_S = 30.0


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelProcess]:
    with KernelProcess(tmp_path_factory.mktemp("kernel"), {"a": "module", "b": "module", "o": "operator"}) as running:
        yield running


def as_(kernel: KernelProcess, name: str) -> Settings:
    return Settings(url=kernel.url, token=kernel.tokens[name], module_id=name if name != "o" else "tester")


class AsyncioShop:
    """An asyncio author's module."""

    def __init__(self) -> None:
        self.module = module = aio.Module("a")
        self.seen: list[Any] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()

        @module.method
        async def add(a: int, b: int) -> int:
            await asyncio.sleep(0.001)
            self.loops.add(asyncio.get_running_loop())
            return a + b

        @module.method
        async def slow() -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.seen.append("cancelled")
                raise

        @module.method
        async def values(n: int) -> Any:
            for number in range(n):
                await asyncio.sleep(0)
                yield number

        @module.method
        def blocking(kite: aio.Kite) -> str:
            return kite.module_id

        @module.on("x.>")
        async def heard(event: Event) -> None:
            self.loops.add(asyncio.get_running_loop())
            self.seen.append(event.data)

        @module.on_shutdown
        async def farewell(reason: str) -> None:
            self.seen.append(f"farewell {reason}")


def in_asyncio(work: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(BOUND_S):
            return await work()

    return asyncio.run(main())


def test_asyncio_handlers_run_on_the_authors_loop(kernel: KernelProcess) -> None:
    shop = AsyncioShop()

    async def work() -> None:
        async with shop.module.connected(as_(kernel, "a")) as kite:
            assert await kite.call("a.add", {"a": 1, "b": 2}) == 3
            assert await kite.call("a.blocking") == "a"
            with pytest.raises(CallError, match="invalid params"):
                await kite.call("a.add", {"a": "x", "b": 2})
            async with kite.iterate("a.values", {"n": 30}, credit=3) as values:
                assert [value async for value in values] == list(range(30))
            async with kite.subscribe("y.>") as events:
                await kite.publish("y.1", 7)
                assert (await anext(events)).data == 7
            await kite.publish("x.1", 5)
            async with asyncio.timeout(BOUND_S):
                while not shop.seen:
                    await asyncio.sleep(0.01)
            assert shop.loops == {asyncio.get_running_loop()}

    in_asyncio(work)
    assert shop.seen == [5, "farewell done"]


def test_cancelling_an_asyncio_task_cancels_the_call_and_its_handler(kernel: KernelProcess) -> None:
    shop = AsyncioShop()

    async def work() -> None:
        async with shop.module.connected(as_(kernel, "a")) as kite:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(kite.call("a.slow"), 0.3)
            while not shop.seen:
                await asyncio.sleep(0.01)

    in_asyncio(work)
    assert shop.seen[0] == "cancelled"


def test_an_asyncio_block_ends_when_its_module_is_told_to_end(kernel: KernelProcess) -> None:
    shop = AsyncioShop()

    async def work() -> str:
        async with shop.module.connected(as_(kernel, "a")) as kite:
            operator = threads.Module("operator")

            def stop() -> None:
                with operator.connected(as_(kernel, "o")) as boss:
                    boss.call("kernel.shutdown_module", {"module_id": "a", "reason": "module_stop", "deadline_s": 3})

            await asyncio.to_thread(stop)
            await asyncio.sleep(1000)
        return "over" if kite.stopping.is_set() else "not told"

    assert in_asyncio(work) == "over"
    assert shop.seen == ["farewell module_stop"]


def test_a_wrong_token_ends_the_asyncio_block_with_an_error(kernel: KernelProcess) -> None:
    async def work() -> None:
        async with aio.Module("a").connected(Settings(url=kernel.url, token="wrong")):
            raise AssertionError("it must not come up")

    with pytest.raises(NotConnected) as caught:
        in_asyncio(work)
    assert caught.value.close_code == 4001


def test_threads_call_each_other_without_awaiting(kernel: KernelProcess) -> None:
    module = threads.Module("b")
    names: list[str] = []

    @module.method
    def mul(a: int, b: int) -> int:
        names.append(threading.current_thread().name)
        time.sleep(0.01)
        return a * b

    @module.method
    def squares(n: int) -> Iterator[int]:
        for number in range(n):
            yield number * number

    @module.method
    def twice(kite: threads.Kite, a: int) -> int:
        return int(kite.call("b.mul", {"a": a, "b": 2}))

    heard: list[Any] = []

    @module.on("z.>")
    def hear(event: Event) -> None:
        heard.append(event.data)

    with module.connected(as_(kernel, "b")) as kite:
        assert kite.call("b.mul", {"a": 3, "b": 4}) == 12
        assert kite.call("b.twice", {"a": 5}) == 10
        with kite.iterate("b.squares", {"n": 10}, credit=2) as values:
            assert list(values) == [n * n for n in range(10)]
        with kite.subscribe("w.>") as events:
            kite.publish("w.1", {"n": 1})
            assert next(events).data == {"n": 1}
        assert kite.publish("z.1", 1) == 1
        with pytest.raises(CallError, match="-32601"):
            kite.call("b.nope")
        deadline = time.monotonic() + BOUND_S
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard == [1]
    assert threading.main_thread().name not in names
    with pytest.raises(NotConnected):
        kite.call("b.mul", {"a": 1, "b": 1})


def test_many_threads_share_one_connection(kernel: KernelProcess) -> None:
    module = threads.Module("b")

    @module.method
    def echo(n: int) -> int:
        return n

    with module.connected(as_(kernel, "b")) as kite:
        answers: list[int] = []

        def work(start: int) -> None:
            answers.extend(kite.call("b.echo", {"n": start + n}) for n in range(20))

        workers = [threading.Thread(target=work, args=(100 * number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(BOUND_S)
        assert sorted(answers) == sorted(100 * number + n for number in range(8) for n in range(20))


def test_a_thread_learns_that_it_is_told_to_end(kernel: KernelProcess) -> None:
    module = threads.Module("b")
    with module.connected(as_(kernel, "b")) as kite, threads.Module("op").connected(as_(kernel, "o")) as boss:
        boss.call("kernel.shutdown_module", {"module_id": "b", "reason": "module_stop", "deadline_s": 3})
        assert kite.stopping.wait(BOUND_S)
