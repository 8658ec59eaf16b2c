"""The relay judges people itself: only its token, of all modules', reaches the administrative methods."""

from __future__ import annotations

from tests.support.pure_hub import PureHub


def test_the_relay_alone_of_all_modules_may_ask_administrative_questions() -> None:
    hub = PureHub()
    hub.set_tokens("ab", "relay", "o")
    relay, a = hub.ready("relay"), hub.ready("a")
    assert "result" in relay.ask("kernel.pending")
    assert a.ask("kernel.pending")["error"]["data"]["reason"] == "no_permission"


def test_a_module_may_not_become_the_relay_by_name() -> None:
    hub = PureHub()
    hub.set_tokens("ab", "relay")
    stranger = hub.open()
    params = {"token": "token-a", "module_id": "relay"}
    stranger.send({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": params})
    assert stranger.closed is not None
    assert stranger.closed[0] == 4001
