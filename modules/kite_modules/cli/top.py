"""`kite top`: every module live: state, grade, round trip, queue, traffic, calls in flight. Source: spec 80 §4."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import Any, NamedTuple

import trio

from kite_modules.cli import terminal
from kite_modules.cli.connection import run_connected
from kite_modules.cli.fail import OK, safe, say, say_json
from kite_modules.cli.numbers import seconds
from kite_modules.sdk.client import Kite

_HEAD = ("MODULE", "STATE", "GRADE", "RTT ms", "P95", "QUEUE", "IN/s", "OUT/s", "CALLS", "RECONN")


class Sample(NamedTuple):
    """One look at the kernel; `at` in monotonic seconds."""

    at: float
    info: dict[str, Any]
    modules: list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="S", help="seconds between two looks (1)")
    parser.add_argument("--once", action="store_true", help="one look, then end (also when this is no terminal)")


def run(args: argparse.Namespace) -> int:
    """Show modules until q, or once."""
    live = terminal.is_terminal() and not args.once and not args.json

    async def command(kite: Kite) -> int:
        if live:
            await _live(kite, args.interval)
            return OK
        before = await look(kite)
        await trio.sleep(min(args.interval, 0.5))
        sample = await look(kite)
        if args.json:
            say_json({"kernel": sample.info, "modules": sample.modules})
        else:
            for line in render(sample, before, width=200):
                say(line)
        return OK

    return run_connected(args, command, name="top")


async def look(kite: Kite) -> Sample:
    """Ask the kernel once."""
    stats = await kite.call("kernel.get_connection_stats")
    info = await kite.call("kernel.info")
    return Sample(time.monotonic(), info, stats["modules"])


async def _live(kite: Kite, interval_s: float) -> None:
    with terminal.full_screen():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_draw, kite, interval_s)
            await terminal.wait_quit_key()
            nursery.cancel_scope.cancel()


async def _draw(kite: Kite, interval_s: float) -> None:
    before: Sample | None = None
    while True:
        with trio.move_on_after(max(interval_s, 2.0)):
            sample = await look(kite)
            size = shutil.get_terminal_size()
            lines = render(sample, before, width=size.columns)[: size.lines - 1]
            before = sample
            _paint(lines)
        if kite.state.value != "open":
            _paint([f"{kite.state.value}: {safe(kite.reason)}"])
        await trio.sleep(interval_s)


def _paint(lines: list[str]) -> None:
    sys.stdout.write("\x1b[H" + "".join(f"{safe(line)}\x1b[K\r\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()


def render(sample: Sample, before: Sample | None, *, width: int) -> list[str]:
    """Return the screen as lines, none wider than `width`."""
    info = sample.info
    up = int(info.get("uptime_s") or 0)
    head = (
        f"kite {info.get('version')}  up {up // 3600}:{up // 60 % 60:02}:{up % 60:02}  {info.get('connections')} wires"
    )
    earlier = {row["module_id"]: row for row in before.modules} if before is not None else {}
    elapsed_s = sample.at - before.at if before is not None else 0.0
    rows = [_row(module, earlier.get(module["module_id"]), elapsed_s) for module in sample.modules]
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD))]
    table = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in (_HEAD, *rows)]
    return [line[:width].rstrip() for line in (head, "", *table)]


def _row(module: dict[str, Any], earlier: dict[str, Any] | None, elapsed_s: float) -> tuple[str, ...]:
    ping, queue = module.get("ping") or {}, module.get("queue") or {}
    pressure = queue.get("pressure", "normal")
    return (
        safe(str(module["module_id"])),
        str(module.get("state", "")),
        f"{module.get('grade', '')} {_number(module.get('score'))}",
        _number(ping.get("rtt_ms")),
        _number(ping.get("p95_ms")),
        f"{queue.get('messages', 0)}" + ("" if pressure == "normal" else f" {pressure}"),
        _rate(module, earlier, "frames_in", elapsed_s),
        _rate(module, earlier, "frames_out", elapsed_s),
        str(module.get("calls_in_flight", 0)),
        str((module.get("reconnects") or {}).get("total", 0)),
    )


def _number(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "–"


def _rate(module: dict[str, Any], earlier: dict[str, Any] | None, name: str, elapsed_s: float) -> str:
    if earlier is None or elapsed_s <= 0:
        return "–"
    return f"{max(0.0, (module.get(name, 0) - earlier.get(name, 0)) / elapsed_s):.0f}"
