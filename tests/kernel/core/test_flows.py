"""`kernel.flows`: who has called whom, in bounded memory."""

from __future__ import annotations

import pytest
from tests.support.pure_hub import PureHub

from kite_kernel.core import calls


def test_flows_tell_who_called_whom_how_often() -> None:
    hub = PureHub()
    a, b, c = hub.ready("a"), hub.ready("b"), hub.ready("c")
    for number in range(3):
        a.send({"jsonrpc": "2.0", "id": number, "method": "c.echo"})
    b.send({"jsonrpc": "2.0", "id": 1, "method": "a.echo"})
    rows = c.ask("kernel.flows")["result"]["flows"]
    assert sorted(rows, key=lambda row: row["caller"]) == [
        {"caller": "a", "callee": "c", "calls": 3},
        {"caller": "b", "callee": "a", "calls": 1},
    ]


def test_flows_tell_apart_a_bounded_number_of_callees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ASKED_MAX", 1)
    hub = PureHub()
    a, _, c = hub.ready("a"), hub.ready("b"), hub.ready("c")
    for ident, method in enumerate(("b.echo", "c.echo", "b.echo")):
        a.send({"jsonrpc": "2.0", "id": ident, "method": method})
    assert c.ask("kernel.flows")["result"]["flows"] == [{"caller": "a", "callee": "b", "calls": 2}]
