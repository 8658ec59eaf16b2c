"""The watchdog's wire against a kernel played by hand, on the virtual clock. Source: spec 10-wire §3-§8."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import trio
import trio.testing
from tests.support.scripted_kernel import Refuse, ScriptedKernel, Silence

from kite_watchdog.core.frames import Event
from kite_watchdog.core.reconnect import Decision
from kite_watchdog.edge.link import Link
from kite_watchdog.edge.log import Log
from kite_watchdog.edge.peer import Peer


class Recorder(Peer):
    def __init__(self) -> None:
        self.opened: list[bool] = []
        self.events: list[Event] = []
        self.failures: list[Decision] = []

    def on_open(self, *, resumed: bool, kernel: dict[str, Any]) -> None:
        self.opened.append(resumed)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_failure(self, decision: Decision) -> None:
        self.failures.append(decision)

    def on_call(self, method: str, params: dict[str, Any]) -> Any:
        if method == "echo":
            return params
        raise KeyError(method)


@pytest.fixture
def log() -> Log:
    return structlog.wrap_logger(structlog.testing.CapturingLogger())


def make(kernel: ScriptedKernel, log: Log, recorder: Recorder, **changes: Any) -> Link:
    return Link(
        "ws://127.0.0.1:1/ws",
        "t0ken",
        module_id="watchdog",
        methods=("health",),
        peer=recorder,
        log=log,
        open_stream=kernel.open_stream,
        rng=lambda: 0.0,
        **changes,
    )


async def until(condition: Any, *, within_s: float = 60.0) -> None:
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(0.01)


async def test_it_authenticates_registers_and_says_ready(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open and kernel.published)
    assert kernel.auths[0]["token"] == "t0ken"
    assert [name for _, name, _ in kernel.calls] == ["event.subscribe", "registry.register"]
    assert kernel.events("module.ready") == [{"module_id": "watchdog"}]


async def test_refused_connects_follow_the_strategy_table(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    kernel.refuse_connects = True
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: len(recorder.failures) >= 7)
    assert [d.delay_s for d in recorder.failures[:7]] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


async def test_a_mere_connect_resets_no_counter_and_auth_does(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    kernel.close_before_auth = (1011, "")
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: len(recorder.failures) == 3)
    kernel.close_before_auth = None
    await until(lambda: link.is_open)
    kernel.cut()
    await until(lambda: len(recorder.failures) == 4)
    assert [d.delay_s for d in recorder.failures] == [0.5, 1.0, 2.0, 0.5]


@pytest.mark.parametrize("code", [1000, 4001, 4003, 4010])
async def test_never_ends_it_for_good_with_one_error_line(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, code: int
) -> None:
    captured = structlog.testing.CapturingLogger()
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    kernel.close_before_auth = (code, "")
    link = make(kernel, structlog.wrap_logger(captured, processors=[]), recorder)
    decision = await link.run()
    assert decision is not None
    assert (decision.retry, len(kernel.auths)) == (False, 1)
    errors = [c for c in captured.calls if c.method_name == "error"]
    assert len(errors) == 1
    assert f"[module] 致命错误 (code {code})，退出" in str(errors[0])


async def test_the_sixth_rate_limit_in_a_row_is_the_end(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    kernel.close_before_auth = (4020, "")
    link = make(kernel, log, recorder)
    decision = await link.run()
    assert decision is not None
    assert [d.delay_s for d in recorder.failures] == [10.0] * 5


async def test_a_ping_is_answered_at_once_with_what_was_received(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    await kernel.tell("system.ping", {"ping_time": 12.5, "received": 3})
    await until(lambda: kernel.events("system.pong"))
    pong = kernel.events("system.pong")[0]
    assert (pong["ping_time"], pong["received"]) == (12.5, 3)  # two answers and this ping
    assert isinstance(pong["pong_time"], float)


async def test_a_call_that_nobody_answers_ends_within_its_bound(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    async def never(params: dict[str, Any]) -> None:
        await trio.sleep_forever()

    kernel, recorder = ScriptedKernel(nursery, {"x.dead": never}), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    begin = trio.current_time()
    answer = await link.call("x.dead", {}, timeout_s=5.0)
    assert answer.lost
    assert trio.current_time() - begin == pytest.approx(7.0, abs=0.1)


async def test_the_kernels_deadline_is_told_from_silence(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    def hung(params: dict[str, Any]) -> None:
        raise Silence

    kernel, recorder = ScriptedKernel(nursery, {"x.hung": hung}), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    answer = await link.call("x.hung", {}, timeout_s=5.0)
    assert (answer.error, answer.reason, answer.lost) == (-32003, "deadline", False)


async def test_a_resumed_session_keeps_calls_and_repeats_nothing_else(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    kernel.resume = True
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open and len(kernel.published) == 1)
    kernel.cut()
    await until(lambda: recorder.opened == [False, True])
    assert kernel.auths[1]["resume"] == {"session": "s1", "received": 2}
    assert kernel.events("module.ready") == [{"module_id": "watchdog"}]
    assert len(kernel.times("registry.register")) == 1


async def test_a_session_that_starts_over_fails_its_calls_and_registers_anew(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    async def slow(params: dict[str, Any]) -> None:
        await trio.sleep_forever()

    kernel, recorder = ScriptedKernel(nursery, {"x.slow": slow}), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await link.call("x.slow", {}, timeout_s=60.0))

    nursery.start_soon(ask)
    await until(lambda: kernel.times("x.slow"))
    kernel.cut()
    await until(lambda: answers)
    assert (answers[0].error, answers[0].outcome, answers[0].lost) == (-32002, "unknown", True)
    await until(lambda: recorder.opened == [False, False])
    assert len(kernel.times("registry.register")) == 2


async def test_a_handshake_that_never_answers_is_given_up(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    async def silent(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        kept.append(ours)
        return theirs

    kept: list[trio.abc.Stream] = []
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    link._open_stream = silent
    nursery.start_soon(link.run)
    await until(lambda: recorder.failures)
    assert trio.current_time() < 6.0


async def test_a_connection_that_ends_before_the_upgrade_is_noticed_at_once(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    async def hangs_up(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await ours.aclose()
        return theirs

    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    link._open_stream = hangs_up
    nursery.start_soon(link.run)
    await until(lambda: recorder.failures)
    assert trio.current_time() < 1.0


async def test_a_503_with_retry_after_is_obeyed(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    async def busy(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await ours.send_all(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n")
        kept.append(ours)
        return theirs

    kept: list[trio.abc.Stream] = []
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    link._open_stream = busy
    nursery.start_soon(link.run)
    await until(lambda: recorder.failures)
    assert recorder.failures[0].delay_s == 30.0


@pytest.mark.parametrize("noise", ["", "[]", "{", "7", '{"jsonrpc":"2.0"}', '{"jsonrpc":"2.0","id":9,"result":1}'])
async def test_garbage_from_the_kernel_is_counted_and_the_wire_stays(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log, noise: str
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    assert kernel._server is not None
    await kernel._server.send_message(noise)
    await kernel._server.send_message(b"\x00\xff")
    answer = await link.call("registry.list_modules", {}, timeout_s=5.0)
    assert answer.error is None


async def test_calls_to_it_are_answered_and_unknown_ones_named(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    await kernel.ask(1, "echo", {"a": 1})
    await kernel.ask(2, "nope", {})
    await until(lambda: len(kernel.answered) == 2)
    assert kernel.answered[0]["result"] == {"a": 1}
    assert kernel.answered[1]["error"]["code"] == -32601
    assert kernel.answered[1]["error"]["data"]["nearest"] == ["health"]


async def test_not_connected_is_said_at_once(nursery: trio.Nursery, log: Log) -> None:
    link = make(ScriptedKernel(nursery), log, Recorder())
    answer = await link.call("x.y", {}, timeout_s=5.0)
    assert (answer.lost, answer.outcome) == (True, "not_sent")
    assert link.publish("a.b", {}) is False
    assert link.dropped == 1


async def test_a_refused_registration_is_tried_again(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    def refuse(params: dict[str, Any]) -> None:
        raise Refuse(-32005, "overloaded", {"reason": "rate", "outcome": "not_sent"})

    kernel, recorder = ScriptedKernel(nursery, {"registry.register": refuse}), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: len(recorder.failures) >= 2)
    assert not link.is_open


async def test_stop_sends_what_is_queued_and_does_not_come_back(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, log: Log
) -> None:
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    link = make(kernel, log, recorder)
    nursery.start_soon(link.run)
    await until(lambda: link.is_open)
    link.publish("module.shutdown_ack", {"module_id": "watchdog"})
    await link.stop()
    await trio.sleep(60)
    assert kernel.events("module.shutdown_ack") == [{"module_id": "watchdog"}]
    assert len(kernel.auths) == 1


async def test_a_token_is_in_no_log_line(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    captured = structlog.testing.CapturingLogger()
    kernel, recorder = ScriptedKernel(nursery), Recorder()
    kernel.close_before_auth = (4001, "token unknown")
    link = make(kernel, structlog.wrap_logger(captured, processors=[]), recorder)
    await link.run()
    assert captured.calls
    assert "t0ken" not in str(captured.calls)
    assert "t0ken" not in repr(link)
