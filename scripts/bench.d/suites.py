"""What is measured, in which order, and what Kite owes in each: the rows of the speed table."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import loads
from crowd import Crowd
from facts import facts
from servers import Hub, running
from streams import streams
from wire import module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONNECT_NAMES = 5_000  # each connects once in a round: nobody meets the limit of 20 authentications in 10 s
IDLE_MODULES = 5_000
WIDE_PATTERNS = 10_000  # what one connection may subscribe to
DEAF_HEARS = 10
ONCE_MORE_BYTES = 20 * 1000 * 1000
QUEUE_BYTES = 8 * 1024 * 1024  # the kernel's default bound of one connection's queue

Row = dict[str, Any]


@attrs.frozen
class Plan:
    """How long and against whom."""

    hubs: list[str]
    rounds: int
    seconds: float
    quick: bool
    tokens: dict[str, str]


@contextlib.contextmanager
def hubs(plan: Plan, names: list[str] | None = None) -> Iterator[list[Hub]]:
    """Run fresh hubs, all at once: they share a core, and those that are not asked sleep."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kite-bench-")))
        yield [
            stack.enter_context(running(name, folder / f"{name}-{number}", plan.tokens))
            for number, name in enumerate(names or plan.hubs)
        ]


def side_by_side(
    plan: Plan,
    title: str,
    unit: str,
    needs: dict[str, float],
    load: Callable[[Hub], loads.Measured],
    *,
    fresh: bool = False,
) -> list[Row]:
    """Take turns over the rounds and print one line with medians, spread and ratios; `fresh`: a new hub each time."""
    figures: dict[str, list[loads.Measured]] = {name: [] for name in plan.hubs}
    if fresh:
        for name in plan.hubs * plan.rounds:
            with hubs(plan, [name]) as (hub,):
                figures[name].append(load(hub))
    else:
        with hubs(plan) as running_hubs:
            for hub in running_hubs * plan.rounds:
                figures[hub.name].append(load(hub))
    print(f"\n{title}")
    rows: list[Row] = []
    medians: dict[str, float] = {}
    for name, values in figures.items():
        rates = [value.rate for value in values]
        medians[name] = statistics.median(rates)
        busy = statistics.median(value.busy for value in values)
        each_us = statistics.median(value.busy / value.rate * 1e6 for value in values)
        about = f"({min(rates):,.0f} to {max(rates):,.0f}; its core {busy:.0%} busy, {each_us:.2f} µs each)"
        print(f"  {name:<11}{medians[name]:>12,.0f} {unit:<14} {about}")
        rows.append(
            {"load": title, "hub": name, "median": medians[name], "unit": unit, "rounds": rates, "cpu_us": each_us}
        )
    spent = {name: statistics.median(value.busy / value.rate for value in values) for name, values in figures.items()}
    return rows + _ratios(title, medians, spent, needs)


def _ratios(title: str, medians: dict[str, float], spent: dict[str, float], needs: dict[str, float]) -> list[Row]:
    """Print Kite's ratio to each yardstick: by the clock, and by processor time, which other load disturbs less."""
    rows: list[Row] = []
    for name in medians:
        if name == "kite" or "kite" not in medians:
            continue
        ratio = medians["kite"] / medians[name]
        needed = needs.get(name)
        by_cpu = spent[name] / spent["kite"] if spent["kite"] else 0.0
        rows.append({"load": title, "ratio": f"kite/{name}", "value": ratio, "by_cpu": by_cpu, "needed": needed})
        print(f"  kite/{name} = {ratio:.2f}{_verdict(ratio, needed)}; by processor time {by_cpu:.2f}")
    return rows


def _verdict(ratio: float, needed: float | None) -> str:
    return "" if needed is None else f"  (needed {needed}: {'met' if ratio >= needed else 'MISSED'})"


def rpc(plan: Plan) -> list[Row]:
    """Routed calls."""
    return side_by_side(
        plan, "routed calls, 64 in flight", "calls/s", {"websockets": 2.0, "picows": 1.1},
        lambda hub: loads.rpc(hub, plan.tokens, plan.seconds),
    )  # fmt: skip


def fanout(plan: Plan) -> list[Row]:
    """One publisher, a hundred subscribers."""
    rows: list[Row] = []
    for in_flight, needed in ((1, 0.8), (32, 4.0)):
        rows += side_by_side(
            plan, f"1 to 100 fan-out, {in_flight} in flight", "deliveries/s", {"picows": needed},
            lambda hub, window=in_flight: loads.fanout(hub, plan.tokens, plan.seconds, window),
        )  # fmt: skip
    return rows


def connect(plan: Plan) -> list[Row]:
    """Connections with authentication."""
    return side_by_side(
        plan, "connections with authentication, 32 at once", "connections/s", {"picows": 1.2},
        lambda hub: loads.connect(hub, plan.tokens), fresh=True,
    )  # fmt: skip


def idle(plan: Plan) -> list[Row]:
    """Memory of a connection that does nothing."""
    count = IDLE_MODULES
    rows: list[Row] = []
    print(f"\nmemory of an idle connection, {count:,} of them")
    for name in plan.hubs:
        with hubs(plan, [name]) as (hub,):
            loads.connect(hub, plan.tokens, 10)  # what is made once for all is made now
            before = hub.rss_bytes()
            with Crowd(hub.port, plan.tokens, [f"idle-{n}" for n in range(count)]):
                each = (hub.rss_bytes() - before) / count / 1000
        print(f"  {name:<11}{each:>12.1f} kB" + (_verdict(10 / each, 1.0) if name == "kite" else ""))
        rows.append({"load": "idle connection", "hub": name, "median": each, "unit": "kB"})
    return rows


def beside(plan: Plan) -> list[Row]:
    """The same figures beside a crowd: many idle modules, many patterns."""
    modules = IDLE_MODULES // 5 if plan.quick else IDLE_MODULES
    wide = [f"wide.{n}.*.>" for n in range(WIDE_PATTERNS)]
    rows: list[Row] = []
    for what, crowd, events in (
        (f"{modules:,} idle modules", [f"idle-{n}" for n in range(modules)], []),
        (f"{WIDE_PATTERNS:,} patterns", ["bench-wide"], wide),
    ):
        for title, load in (("routed calls", loads.rpc), ("fan-out, 32 in flight", _fanout_32)):
            with hubs(plan, ["kite", "kite"]) as (alone, full), Crowd(full.port, plan.tokens, crowd, events):
                pairs = [
                    (load(alone, plan.tokens, plan.seconds).rate, load(full, plan.tokens, plan.seconds).rate)
                    for _ in range(plan.rounds)
                ]
            ratio = statistics.median(full / alone for alone, full in pairs)
            print(f"\n{title} beside {what}\n  with/without = {ratio:.2f}{_verdict(ratio, 0.8)}")
            rows.append({"load": f"{title} beside {what}", "ratio": "with/without", "value": ratio, "needed": 0.8})
    return rows


def _fanout_32(hub: Hub, tokens: dict[str, str], seconds: float) -> loads.Measured:
    return loads.fanout(hub, tokens, seconds, 32)


def slow(plan: Plan) -> list[Row]:
    """A subscriber that never reads, beside others at full rate."""
    seconds = 10.0 if plan.quick else 60.0
    with hubs(plan, ["kite"]) as (hub,):
        hears = [module(hub.port, plan.tokens, f"bench-sub-{n}", events=["bench.tick"]) for n in range(DEAF_HEARS)]
        fan = loads.Fan(module(hub.port, plan.tokens, "bench-pub"), hears)
        fan.settle()
        fan.run(seconds / 4, 32)
        calm_s = _p99(fan.latencies_s)
        before = hub.rss_bytes()
        deaf = module(hub.port, plan.tokens, "bench-deaf", events=["bench.tick"])
        hub.reset_peak()
        fan.run(seconds, 32)
        with_deaf_s = _p99(fan.latencies_s)
        grown = hub.peak_bytes() - before
        fan.close()
        deaf.close()
    ratio = with_deaf_s / calm_s
    allowed = QUEUE_BYTES + ONCE_MORE_BYTES
    print(f"\na peer that reads nothing, {seconds:.0f} s at full rate")
    kept = "met" if grown <= allowed else "MISSED"
    print(f"  memory grew by {grown / 1e6:.1f} MB (allowed {allowed / 1e6:.0f}: {kept})")
    print(f"  p99 of the others {calm_s * 1e3:.2f} -> {with_deaf_s * 1e3:.2f} ms = {ratio:.2f} x"
          f" (allowed 2.0: {'met' if ratio < 2 else 'MISSED'})")  # fmt: skip
    return [
        {"load": "peer that reads nothing", "value": grown, "unit": "bytes", "allowed": allowed},
        {"load": "peer that reads nothing", "ratio": "p99 with/without", "value": ratio, "allowed": 2.0},
    ]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


ALL: dict[str, Callable[[Plan], list[Row]]] = {
    "rpc": rpc,
    "fanout": fanout,
    "connect": connect,
    "idle": idle,
    "beside": beside,
    "slow": slow,
    "streams": streams,
    "facts": facts,
}
