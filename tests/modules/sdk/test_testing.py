"""The tools for authors' tests: virtual time, faults, and a test that fails shows its own failure.

Source: spec 30-clients §2.
"""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest

from kite_modules.sdk import CallError, Module
from kite_modules.sdk.session import State
from kite_modules.sdk.testing import Hub, virtual
from kite_modules.sdk.testing.fixtures import hub as hub_fixture

hub = hub_fixture


def greeter() -> Module:
    module = Module("greeter")

    @module.method
    def greet(name: str) -> str:
        return f"hello {name}"

    return module


@virtual
async def test_a_minute_of_waiting_takes_no_time(hub: Hub) -> None:
    start = time.monotonic()
    async with hub.running(greeter()), hub.client() as kite:
        await hub.restart(away_s=60.0)
        await kite.wait_open()
        await hub.wait_state("greeter")
        assert await kite.call("greeter.greet", {"name": "you"}) == "hello you"
    assert time.monotonic() - start < 20


@virtual
async def test_what_went_through_is_on_record(hub: Hub) -> None:
    async with hub.running(greeter()), hub.client("me") as kite:
        await kite.call("greeter.greet", {"name": "you"})
        await kite.publish("orders.new", 7)
        assert hub.calls == [("me", "greeter.greet", {"name": "you"})]
        assert hub.events == [("me", "orders.new", 7)]
        assert hub.state("greeter") == "ready"
    await hub.wait_state("greeter", "offline", timeout_s=1)


@virtual
async def test_a_dropped_wire_says_nothing_until_it_is_healed(hub: Hub) -> None:
    async with hub.running(greeter()), hub.client("me") as kite:
        hub.drop("greeter")
        with pytest.raises(CallError) as caught:
            await kite.call("greeter.greet", {"name": "you"}, timeout=2)
        assert caught.value.reason == "deadline"
        hub.heal("greeter")
        assert await kite.call("greeter.greet", {"name": "again"}) == "hello again"


@virtual
async def test_a_module_that_answers_no_ping_is_closed_and_comes_back(hub: Hub) -> None:
    async with hub.running(greeter()) as kite:
        hub.drop("greeter")
        async for state in kite.states():
            if state is not State.OPEN:
                break
        await kite.wait_open()
        assert kite.statistics()["reconnects"]


@virtual
async def test_a_fault_for_somebody_who_is_not_there_is_named(hub: Hub) -> None:
    async with hub.client("me"):
        with pytest.raises(KeyError, match="connected: me"):
            hub.cut("nobody")


async def test_the_fixture_is_the_same_hub(hub: Hub) -> None:
    async with hub.running(greeter()), hub.client() as kite:
        assert await kite.call("greeter.greet", {"name": "you"}) == "hello you"


def test_other_parameters_stay_fixtures() -> None:
    @virtual
    async def scenario(tmp_path: Any, hub: Hub) -> None:
        assert tmp_path == "here"
        assert hub.state("x") == "offline"

    assert list(inspect.signature(scenario).parameters) == ["tmp_path"]
    scenario(tmp_path="here")


def test_a_failure_is_shown_bare() -> None:
    @virtual
    async def scenario(hub: Hub) -> None:
        async with hub.running(greeter()), hub.client():
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        scenario()


def test_a_test_without_a_hub_is_told_so() -> None:
    with pytest.raises(TypeError, match="hub"):

        @virtual
        async def scenario() -> None: ...
