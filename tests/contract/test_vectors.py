"""Every client obeys every law that concerns it. Source: spec 30 §1, kernel/contract/vectors/README.md."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from tests.contract import adapters
from tests.contract.vectors import DIRECTORY, LAWS, load

from kite_modules.sdk import reconnect

CLIENTS = ("launcher", "watchdog", "sdk")


def cases(law: str) -> list[Any]:
    """Return client × vector for the clients that offer this law."""
    clients = [client for client in CLIENTS if adapters.OFFERS[law][client] is None]
    return [pytest.param(client, v, id=f"{client}-{v['name']}") for client in clients for v in load(law)]


def given_of(vector: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = vector["given"]
    return given


@pytest.mark.parametrize(("client", "vector"), cases("close"))
def test_close_code_has_its_strategy(client: str, vector: dict[str, Any]) -> None:
    decision = adapters.DECIDE[client](given_of(vector)["code"], 1, random=adapters.once(0.0))
    came = {
        "retry": decision.retry,
        "strategy": decision.strategy,
        "verdict": adapters.verdict(decision.strategy),
        "kind": decision.kind,
    }
    assert came == vector["then"]
    assert decision.reason


@pytest.mark.parametrize(("client", "vector"), cases("backoff"))
def test_delays_follow_the_internal_column(client: str, vector: dict[str, Any]) -> None:
    _compare(adapters.decisions(client, given_of(vector)), vector["then"])


@pytest.mark.parametrize(("client", "vector"), cases("legacy"))
def test_old_numbers_are_read_back(client: str, vector: dict[str, Any]) -> None:
    given = dict(given_of(vector))
    decision = adapters.DECIDE[client](given.pop("code"), 1, random=adapters.once(0.0), **given)
    assert {"strategy": decision.strategy, "kind": decision.kind} == vector["then"]


@pytest.mark.parametrize(("client", "vector"), cases("policy"))
def test_named_policies(client: str, vector: dict[str, Any]) -> None:
    then = vector["then"]
    if isinstance(then, dict):
        with pytest.raises((TypeError, ValueError), match=then["refused"]):
            adapters.decisions(client, given_of(vector))
        return
    _compare(adapters.decisions(client, given_of(vector)), then)


def _compare(decided: list[Any], wanted: list[dict[str, Any]]) -> None:
    assert len(decided) == len(wanted)
    for decision, want in zip(decided, wanted, strict=True):
        assert (decision.retry, decision.strategy) == (want["retry"], want["strategy"])
        assert decision.delay_s == pytest.approx(want["delay_s"], abs=0.001)


@pytest.mark.parametrize(("client", "vector"), cases("resume"))
def test_resume_bookkeeping(client: str, vector: dict[str, Any]) -> None:
    for number, wanted, came in adapters.run_resume(client, vector):
        assert came == wanted, f"step {number}"


@pytest.mark.parametrize(("client", "vector"), cases("framing"))
def test_a_text_message_is_taken_for_what_it_is(client: str, vector: dict[str, Any]) -> None:
    given = given_of(vector)
    assert adapters.CLASSIFY[client](given["text"] * given["times"]) == vector["then"]["kind"]


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in load("network")])
def test_network_transitions(vector: dict[str, Any]) -> None:
    given, then = dict(given_of(vector)), vector["then"]
    if "refused" in then:
        with pytest.raises(ValueError, match=then["refused"]):
            reconnect.network_transition(given["previous"], given["next"], path_changed=given["path_changed"])
        return
    came = reconnect.network_transition(given["previous"], given["next"], path_changed=given["path_changed"])
    assert {"reconnect_now": came.reconnect_now, "reset_attempt": came.reset_attempt} == then
    assert came.reason


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in load("session")])
def test_session_states(vector: dict[str, Any]) -> None:
    for number, wanted, came in adapters.run_session(vector):
        for member, value in wanted.items():
            expected = pytest.approx(value, abs=0.001) if isinstance(value, float) else value
            assert came[member] == expected, f"step {number}: {member}"


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in load("errors")])
def test_may_a_failed_call_be_repeated(vector: dict[str, Any]) -> None:
    given = given_of(vector)
    assert adapters.repeat(given["code"], given["data"]) == vector["then"]


# ------------------------------------------------------------------ closure


def test_every_close_code_and_error_has_a_vector() -> None:
    contract = tomllib.loads((DIRECTORY.parent / "errors.toml").read_text("utf-8"))
    closes = {v["given"]["code"] for v in load("close")}
    assert {row["code"] for row in contract["close"]} <= closes
    errors = {(v["given"]["code"], (v["given"]["data"] or {}).get("outcome")) for v in load("errors")}
    assert {(row["code"], outcome) for row in contract["error"] for outcome in ("not_sent", "unknown")} <= errors
    assert "done" in {outcome for _, outcome in errors}
    legacy = {(v["given"]["protocol"], v["given"]["code"]) for v in load("legacy")}
    assert {(1, row["legacy"]) for row in contract["close"] if "legacy" in row} <= legacy


def test_every_shutdown_reason_has_a_session_vector() -> None:
    contract = tomllib.loads((DIRECTORY.parent / "events.toml").read_text("utf-8"))
    said = {step["event"].get("reason") for v in load("session") for step in v["steps"]}
    assert set(contract["shutdown_reasons"]["values"]) <= said


def test_every_file_is_a_law_that_somebody_offers() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.json")} == set(LAWS) == set(adapters.OFFERS)
    for law in LAWS:
        assert set(adapters.OFFERS[law]) == set(CLIENTS)
        assert any(reason is None for reason in adapters.OFFERS[law].values())


def test_every_vector_says_why_and_has_a_name_of_its_own() -> None:
    for law in LAWS:
        names = [v["name"] for v in load(law)]
        assert len(names) == len(set(names)), law
        assert all(v["why"] for v in load(law)), law


def test_the_readme_says_the_same_as_the_table() -> None:
    rows = [line.split("|")[1:-1] for line in (DIRECTORY / "README.md").read_text("utf-8").splitlines()]
    table = {row[0].strip().strip("`"): [cell.strip() for cell in row] for row in rows if len(row) == 6}
    for law in LAWS:
        told = [cell == "✓" for cell in table[law][2:5]]
        assert told == [adapters.OFFERS[law][client] is None for client in CLIENTS], law
