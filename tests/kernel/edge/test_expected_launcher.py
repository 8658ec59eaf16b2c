"""A kernel that a launcher started does not outlive a launcher that died before it ever connected."""

from __future__ import annotations

import trio
import trio.testing
from tests.support.kernel_box import KernelBox

TOKENS = {"launcher": "launcher", "w": "watchdog", "a": "module"}


async def test_a_launcher_that_never_came_is_lost_after_its_grace(autojump_clock: trio.testing.MockClock) -> None:
    async with KernelBox(TOKENS, standalone=False) as box:
        box.kernel.expect_launcher()
        began = trio.current_time()
        await trio.sleep(30)
        a = await box.ready("a")
        shutdown = await a.event("module.shutdown", within_s=60)
        assert shutdown["data"]["reason"] == "launcher_lost"
        assert 34 < trio.current_time() - began < 36
        await a.close_code()
        with trio.fail_after(20):
            await box.ended.wait()
        assert box.reason == "launcher_lost"


async def test_a_launcher_that_comes_in_time_ends_the_count(autojump_clock: trio.testing.MockClock) -> None:
    async with KernelBox(TOKENS, standalone=False) as box:
        box.kernel.expect_launcher()
        await trio.sleep(30)
        await box.ready("launcher")
        await trio.sleep(100)
        assert not box.ended.is_set()


async def test_a_standalone_kernel_expects_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with KernelBox(TOKENS, standalone=True) as box:
        box.kernel.expect_launcher()
        await trio.sleep(100)
        assert not box.ended.is_set()
