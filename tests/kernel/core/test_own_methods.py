"""The kernel's own methods: shapes, refusals, bounds. Source: 05 §7 and §9, cases W-32, W-46, X-17, X-18, X-41."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.pure_hub import PureHub

from kite_kernel._contract import METHODS
from kite_kernel.core.asking import Refused, read_params


def error_of(answer: dict[str, Any]) -> tuple[int, str | None]:
    return answer["error"]["code"], answer["error"]["data"].get("field")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"methods": "run"}, (-32602, "methods")),
        ({"methods": [""]}, (-32602, "methods")),
        ({"methods": ["a\nb"]}, (-32602, "methods")),
        ({"methods": ["a", "a"]}, (-32602, "methods")),
        ({"methods": ["a", "b.a"]}, (-32602, "methods")),
        ({"methods": [{"params": {}}]}, (-32602, "methods")),
        ({"methods": [f"m{n}" for n in range(10_001)]}, (-32600, "methods")),
        ({"methods": [{"name": f"m{n}", "doc": "x" * 1000} for n in range(1100)]}, (-32600, "methods")),
        ({"methods": [], "service": 5}, (-32602, "service")),
        ({"methods": [], "meta": []}, (-32602, "meta")),
        ({"methods": [], "meta": {"x": "y" * 20_000}}, (-32602, "meta")),
        ({"methods": [], "accepts_meta": 1}, (-32602, "accepts_meta")),
        ({}, (-32602, "methods")),
    ],
)
def test_a_wrong_registration_registers_nothing(params: dict[str, Any], expected: tuple[int, str]) -> None:
    hub = PureHub()
    b = hub.auth("b")
    assert error_of(b.ask("registry.register", params)) == expected
    peer = hub.core.board.peers["b"]
    assert (peer.methods, peer.said, peer.state.value) == ({}, 0, "connected")


def test_names_are_kept_relative_and_again_adds_and_replaces() -> None:
    hub = PureHub()
    b = hub.auth("b")
    b.ask("registry.register", {"methods": ["b.run", {"name": "stop", "doc": "old"}], "meta": {"v": 1}})
    b.ask("registry.register", {"methods": [{"name": "stop", "doc": "new"}, "c.run", "kernel.info"]})
    row = b.ask("registry.get_module", {"module_id": "b"})["result"]
    assert row["methods"] == ["run", {"name": "stop", "doc": "new"}, "c.run", "kernel.info"]
    assert row["meta"] == {"v": 1}
    assert set(row) >= {"module_id", "state", "since", "methods", "service", "grade", "reconnects", "meta"}
    assert b.ask("registry.unregister", {"methods": ["b.run", "nothing"]})["result"] == {"state": "connected"}
    assert len(hub.core.board.peers["b"].methods) == 3
    assert error_of(b.ask("registry.unregister", {"methods": [1]})) == (-32602, "methods")
    b.ask("registry.unregister", {})
    assert not hub.core.board.peers["b"].methods


def test_odd_names_of_one_module_never_catch_the_calls_of_another() -> None:
    hub = PureHub()
    a, b, c = hub.ready("a"), hub.ready("b", methods=["c.run", "kernel.info"]), hub.ready("c", methods=["run"])
    a.send({"jsonrpc": "2.0", "id": 1, "method": "c.run"})
    assert "epoch" in a.ask("kernel.info")["result"]
    assert b.frames() == []
    assert [row["method"] for row in c.frames()] == ["run"]


def test_a_module_that_is_not_here_is_an_error_with_its_state() -> None:
    hub = PureHub()
    a = hub.auth("a")
    for name, reason in [("d", "offline"), ("nobody", "unknown_module")]:
        error = a.ask("registry.get_module", {"module_id": name})["error"]
        assert (error["code"], error["data"]["reason"], error["data"]["state"]) == (-32001, reason, "offline")
        assert a.ask("kernel.get_connection_stats", {"module_id": name})["error"]["code"] == -32001


def test_the_list_tells_everybody() -> None:
    hub = PureHub()
    a = hub.ready("a")
    hub.auth("b")
    rows = a.ask("registry.list_modules")["result"]["modules"]
    assert [(row["module_id"], row["state"]) for row in rows] == [("a", "ready"), ("b", "connected")]


def test_statistics_have_all_their_members() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    a.send({"jsonrpc": "2.0", "id": 1, "method": "c.echo"})
    c.cut()
    hub.sleep(1)
    hub.auth("c")
    (row,) = a.ask("kernel.get_connection_stats", {"module_id": "c"})["result"]["modules"]
    assert set(row) == {
        *("module_id", "state", "since", "grade", "score", "ping", "reconnects", "queue", "prediction"),
        *("frames_in", "frames_out", "bytes_in", "bytes_out", "calls_in_flight"),
    }
    ping = {"status", "unanswered", "outbound_ms", "inbound_ms", "rtt_ms", "p50_ms", "p95_ms", "jitter_ms"}
    assert set(row["ping"]) == ping
    assert row["reconnects"] == {"hour": 1, "total": 1}
    assert row["queue"]["pressure"] == "normal"
    assert row["calls_in_flight"] == 1
    assert row["frames_in"] >= 3


def test_an_operator_sees_calls_and_closed_wires_but_no_params_and_no_token() -> None:
    hub = PureHub()
    a, c, o = hub.ready("a"), hub.ready("c"), hub.auth("o")
    a.send({"jsonrpc": "2.0", "id": 1, "method": "c.echo", "params": {"secret": "s3cr3t"}})
    hub.now += 10
    answer = o.ask("kernel.pending")["result"]
    (call,) = answer["calls"]
    assert (call["caller"], call["callee"], call["method"], call["age_s"]) == ("a", "c", "c.echo", 10.0)
    assert call["where"] == "callee"
    c.cut()
    a.send({"jsonrpc": "2.0", "id": 2, "method": "c.echo"})
    assert [row["where"] for row in o.ask("kernel.pending")["result"]["calls"]] == ["callee", "held"]
    (closed, *_) = o.ask("kernel.closed", {"limit": 1})["result"]["closed"]
    assert closed["module_id"] == "c"
    assert closed["when"].endswith("+00:00")
    assert "s3cr3t" not in str(answer)
    assert error_of(o.ask("kernel.closed", {"limit": -1})) == (-32602, "limit")


def test_shutdown_goes_to_one_module_alone() -> None:
    hub = PureHub()
    a, c, o = hub.ready("a"), hub.ready("c"), hub.auth("o")
    assert o.ask("kernel.shutdown_module", {"module_id": "c", "reason": "module_stop", "deadline_s": 3})["result"] == {}
    assert c.events("module.shutdown")[0]["data"] == {"reason": "module_stop", "deadline_s": 3}
    assert a.events("module.shutdown") == []
    assert error_of(o.ask("kernel.shutdown_module", {"module_id": "c", "reason": "because"})) == (-32602, "reason")
    assert error_of(o.ask("kernel.shutdown_module", {"module_id": "c", "deadline_s": -1})) == (-32602, "deadline_s")
    assert o.ask("kernel.shutdown_module", {"module_id": "d"})["error"]["code"] == -32001


def test_meta_is_the_kernels_word_and_only_for_who_asked() -> None:
    hub = PureHub()
    b, c, d = hub.ready("b"), hub.ready("c"), hub.ready("d")
    c.ask("registry.register", {"methods": ["echo"], "accepts_meta": True})
    lies = {"caller": "o", "deadline": 9e9, "key": "k", "timeout": 5, "traceparent": "00-1-2-01"}
    for target in ("c", "d"):
        b.send({"jsonrpc": "2.0", "id": target, "method": f"{target}.echo", "meta": lies})
    (to_c,) = c.frames()
    assert to_c["meta"]["caller"] == "b"
    assert to_c["meta"]["deadline"] == pytest.approx(hub.now + 5)
    assert to_c["meta"]["traceparent"] == "00-1-2-01"
    assert set(to_c["meta"]) == {"caller", "deadline", "traceparent"}
    assert "meta" not in d.frames()[0]
    b.send({"jsonrpc": "2.0", "id": 9, "method": "c.echo", "meta": {"timeout": "soon"}})
    assert b.frames()[0]["error"]["data"]["field"] == "meta"


def test_an_unknown_method_of_the_kernel_names_the_nearest() -> None:
    hub = PureHub()
    error = hub.auth("a").ask("kernel.inof")["error"]
    assert error["code"] == -32601
    assert error["data"]["nearest"][0] == "kernel.info"
    assert hub.auth("a").ask("nothing")["error"]["code"] == -32601


def test_params_by_position_are_taken_in_the_contracts_order() -> None:
    assert read_params("registry.get_module", b'["a"]') == {"module_id": "a"}
    assert read_params("kernel.closed", b"[]") == {}
    found = read_params("kernel.closed", b"[1,2]")
    assert isinstance(found, Refused)
    assert found.data["field"] == "params"
    assert read_params("registry.register", b'{"methods":[],"service":null}') == {"methods": []}
    assert isinstance(read_params("registry.register", b'{"methods":[1e999]}'), Refused)


@pytest.mark.parametrize("method", sorted(name for name in METHODS if name.split(".")[0] in ("registry", "kernel")))
def test_strange_params_are_refused_by_name_and_never_a_fault(method: str) -> None:
    hub = PureHub()
    o = hub.auth("o")
    for wrong in ({"x": 1}, [1, 2, 3, 4, 5, 6, 7, 8, 9], {name: [[[]]] for name in METHODS[method].params}):
        answer = o.ask(method, wrong)
        assert ("error" in answer) <= (answer.get("error", {}).get("code") in (-32602, -32001))


def test_no_notification_is_ever_answered() -> None:
    hub = PureHub()
    a = hub.ready("a")
    for method in (*METHODS, "auth", "nobody.x", "nothing", "a.nope", "$/strange", "event"):
        a.send({"jsonrpc": "2.0", "method": method})
        a.send({"jsonrpc": "2.0", "method": method, "params": {"x": 1}})
    assert a.frames() == []
