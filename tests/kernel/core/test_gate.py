"""The first frame, tokens, rates. Source: 10 §2, 00 §9-12, cases W-47 to W-51, X-06 to X-14, X-37."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pure_hub import PureHub, PurePeer

from kite_kernel.core.auth import Rates, Tokens, is_module_id, read_auth


def knock(hub: PureHub, params: Any, addr: str = "127.0.0.1", ident: Any = 7) -> PurePeer:
    peer = hub.open(addr)
    peer.send({"jsonrpc": "2.0", "id": ident, "method": "auth", "params": params})
    return peer


def refusal(peer: PurePeer) -> tuple[int, str, Any]:
    """The close code, the reason of the JSON-RPC error before it, and the id that it answers."""
    assert peer.closed is not None
    error, bye = peer.frames()
    assert error["error"]["code"] == -32010
    assert error["error"]["data"]["close"] == peer.closed[0] == bye["params"]["code"]
    assert error["error"]["data"]["outcome"] == "not_sent"
    return peer.closed[0], error["error"]["data"]["reason"], error["id"]


@pytest.mark.parametrize(
    ("first", "ident"),
    [
        ("x", None),
        ("[]", None),
        ('{"jsonrpc":"2.0","id":3,"method":"registry.list_modules"}', 3),
        ('{"jsonrpc":"2.0","method":"auth","params":{"token":"token-a"}}', None),
        ('[{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"token-a"}}]', None),
        ('{"jsonrpc":"2.0","id":"q","method":"auth","params":["token-a"]}', "q"),
        ('{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":5}}', 1),
        ('{"jsonrpc":"2.0","id":1,"method":"auth","params":{}}', 1),
        ('{"jsonrpc":"2.0","id":1,"method":"auth"}', 1),
        ('{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"token-a","module_id":5}}', 1),
        ('{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"token-a","protocol":"2"}}', 1),
        *(
            ('{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"token-a","resume":' + wrong + "}}", 1)
            for wrong in ("7", "[]", "{}", '{"session":1,"received":0}', '{"session":"s","received":-1}')
        ),
        *(
            (
                '{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"token-a","resume":{"session":"s","received":'
                + wrong
                + "}}}",
                1,
            )
            for wrong in ("1.5", '"7"', "9223372036854775808", "true", "1e999")
        ),
    ],
)
def test_what_is_no_auth_request_is_4003_and_nothing_is_done(first: str, ident: Any) -> None:
    hub = PureHub()
    peer = hub.open()
    peer.send(first)
    assert refusal(peer) == (4003, "auth_malformed", ident)
    assert not hub.core.board.peers


@pytest.mark.parametrize(
    "params",
    [
        {"token": "token-a", "module_id": "b"},
        {"token": ""},
        {"token": "token-a\n"},
        {"token": "TOKEN-A"},
        {"token": "é" * 50},
        {"token": "x" * 3900},
        {"token": "\ud83d"},
        {"token": "token-b", "module_id": "launcher"},
        {"token": "token-b", "module_id": "kernel"},
        {"token": "token-o", "module_id": "watchdog"},
        {"token": "token-o", "module_id": "a b"},
        {"token": "token-o", "module_id": "é" * 300},
    ],
)
def test_a_wrong_token_is_4001_with_one_text_and_harms_nobody(params: dict[str, str]) -> None:
    hub = PureHub()
    a, b = hub.ready("a"), hub.ready("b")
    peer = knock(hub, params)
    if "\ud83d" in params["token"]:
        assert refusal(peer)[0] == 4003  # a lone surrogate is no JSON
    else:
        assert refusal(peer) == (4001, "auth_failed", 7)
        assert peer.closed == (4001, "authentication failed")
    assert a.closed is None
    assert b.closed is None


def test_an_operator_may_be_anybody_and_call_anything() -> None:
    hub = PureHub()
    hub.ready("c")
    o = hub.auth("o", module_id="guest-7")
    assert o.hello["module_id"] == "guest-7"
    assert "result" in o.ask("kernel.pending")
    assert "result" in o.ask("kernel.drain")
    assert hub.core.draining


@pytest.mark.parametrize("method", ["kernel.drain", "kernel.pending", "kernel.closed", "kernel.shutdown_module"])
def test_a_modules_token_does_not_administer(method: str) -> None:
    hub = PureHub()
    error = hub.ready("b").ask(method, {"module_id": "b"} if "shutdown" in method else {})["error"]
    assert (error["code"], error["data"]["outcome"]) == (-32004, "not_sent")


def test_a_second_auth_is_refused_whatever_it_holds() -> None:
    hub = PureHub()
    a = hub.ready("a")
    for token in ("token-a", "wrong", "token-b"):
        error = a.ask("auth", {"token": token})["error"]
        assert (error["code"], error["data"]["reason"]) == (-32600, "already_authenticated")
        assert token not in json.dumps(error)
    assert a.closed is None


def test_silence_is_4002_at_five_seconds() -> None:
    hub = PureHub()
    peer = hub.open()
    hub.sleep(4.9)
    assert peer.closed is None
    hub.sleep(0.2)
    assert refusal(peer) == (4002, "auth_timeout", None)


def test_the_21st_good_authentication_of_a_pair_is_4020_until_the_window_moves() -> None:
    hub = PureHub()
    for _ in range(20):
        hub.auth("c")
        hub.now += 0.1
    peer = hub.open()
    peer.send({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": "token-c"}})
    assert peer.closed is not None
    assert peer.closed[0] == 4020
    bye = peer.frames()[-1]["params"]
    assert bye["verdict"] == "back_off"
    assert 7.9 <= bye["retry_after_s"] <= 8.1
    hub.auth("d")
    hub.now += bye["retry_after_s"] + 0.01
    hub.auth("c")


def test_a_thousand_modules_of_one_address_all_get_in() -> None:
    hub = PureHub()
    names = [f"m{n}" for n in range(1000)]
    hub.set_tokens("", *names)
    for name in names:
        assert hub.auth(name).hello["module_id"] == name


def test_bad_tries_cost_only_bad_tries() -> None:
    hub = PureHub()
    codes = []
    for _ in range(100):
        codes.append(refusal(knock(hub, {"token": "bad", "module_id": "c"}))[0])
        hub.now += 0.001
    assert codes == [4001] * 20 + [4020] * 80
    assert hub.auth("c").hello["module_id"] == "c"
    assert refusal(knock(hub, {"token": "bad"}, addr="127.0.0.2"))[0] == 4001
    assert len(hub.lines("auth_refused")) == 2  # one for each address


def test_protocol_1_gets_the_old_number_of_the_rate_limit() -> None:
    hub = PureHub()
    for _ in range(20):
        hub.auth("c", protocol=1)
    peer = knock(hub, {"token": "token-c", "protocol": 1})
    assert refusal(peer)[0] == 4029


def test_a_revoked_token_closes_its_wire_and_fails_what_it_had_in_hand() -> None:
    hub = PureHub()
    a, b = hub.ready("a"), hub.ready("b")
    a.send({"jsonrpc": "2.0", "id": 1, "method": "b.echo"})
    b.frames()
    hub.set_tokens("acdefgh", "o")
    hub.settle()
    assert refusal(b) == (4001, "auth_failed", None)
    assert a.closed is None
    assert a.frames()[0]["error"]["code"] == -32002
    assert refusal(knock(hub, {"token": "token-b"}))[0] == 4001


def test_two_tokens_hold_while_one_is_rotated() -> None:
    tokens = Tokens({"b": ("module", ("new", "old"))})
    assert tokens.find("new") is not None
    assert tokens.find("old") is not None
    found = tokens.find("old")
    assert found is not None
    assert Tokens({"b": ("operator", ("new", "old"))}).still_good(found[1], found[0]) is False


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_reading_a_first_frame_never_raises(payload: bytes) -> None:
    read_auth(payload)


@given(st.integers(1, 30), st.lists(st.floats(0, 3), max_size=80))
def test_a_window_never_holds_more_than_its_maximum(most: int, gaps: list[float]) -> None:
    rates, now, passed = Rates(10.0, most), 0.0, []
    for gap in gaps:
        now += gap
        wait_s = rates.good("addr", "c", now=now)
        if wait_s is None:
            passed.append(now)
        else:
            assert 0 < wait_s < 10.001
        assert len([at for at in passed if at > now - 10.0]) <= most


@pytest.mark.parametrize("name", ["a", "Ätna_7", "日本", "x" * 63, "a-b"])
def test_names_of_any_script_are_module_ids(name: str) -> None:
    assert is_module_id(name)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "e\u0301x", "x" * 64, "日" * 22, "a/b", "a\n", "\u202ea"])
def test_strange_names_are_none(name: str) -> None:
    assert not is_module_id(name)
