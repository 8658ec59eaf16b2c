"""The table of spec 60 §2 with a real kernel and a real watchdog; the launcher's wire and process are the test's.

Source: spec 60-watchdog §2, 20-kernel §2; 10-wire §7.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.raw_peer import RawPeer
from tests.support.side_by_side import Rows, scenario, side_by_side
from tests.support.watchdog_box import WatchdogBox


async def _watched(box: WatchdogBox) -> tuple[RawPeer, RawPeer]:
    """Connect a launcher and a pair of ears, start the watchdog, wait until it is ready."""
    ears = await box.peer("ears")
    launcher = await box.peer("launcher")
    box.watchdog()
    await ears.until(lambda m: _is(m, "module.ready") and m["params"]["data"]["module_id"] == "watchdog")
    await ears.result("event.subscribe", {"events": ["watchdog.>"]})
    return launcher, ears


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    yield from side_by_side(request, tmp_path_factory, workers=3)


def _seen_from_outside(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


def _data(message: Any) -> dict[str, Any]:
    data: dict[str, Any] = message["data"]
    return data


def _is(message: Any, event: str) -> bool:
    return isinstance(message, dict) and message.get("method") == "event" and message["params"]["event"] == event


@scenario
async def test_a_lost_launcher_is_followed_by_exactly_one_start(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        launcher, ears = await _watched(box)
        watchdog = box._children[-1]
        box.kill_launcher()
        await launcher.cut()
        offline = _data(await ears.event("module.offline"))
        assert offline["module_id"] == "launcher"
        assert box.starts() == [], "a mark decides nothing"
        restart = _data(await ears.event("watchdog.restart"))
        assert (restart["what"], restart["number"], restart["of"]) == ("instance", 1, 5)
        (start,) = await box.until(box.starts, "the recorded command runs")
        assert start["starts"] == 1, "recorded before the deed"
        assert not [name for name in start["env"] if name.startswith("KITE_")]
        watchdog.send_signal(signal.SIGTERM)  # as the new launcher's clean-up does
        assert await box.wait(watchdog) == 0
        assert len(box.starts()) == 1


@scenario
async def test_a_launcher_that_comes_back_in_time_changes_nothing(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        launcher, ears = await _watched(box)
        await launcher.cut()
        await ears.event("module.offline")
        await box.peer("launcher")
        await ears.event("module.ready")
        await trio.sleep(box.scale * 15)  # longer than the grace
        status = await (await box.peer("op", ready=False)).result("watchdog.status", {})
        assert status["instance"]["launcher_offline"] is False
        assert box.starts() == []


@scenario
async def test_a_normal_exit_is_followed_out_without_a_start(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        launcher, ears = await _watched(box)
        watchdog = box._children[-1]
        await launcher.publish("module.exiting", {"module_id": "launcher", "reason": "asked"})
        await ears.event("module.exiting")
        await launcher.cut()
        box.kill_launcher()
        assert await box.wait(watchdog) == 0
        assert box.starts() == []
        assert box.recorded() == []


@scenario
async def test_kernel_and_launcher_gone_together_is_a_start(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        await _watched(box)
        box.kill_launcher()
        box.kernel.kill()
        await box.until(box.starts, "the recorded command runs")
        assert len(box.recorded()) == 1


@scenario
async def test_an_unreachable_kernel_is_left_to_a_living_launcher_who_is_reminded(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def serve(stream: trio.SocketStream) -> None:
        order = json.loads(await stream.receive_some(65536))
        asked.append(order)
        await stream.send_all(b'{"jsonrpc":"2.0","method":"progress","params":{"text":"..."}}\n')
        await stream.send_all(json.dumps({"jsonrpc": "2.0", "id": order["id"], "result": {}}).encode() + b"\n")

    async with WatchdogBox(tmp_path, scale=0.03).running() as box:
        socket = trio.socket.socket(trio.socket.AF_UNIX)
        await socket.bind(str(box.state / "launcher.sock"))
        socket.listen(8)
        box.nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(socket)])
        await _watched(box)
        box.kernel.kill()
        await box.until(lambda: asked, "the launcher is asked")
        assert asked[0]["method"] == "restart"
        assert asked[0]["params"]["module"] == "kernel"
        assert box.starts() == []


@scenario
async def test_kernel_and_launcher_gone_after_module_exiting_is_a_normal_exit(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        launcher, ears = await _watched(box)
        watchdog = box._children[-1]
        await launcher.publish("module.exiting", {"module_id": "launcher"})
        await ears.event("module.exiting")
        box.kill_launcher()
        box.kernel.kill()
        assert await box.wait(watchdog) == 0
        assert box.starts() == []


@scenario
async def test_a_spent_budget_is_said_on_the_wire_and_nothing_is_started(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path, restarts=0).running() as box:
        launcher, ears = await _watched(box)
        watchdog = box._children[-1]
        box.kill_launcher()
        await launcher.cut()
        gave_up = _data(await ears.event("watchdog.gave_up"))
        assert gave_up["what"] == "instance"
        assert gave_up["why"]
        assert await box.wait(watchdog) == 1
        assert "gave up" in box.said()
        assert box.starts() == []


@scenario
async def test_another_watchdog_takes_its_place_and_an_ordered_stop_ends_with_0(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        launcher, _ = await _watched(box)
        first = box._children[-1]
        second = box.watchdog()
        assert await box.wait(first) == 1, "4010 is never answered by coming back"
        assert "4010" in box.said()
        assert second.poll() is None
        params = {"module_id": "watchdog", "reason": "module_stop", "deadline_s": 5}
        await launcher.result("kernel.shutdown_module", params)
        assert await box.wait(second) == 0
        assert box.starts() == []


@scenario
async def test_a_wrong_token_ends_it_with_one_line_and_no_token_anywhere(tmp_path: Path) -> None:
    async with WatchdogBox(tmp_path).running() as box:
        box.kernel.tokens["watchdog"] = "wr0ng-token-of-a-test"
        watchdog = box.watchdog()
        seen = _seen_from_outside(watchdog.pid)
        assert await box.wait(watchdog) == 1
        assert box.said().count("致命错误 (code 4001)，退出") == 1
        assert "Traceback" not in box.said()
        assert b"wr0ng" not in seen + box.said().encode()
