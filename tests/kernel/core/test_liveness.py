"""Ping rounds, misses, stalls, silence. Source: 20 §3, 00 §13-14, cases W-43 to W-45."""

from __future__ import annotations

from tests.support.pure_hub import PureHub, is_event

from kite_kernel.core.effects import Log


def test_three_misses_in_a_row_close_fifteen_seconds_after_the_first_ping() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    a.send({"jsonrpc": "2.0", "id": 1, "method": "c.echo"})  # the quick interval
    c.answers_pings = False
    hub.sleep(5)
    asked_at = hub.now
    while not c.closed:
        hub.sleep(0.5)
        a.send({"jsonrpc": "2.0", "method": "c.echo"})
        assert hub.now < asked_at + 20
    assert 14.5 <= hub.now - asked_at <= 15.5
    assert c.closed[0] == 4012
    assert a.closed is None
    assert hub.lines("ping_timeout") == [f"[kernel] c ping timeout {n} times" for n in (1, 2, 3)]
    assert [row["params"]["verdict"] for row in c.frames() if row.get("method") == "bye"] == ["retry"]


def test_an_idle_system_finds_a_dead_peer_within_75_seconds() -> None:
    hub = PureHub()
    hub.ready("a")
    c = hub.ready("c")
    hub.sleep(200)
    c.answers_pings = False
    began = hub.now
    while not c.closed:
        hub.sleep(1)
    assert hub.now - began <= 76


def test_any_text_is_life() -> None:
    hub = PureHub()
    c = hub.ready("c")
    c.answers_pings = False
    for _ in range(100):
        hub.sleep(4)
        c.send('{"jsonrpc":"2.0","method":"$/nothing"}')
    assert c.closed is None
    assert not hub.lines("ping_timeout")


def test_the_interval_is_quick_only_while_calls_run() -> None:
    hub = PureHub()
    a = hub.ready("a")
    hub.ready("c")
    a.answers_pings = False

    def pings(seconds: float) -> int:
        count = 0
        for _ in range(int(seconds)):
            hub.sleep(1)
            a.send('{"jsonrpc":"2.0","method":"$/nothing"}')
            count += len([row for row in a.frames() if is_event(row, "system.ping")])
        return count

    pings(40)
    assert pings(300) in (4, 5, 6)
    a.send({"jsonrpc": "2.0", "method": "c.echo"})
    assert pings(30) in (5, 6, 7)


def test_a_paused_kernel_judges_nobody() -> None:
    hub = PureHub()
    peers = [hub.ready(name) for name in "abc"]
    for peer in peers:
        peer.answers_pings = False
    hub.sleep(6)
    hub.now += 20  # the kernel stood still: its timers come late, the answers wait in the buffers
    hub.core.on_stall(20, now=hub.now)
    hub.settle()
    assert not hub.lines("ping_timeout")
    assert hub.lines("stalled") == ["[kernel] was away for 20.0s: everybody gets a fresh period"]
    for peer in peers[:2]:
        peer.answers_pings = True
        peer.send('{"jsonrpc":"2.0","method":"$/nothing"}')
    began = hub.now
    while not peers[2].closed:
        hub.sleep(0.5)
    assert hub.now - began <= 16
    assert peers[0].closed is None
    assert peers[1].closed is None


def test_a_silent_launcher_is_degraded_loudly_and_kept() -> None:
    hub = PureHub(standalone=False)
    launcher, o = hub.ready("launcher"), hub.auth("o")
    launcher.answers_pings = False
    hub.sleep(120)
    assert launcher.closed is None
    assert [effect.level for effect in hub.effects if isinstance(effect, Log) and effect.event == "launcher_silent"]
    (row,) = o.ask("kernel.get_connection_stats", {"module_id": "launcher"})["result"]["modules"]
    assert row["grade"] == "degraded"
    assert ("launcher", "launcher") not in hub.clocks


def test_latencies_are_told_and_absurd_clocks_marked() -> None:
    hub = PureHub()
    c, o = hub.ready("c"), hub.auth("o")
    c.answers_pings = False
    hub.sleep(5)
    (ping,) = [row for row in c.frames() if is_event(row, "system.ping")]
    sent = ping["params"]["data"]["ping_time"]
    hub.now += 0.2
    c.say("system.pong", {"ping_time": sent, "pong_time": sent - 500})
    (row,) = o.ask("kernel.get_connection_stats", {"module_id": "c"})["result"]["modules"]
    assert row["ping"]["status"] == "ok"
    assert row["ping"]["rtt_ms"] == 200
    assert row["ping"]["outbound_ms"] is None


def test_a_late_pong_of_an_older_ping_is_life_but_no_latency() -> None:
    hub = PureHub()
    c, o = hub.ready("c"), hub.auth("o")
    c.answers_pings = False
    hub.sleep(11)
    c.say("system.pong", {"ping_time": 1.0, "pong_time": 1.0})
    (row,) = o.ask("kernel.get_connection_stats", {"module_id": "c"})["result"]["modules"]
    assert row["ping"]["rtt_ms"] is None


def test_pongs_and_acks_are_not_fanned_out() -> None:
    hub = PureHub()
    a, b = hub.ready("a", events=[">"]), hub.ready("b")
    b.say("system.pong", {})
    b.say("module.shutdown_ack", {})
    b.send({"jsonrpc": "2.0", "method": "module.shutdown_ack", "params": {"module_id": "b"}})
    assert a.frames() == []
    assert hub.core.board.peers["b"].acknowledged
