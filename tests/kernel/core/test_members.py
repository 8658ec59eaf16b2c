"""Coming and going: states, debounce, restart, takeover, resume, the launcher's loss. Source: 20 §1-2, 10 §8."""

from __future__ import annotations

import pytest
from tests.support.pure_hub import PureHub

from kite_kernel.core.effects import Stop
from kite_kernel.core.registry import TRANSITIONS, State, Step, step


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("what", Step)
def test_only_the_table_moves_a_state(state: State, what: Step) -> None:
    assert step(state, what) is TRANSITIONS.get((state, what))


def test_offline_is_left_by_authentication_alone() -> None:
    assert [what for what in Step if step(State.OFFLINE, what) is not None] == [Step.AUTH_OK]


def test_ready_needs_both_said_before() -> None:
    hub = PureHub()
    d = hub.auth("d")
    assert "error" in d.ask("event.publish", {"event": "module.ready"})
    assert d.ask("registry.register", {"methods": []})["result"] == {"state": "connected"}
    assert "error" in d.ask("event.publish", {"event": "module.ready"})
    d.ask("event.subscribe", {"events": []})
    assert "result" in d.ask("event.publish", {"event": "module.ready"})
    assert len(hub.lines("impossible_step")) == 2


def test_a_cut_shorter_than_the_debounce_is_told_to_nobody() -> None:
    hub = PureHub()
    a, b = hub.ready("a"), hub.ready("b")
    b.cut()
    hub.sleep(4.9)
    b = hub.auth("b")
    hub.sleep(10)
    assert b.hello["state"] == "ready"
    assert a.events("module.offline") == []
    assert hub.lines("reconnected") == ["[kernel] b reconnected within debounce window"]


def test_a_longer_cut_is_told_after_the_debounce() -> None:
    hub = PureHub()
    a, b = hub.ready("a"), hub.ready("b")
    b.cut()
    hub.sleep(4.9)
    assert a.events("module.offline") == []
    hub.sleep(0.2)
    (told,) = a.events("module.offline")
    assert told["data"]["module_id"] == "b"
    assert told["data"]["reason"] == "connection_lost"
    assert hub.auth("b").hello["state"] == "connected"


def test_who_said_exiting_is_offline_as_its_wire_closes() -> None:
    hub = PureHub()
    a, b = hub.ready("a"), hub.ready("b")
    b.say("module.exiting", {"module_id": "a", "reason": "done"})
    assert a.events("module.exiting")[0]["data"] == {"module_id": "b", "reason": "done"}
    b.cut()
    assert a.events("module.offline")[0]["data"]["reason"] == "exiting"


def test_another_process_starts_anew_and_its_calls_in_hand_fail() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    a.send({"jsonrpc": "2.0", "id": 1, "method": "c.echo"})
    c.cut()
    hub.sleep(2)
    a.frames()
    again = hub.auth("c", instance="i2")
    assert again.hello["state"] == "connected"
    frames = a.frames()
    assert [row["params"]["data"]["reason"] for row in frames if row.get("method") == "event"] == ["restarted"]
    (failed,) = [row for row in frames if row.get("id") == 1]
    assert failed["error"]["code"] == -32002
    assert failed["error"]["data"]["reason"] == "restarted"
    assert failed["error"]["data"]["outcome"] == "unknown"
    answer = a.ask("c.echo")
    assert answer["error"]["code"] == -32001
    assert answer["error"]["data"]["state"] == "connected"


def test_a_newer_wire_takes_over_at_once() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    newer = hub.auth("c")
    assert c.closed is not None
    assert c.closed[0] == 4010
    assert [row["error"]["code"] for row in c.frames() if "error" in row] == [-32010]
    a.send({"jsonrpc": "2.0", "id": 1, "method": "c.echo"})
    assert newer.frames()[-1]["method"] == "echo"
    assert a.events("module.offline") == []
    assert hub.lines("replaced") == ["[kernel] Closed old connection for c"]


def test_protocol_1_is_closed_with_its_own_number() -> None:
    hub = PureHub()
    c = hub.auth("c", protocol=1)
    hub.auth("c", protocol=1)
    assert c.closed is not None
    assert c.closed[0] == 4000


# --- resume ---


def test_a_resume_sends_again_just_what_was_not_received() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.*"]), hub.ready("c")
    session, had = a.hello["session"], hub.core.board.peers["a"].sent
    for n in range(5):
        c.say("x.t", n)
    a.cut()
    for n in range(5, 50):
        c.say("x.t", n)
    again = hub.auth("a", resume={"session": session, "received": had + 3})
    assert again.hello["resumed"] is True
    assert again.hello["session"] == session
    assert [told["data"] for told in again.events("x.t")] == list(range(3, 50))


def test_calls_in_flight_survive_a_resume() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    for n in range(3):
        a.send({"jsonrpc": "2.0", "id": n, "method": "c.echo"})
    kids = [row["id"] for row in c.frames()]
    had = hub.core.board.peers["a"].sent
    a.cut()
    hub.sleep(1)
    for kid in kids[:2]:
        c.send({"jsonrpc": "2.0", "id": kid, "result": kid})
    a = hub.auth("a", resume={"session": a.hello["session"], "received": had})
    c.send({"jsonrpc": "2.0", "id": kids[2], "result": kids[2]})
    assert [row["id"] for row in a.frames() if "result" in row] == [0, 1, 2]


@pytest.mark.parametrize("resume", [("other", 0), (None, 10**9)])
def test_a_resume_that_cannot_be_kept_says_so_and_fails_what_was_pending(resume: tuple[str | None, int]) -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.*"]), hub.ready("c")
    a.send({"jsonrpc": "2.0", "id": 9, "method": "c.echo"})
    a.cut()
    c.say("x.t", 1)
    claim = {"session": resume[0] or a.hello["session"], "received": resume[1]}
    again = hub.auth("a", resume=claim)
    assert again.hello["resumed"] is False
    assert again.hello["session"] != a.hello["session"]
    assert again.hello["received"] == 0
    frames = again.frames()
    assert [row["error"]["code"] for row in frames] == [-32002]
    assert [row["method"] for row in c.frames()][-1] == "$/cancelRequest"


def test_a_session_is_nobody_elses() -> None:
    hub = PureHub()
    a, b, c = hub.ready("a"), hub.ready("b", events=["x.*"]), hub.ready("c")
    b.cut()
    c.say("x.secret", 1)
    a.cut()
    again = hub.auth("a", resume={"session": b.hello["session"], "received": 0})
    assert again.hello["resumed"] is False
    assert again.frames() == []


def test_an_overrun_buffer_is_no_resume() -> None:
    hub = PureHub({"kernel": {"queue_messages": 10}})
    a, c = hub.ready("a", events=["x.*"]), hub.ready("c")
    had = hub.core.board.peers["a"].sent
    a.cut()
    for n in range(20):
        c.say("x.t", n)
    assert hub.core.board.peers["a"].out == []
    again = hub.auth("a", resume={"session": a.hello["session"], "received": had})
    assert again.hello["resumed"] is False
    assert again.events("x.t") == []


def test_who_never_resumes_keeps_nothing() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.*"], instance=None), hub.ready("c")
    a.cut()
    c.say("x.t", 1)
    again = hub.auth("a", instance=None)
    assert again.hello["state"] == "ready"
    assert again.frames() == []


def test_a_pong_acknowledges() -> None:
    hub = PureHub()
    a, c = hub.ready("a", events=["x.*"]), hub.ready("c")
    for n in range(5):
        c.say("x.t", n)
    peer = hub.core.board.peers["a"]
    assert peer.replay is not None
    assert peer.replay.frames == peer.sent
    a.say("system.pong", {"ping_time": 1, "pong_time": 1, "received": peer.sent})
    assert peer.replay.frames == 0
    a.say("system.pong", {"received": peer.sent + 1})
    a.say("system.pong", {"received": "7"})
    assert peer.replay.frames == 0


# --- the launcher ---


def test_a_lost_launcher_ends_the_instance_after_its_grace() -> None:
    hub = PureHub(standalone=False)
    a, launcher = hub.ready("a"), hub.ready("launcher")
    launcher.cut()
    hub.sleep(4.9)
    assert a.events("module.offline") == []
    hub.sleep(0.2)
    assert a.events("module.offline")[0]["data"]["module_id"] == "launcher"
    hub.sleep(29)
    assert a.events("module.shutdown") == []
    hub.sleep(1)
    assert a.events("module.shutdown")[0]["data"] == {"reason": "launcher_lost", "deadline_s": 10.0}
    assert [effect for effect in hub.effects if isinstance(effect, Stop)] == [Stop("launcher_lost", 10.0)]


def test_a_launcher_back_in_time_stops_the_clock_and_is_told_ready_once() -> None:
    hub = PureHub(standalone=False)
    a, launcher = hub.ready("a"), hub.ready("launcher")
    launcher.cut()
    hub.sleep(20)
    a.frames()
    launcher = hub.auth("launcher")
    launcher.ask("event.subscribe", {"events": []})
    launcher.ask("registry.register", {"methods": []})
    launcher.say("module.ready")
    assert len(a.events("module.ready")) == 1
    hub.sleep(60)
    assert not [effect for effect in hub.effects if isinstance(effect, Stop)]


def test_a_launcher_back_within_the_debounce_is_told_to_nobody() -> None:
    hub = PureHub(standalone=False)
    a, launcher = hub.ready("a"), hub.ready("launcher")
    launcher.cut()
    hub.sleep(3)
    hub.auth("launcher")
    hub.sleep(60)
    assert a.frames() == []


def test_a_launcher_that_leaves_on_purpose_keeps_the_same_window() -> None:
    hub = PureHub(standalone=False)
    a, launcher = hub.ready("a"), hub.ready("launcher")
    launcher.say("module.exiting")
    launcher.cut()
    assert a.events("module.offline")[0]["data"]["reason"] == "exiting"
    assert hub.core.members.launcher_leaves
    hub.sleep(34)
    assert not [effect for effect in hub.effects if isinstance(effect, Stop)]
    hub.sleep(2)
    assert [effect for effect in hub.effects if isinstance(effect, Stop)]


def test_a_module_that_says_exiting_starts_no_launcher_clock() -> None:
    hub = PureHub(standalone=False)
    hub.ready("launcher")
    b = hub.ready("b")
    b.say("module.exiting", {"module_id": "launcher"})
    b.cut()
    assert ("launcher", "launcher") not in hub.clocks


def test_a_standalone_kernel_has_no_launcher_rule() -> None:
    hub = PureHub()
    launcher = hub.ready("launcher")
    launcher.cut()
    hub.sleep(100)
    assert not [effect for effect in hub.effects if isinstance(effect, Stop)]
