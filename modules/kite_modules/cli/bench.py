"""`kite bench`: latency and throughput of this very installation, as a table.

Two clients of the SDK on the running kernel: one offers an echo, the other calls it and publishes to it. What is
measured is kernel and SDK together, as a module author meets them. Source: spec 80 §4.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from kite_modules.cli.connection import run_connected, target_of
from kite_modules.cli.fail import OK, say, say_json
from kite_modules.cli.instance import Target
from kite_modules.cli.numbers import count, seconds
from kite_modules.sdk.client import Kite
from kite_modules.sdk.module import Module
from kite_modules.sdk.settings import Settings

WARM_UP_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=seconds, default=2.0, metavar="S", help="each measurement (2)")
    parser.add_argument(
        "--in-flight", type=count, default=64, metavar="N", help="calls at once in the second rows (64)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    target = target_of(args)
    if args.in_flight > 1000:
        args.in_flight = 1000
    return run_connected(args, lambda kite: _measure(kite, target, args), name="bench")


async def _measure(kite: Kite, target: Target, args: argparse.Namespace) -> int:
    name = f"bench-{os.getpid()}"
    module = Module(name)
    heard = 0

    @module.method
    async def echo(text: str = "") -> str:
        return text

    @module.on(f"{name}.event")
    async def hear(_: Any) -> None:
        nonlocal heard
        heard += 1

    async def ask_kernel() -> object:
        return await kite.call("kernel.info")

    async def ask_module() -> object:
        return await kite.call(f"{name}.echo", {"text": "x" * 100})

    async def publish() -> object:
        return await kite.publish(f"{name}.event", {"text": "x" * 100}, away="wait")

    kinds = (("kernel call", ask_kernel), ("module call", ask_module), ("publish", publish))
    settings = Settings(url=target.url, token=target.token, module_id=name)
    async with module.connected(settings):
        rows: list[dict[str, Any]] = [
            {"what": what, "in_flight": at_once, **await _load(ask, at_once, args.seconds)}
            for what, ask in kinds
            for at_once in (1, args.in_flight)
        ]
    if args.json:
        say_json({"rows": rows})
        return OK
    say(f"{'WHAT':<12} {'AT ONCE':>7} {'PER S':>9} {'P50 ms':>8} {'P95 ms':>8} {'P99 ms':>8}")
    for row in rows:
        quantiles = " ".join(f"{row[name]:>8.2f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
        say(f"{row['what']:<12} {row['in_flight']:>7} {row['per_s']:>9.0f} {quantiles}")
    return OK


async def _load(ask: Callable[[], Awaitable[object]], at_once: int, for_s: float) -> dict[str, float]:
    """Keep `at_once` requests in flight for a time; returns rate and latencies, without the warm-up."""
    took: list[float] = []
    start = time.perf_counter() + WARM_UP_S

    async def worker() -> None:
        while True:
            before = time.perf_counter()
            await ask()
            after = time.perf_counter()
            if before >= start:
                took.append(after - before)

    with trio.move_on_after(for_s + WARM_UP_S):
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(worker)
    took.sort()
    elapsed_s = max(time.perf_counter() - start, 1e-9)
    found = {
        f"p{rank}_ms": 1000 * took[min(len(took) - 1, len(took) * rank // 100)] if took else 0.0
        for rank in (50, 95, 99)
    }
    return {"per_s": len(took) / elapsed_s, **found}
