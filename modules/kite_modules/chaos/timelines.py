"""The users' timelines with real processes and real signals, each with what was promised beside what was measured.

A: a wire cut of 3 s, nobody is told. B: the launcher is killed, a fresh instance 40 s later. C: a normal exit, nothing
comes back. D: three pings missed, closed 4012, back by the strategy table. E: the 21st authentication within 10 s is
refused with 4020 and succeeds after the cooldown. F: a module's full cycle of states. All times scale together.
Source: spec 60-watchdog §3.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from kite_modules.chaos.look import Instance, alive, strike, whole
from kite_modules.chaos.measure import SLACK_S, Ears, Measure, Timeline
from kite_modules.chaos.peer import Peer, Refused, connected, first_of
from kite_modules.chaos.proxy import Proxy
from kite_modules.chaos.scratch import Scratch
from kite_modules.sdk.client import Kite
from kite_modules.sdk.errors import KiteError
from kite_modules.sdk.module import Module
from kite_modules.sdk.settings import Settings

MODULE: Final = "alpha"


async def _until(condition: Callable[[], Any], within_s: float) -> float | None:
    end = trio.current_time() + within_s
    while trio.current_time() < end:
        if await trio.to_thread.run_sync(condition):
            return trio.current_time()
        await trio.sleep(0.02)
    return None


def _where(instance: Instance) -> tuple[str, str]:
    where = instance.kernel()
    if where is None:
        raise OSError("the instance has no kernel")
    return where


async def timeline_a(scratch: Scratch, scale: float) -> Timeline:
    """A wire is cut for 3 s."""
    line = Timeline("A", "a wire cut of 3 s: nobody is told anything")
    url, token = _where(scratch.instance)
    host, _, port = url.partition("://")[2].rpartition(":")
    proxy, ears = Proxy(host, int(port)), Ears()
    async with trio.open_nursery() as nursery:
        through = await nursery.start(proxy.run)
        settings = Settings(url=url, token=token, module_id="chaos-a")

        async def by_proxy() -> trio.abc.Stream:
            return await trio.open_tcp_stream("127.0.0.1", through)

        async with (
            Module("chaos-a").connected(settings, connect=by_proxy) as kite,
            connected(url, token, "chaos-ears", ears.hear, events=(">",)) as peer,
        ):
            await kite.call("kernel.info")
            ears.heard.clear()
            begin = trio.current_time()
            proxy.refuse = True
            proxy.cut()
            await trio.sleep(3 * scale)
            proxy.refuse = False
            back = await _until_answered(kite)
            stats = await peer.call("kernel.get_connection_stats", {"module_id": "chaos-a"})
        nursery.cancel_scope.cancel()
    line.measures.append(Measure("the module is back in step", 3 * scale, back - begin))
    if told := ears.about("chaos-a"):
        line.faults.append(f"somebody was told: {told}")
    if stats is None or "result" not in stats:
        line.faults.append("the kernel does not know it any more")
    return line


async def _until_answered(kite: Kite) -> float:
    """Come back without waiting for the table's delay, and give the moment of the first answer."""
    while True:
        kite.retry_now()
        with trio.move_on_after(0.1), contextlib.suppress(KiteError):
            await kite.call("kernel.info", timeout=1)
            return trio.current_time()
        await trio.sleep(0.01)


async def timeline_b(scratch: Scratch, scale: float) -> Timeline:
    """The launcher is killed."""
    line = Timeline("B", "the launcher killed by SIGKILL: a fresh instance")
    instance, ears = scratch.instance, Ears()
    launcher = instance.launcher()
    old = {name: instance.pid_of(name) for name in ("watchdog", MODULE, "plain", "kernel")}
    ends: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_note_ends, {k: v for k, v in old.items() if v is not None}, ends)
        async with connected(*_where(instance), "chaos-ears", ears.hear, events=(">",)):
            begin = trio.current_time()
            if launcher is None or not strike(launcher, signal.SIGKILL):
                line.faults.append("there was no launcher to kill")
                nursery.cancel_scope.cancel()
                return line
            offline = await ears.wait("module.offline", 10 * scale + SLACK_S, module_id="launcher")
            shutdown = await ears.wait("module.shutdown", 35 * scale + SLACK_S, reason="launcher_lost")
            start = await ears.wait("watchdog.restart", 5 * scale + SLACK_S, what="instance")
        fresh = await _until(lambda: instance.launcher() not in (None, launcher), 20 * scale + 20)
        ready = await _until(lambda: whole(instance.status()), 20 * scale + 30)
        nursery.cancel_scope.cancel()
    for what, promised_s, at, exact in (
        ("module.offline {launcher}", 5.0, offline, True),
        ("module.shutdown {launcher_lost}", 35.0, shutdown, True),
        ("the watchdog starts a fresh instance", 35.0, start, True),
        ("the new launcher holds the lock", 37.0, fresh, False),
        ("clean-up: the old watchdog is gone", 37.0, ends.get("watchdog"), False),
        ("clean-up: the old modules are gone", 38.0, ends.get("plain"), False),
        ("all ready again", 40.0, ready, False),
    ):
        line.measures.append(Measure(what, promised_s * scale, None if at is None else at - begin, exact))
    if ends.get("watchdog", 0.0) > ends.get("plain", 0.0):
        line.faults.append("the watchdog was not the first to go")
    return line


async def _note_ends(pids: dict[str, int], ends: dict[str, float]) -> None:
    while len(ends) < len(pids):
        for name, pid in pids.items():
            if name not in ends and not alive(pid):
                ends[name] = trio.current_time()
        await trio.sleep(0.005)


async def timeline_c(scratch: Scratch, scale: float) -> Timeline:
    """A normal exit; afterwards the instance is started again for whoever comes next."""
    line = Timeline("C", "a normal exit: nothing left, nothing comes back")
    instance, ears = scratch.instance, Ears()
    before = instance.starts()
    launcher = instance.launcher()
    async with connected(*_where(instance), "chaos-ears", ears.hear, events=(">",)):
        begin = trio.current_time()
        if launcher is not None:
            strike(launcher, signal.SIGTERM)
        exiting = await ears.wait("module.exiting", 5 + SLACK_S, module_id="launcher")
    gone = await _until(lambda: not instance.marked() and instance.launcher() is None, 30 + 10 * scale)
    line.measures.append(Measure("module.exiting {launcher}", 0.0, None if exiting is None else exiting - begin, False))
    line.measures.append(Measure("nothing is left", 5.0, None if gone is None else gone - begin, False))
    came_back = await _until(lambda: instance.launcher() is not None or instance.marked(), 45 * scale)
    if came_back is not None:
        line.faults.append(f"something came back after {came_back - begin:.1f} s")
    if instance.starts() != before:
        line.faults.append("a start is on record")
    if trouble := await trio.to_thread.run_sync(scratch.up):
        line.faults.append(trouble)
    return line


async def timeline_d(scratch: Scratch, scale: float) -> Timeline:
    """A module answers no more pings."""
    line = Timeline("D", "three missed pings: 4012, then the standard strategy")
    instance = scratch.instance
    pid = instance.pid_of(MODULE)
    async with connected(*_where(instance), "chaos-ears", lambda *_: None) as peer:

        async def keep_busy() -> None:
            while True:
                await peer.call("plain.nothing", {})
                await trio.sleep(2 * scale)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_busy)  # a call now and then: pings come every 5 s, not every 60 s
            await trio.sleep(1 * scale)
            begin = trio.current_time()
            if pid is None or not strike(pid, signal.SIGSTOP):
                line.faults.append("there was no module to stop")
                nursery.cancel_scope.cancel()
                return line
            try:
                closed = await _until_closed(peer, MODULE, 20 * scale + SLACK_S)
            finally:
                strike(pid, signal.SIGCONT)
            resumed = trio.current_time()
            back = await _until(lambda: whole(instance.status()), 15 + 20 * scale)
            nursery.cancel_scope.cancel()
    measured = None if closed is None else closed - begin
    # The stop falls somewhere between two pings, so the third miss comes 15 s after the first ping that met it.
    line.measures.append(Measure("closed with 4012, at the earliest", 15 * scale, measured))
    line.measures.append(Measure("closed with 4012, at the latest", 20 * scale, measured, exact=False))
    line.measures.append(Measure("back by the table", 10.0, None if back is None else back - resumed, exact=False))
    return line


async def _until_closed(peer: Peer, module_id: str, within_s: float) -> float | None:
    end = trio.current_time() + within_s
    while trio.current_time() < end:
        answer = await peer.call("kernel.closed", {"limit": 50})
        rows = answer["result"].get("closed", []) if answer is not None and "result" in answer else []
        if any(row.get("module_id") == module_id and row.get("code") == 4012 for row in rows):
            return trio.current_time()
        await trio.sleep(0.02)
    return None


async def timeline_e(scratch: Scratch, scale: float) -> Timeline:
    """21 authentications of one module within 10 s."""
    line = Timeline("E", "the 21st authentication within 10 s: 4020, cooldown, back")
    url, token = _where(scratch.instance)
    name = f"chaos-e{os.getpid()}"
    begin = trio.current_time()
    codes = [await _try_auth(url, token, name) for _ in range(21)]
    refused = trio.current_time()
    if codes[:20] != [0] * 20:
        line.faults.append(f"one of the first twenty was refused: {codes}")
    if codes[20] != 4020:
        line.faults.append(f"the 21st was answered {codes[20]}, not 4020")
    line.measures.append(Measure("the 21st is refused", 10 * scale, refused - begin, exact=False))
    tries, back = 0, None
    while back is None and tries < 5:
        await trio.sleep(10 * scale)  # the cooldown of the strategy table
        tries += 1
        if await _try_auth(url, token, name) == 0:
            back = trio.current_time()
    line.measures.append(
        Measure("back after the cooldown", 20 * scale, None if back is None else back - refused, exact=False)
    )
    return line


async def _try_auth(url: str, token: str, module_id: str) -> int | None:
    """Authenticate and leave; 0 = let in, else the close code."""
    try:
        async with connected(url, token, module_id, lambda *_: None):
            return 0
    except BaseExceptionGroup as group:
        error = first_of(group)
        if isinstance(error, Refused):
            return error.code
        raise


async def timeline_f(scratch: Scratch, scale: float) -> Timeline:
    """A module's full cycle: connected, registered, ready, cut, offline after the debounce, and ready again."""
    line = Timeline("F", "a module's full cycle: ready, cut, offline at 5 s, ready again")
    url, token = _where(scratch.instance)
    host, _, port = url.partition("://")[2].rpartition(":")
    proxy, ears = Proxy(host, int(port)), Ears()
    async with (
        connected(url, token, "chaos-ears", ears.hear, events=(">",)) as peer,
        trio.open_nursery() as nursery,
    ):
        through = await nursery.start(proxy.run)

        async def by_proxy() -> trio.abc.Stream:
            return await trio.open_tcp_stream("127.0.0.1", through)

        begin = trio.current_time()
        settings = Settings(url=url, token=token, module_id="chaos-f")
        async with Module("chaos-f").connected(settings, connect=by_proxy) as kite:
            ready = await ears.wait("module.ready", 5 + SLACK_S, module_id="chaos-f")
            ears.heard.clear()
            cut = trio.current_time()
            proxy.refuse = True
            proxy.cut()
            offline = await ears.wait("module.offline", 5 * scale + SLACK_S, module_id="chaos-f")
            refused = await peer.call("chaos-f.health", {})
            proxy.refuse = False
            back = trio.current_time()
            await _until_answered(kite)
            again = await ears.wait("module.ready", 5 + SLACK_S, module_id="chaos-f")
            answered = await peer.call("chaos-f.health", {})
        nursery.cancel_scope.cancel()
    for what, promised_s, since, at, exact in (
        ("module.ready", 1.0, begin, ready, False),
        ("module.offline", 5 * scale, cut, offline, True),
        ("module.ready again", 1.0, back, again, False),
    ):
        line.measures.append(Measure(what, promised_s, None if at is None else at - since, exact))
    if refused is None or refused.get("error", {}).get("code") != -32001:
        line.faults.append(f"a call to it while it was offline was answered {refused}")
    if answered is None or "result" not in answered:
        line.faults.append(f"a call to it afterwards was answered {answered}")
    return line


Runner = Callable[[Scratch, float], Awaitable[Timeline]]
ALL: Final[dict[str, Runner]] = {
    "A": timeline_a,
    "B": timeline_b,
    "C": timeline_c,
    "D": timeline_d,
    "E": timeline_e,
    "F": timeline_f,
}


async def run_all(scratch: Scratch, scale: float, names: str, say: Callable[[str], None]) -> list[Timeline]:
    """Run the named timelines one after the other, and print each."""
    out = []
    for name in names:
        await _until(lambda: whole(scratch.instance.status()), 60)
        line = await ALL[name](scratch, scale)
        say(f"{line.name}: {line.title}  [{'held' if line.held else 'BROKEN'}]")
        for measure in line.measures:
            say(measure.line() + ("" if measure.held else "   BROKEN"))
        for fault in line.faults:
            say(f"  BROKEN: {fault}")
        out.append(line)
    return out
