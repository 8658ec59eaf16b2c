"""Cases W-27 to W-32: registry and takeover."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.support.raw_peer import is_event
from tests.support.stage import stage


def offline(name: str) -> Any:
    return lambda m: is_event("module.offline")(m) and m["params"]["data"]["module_id"] == name


async def test_w27_the_same_process_takes_over_from_a_wire_that_went_dead() -> None:
    async with stage("a", "c") as on:
        old = on.c
        old.stop_reading()  # no FIN, nothing is read: the wire is dead and nobody was told
        began = trio.current_time()
        new = await on.connect("c")
        await new.result("registry.register", {"methods": ["echo"]})
        ident = await on.a.ask("c.echo", {})
        await new.reply(await new.request("echo"), "new wire")
        assert (await on.a.answer_to(ident))["result"] == "new wire"
        assert trio.current_time() - began < 1
        old.read_again(on.nursery)
        assert (await old.end()).code == 4010
        assert len(on.lines("[kernel] Closed old connection for c")) == 1
        await trio.sleep(6)
        await on.a.settle()
        assert [m for m in on.a.take() if offline("c")(m)] == []


async def test_w28_another_process_is_told_apart_from_a_cut_wire() -> None:
    async with stage("a", "c") as on:
        in_hand = await on.a.ask("c.slow", {})
        await on.c.request("slow")
        await on.c.cut()
        await trio.sleep(2)
        began = trio.current_time()
        new = await on.connect("c", "i2")
        told = await on.a.until(offline("c"))
        assert told["params"]["data"]["reason"] == "restarted"
        error = (await on.a.answer_to(in_hand))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32002, "unknown")
        assert trio.current_time() - began < 0.5
        assert new.session["state"] == "connected"
        error = await on.a.error("c.echo", {})
        assert (error["code"], error["data"]["outcome"]) == (-32001, "not_sent")
        row = await on.a.result("registry.get_module", {"module_id": "c"})
        assert (row["state"], row["methods"]) == ("connected", [])
        await new.become_ready(["other"])
        assert (await on.a.error("c.echo", {}))["code"] == -32601


async def test_w29_ready_counts_only_after_subscribe_and_register() -> None:
    async with stage("a") as on:
        d = await on.connect("d")
        state = d.session["state"]
        steps: dict[str, dict[str, Any]] = {
            "event.publish": {"event": "module.ready", "data": {}},
            "registry.register": {"methods": ["x"]},
            "event.subscribe": {"events": []},
        }
        for step, now in (
            ("event.publish", "connected"),
            ("registry.register", "connected"),
            ("event.publish", "connected"),
            ("event.subscribe", "registered"),
        ):
            params = steps[step]
            if step == "event.publish":
                await d.notify(step, params)
                await d.settle()
            else:
                state = (await d.result(step, params)).get("state", state)
            error = await on.a.error("d.x", {})
            assert (error["code"], error["data"]["state"]) == (-32001, now), step
        await d.result("event.publish", {"event": "module.ready", "data": {}})
        await on.a.event("module.ready")
        ident = await on.a.ask("d.x", {})
        await d.reply(await d.request("x"), "ready")
        assert (await on.a.answer_to(ident))["result"] == "ready"
        assert len([line for line in on.logs if line["log_level"] == "error"]) >= 1


async def test_w30_what_a_module_says_of_itself_counts_for_its_sender() -> None:
    async with stage("a", "c") as on:
        b = await on.connect("b")
        await b.result("event.subscribe", {"events": []})
        await b.result("registry.register", {"methods": []})
        on.a.take()
        await b.publish("module.ready", {"module_id": "c"})
        assert (await on.a.event("module.ready"))["data"]["module_id"] == "b"
        await b.publish("module.exiting", {"module_id": "c"})
        assert (await on.a.event("module.exiting"))["data"]["module_id"] == "b"
        await b.goodbye()
        assert (await on.a.event("module.offline"))["data"]["module_id"] == "b"
        assert (await on.a.result("registry.get_module", {"module_id": "c"}))["state"] == "ready"


async def test_w31_a_service_goes_on_with_the_members_that_are_left() -> None:
    async with stage("a") as on:
        on.set_tokens(**{f"r{n}": f"token-of-r{n}-0123456789" for n in (1, 2, 3)})
        served: dict[str, int] = {}

        async def serve(name: str) -> None:
            while True:
                request = await on.peers[name].request("run", 10_000)
                served[name] = served.get(name, 0) + 1
                await on.peers[name].reply(request, name)

        for name in ("r1", "r2", "r3"):
            await on.ready(name, ["run"], service="resize")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, "r1")
            nursery.start_soon(serve, "r3")
            in_hand = [await on.a.ask("resize.run", {}) for _ in range(6)]
            await on.r2.request("run")
            await on.r2.publish("module.exiting", {})
            await on.r2.cut()
            answers = [await on.a.answer_to(ident) for ident in in_hand]
            lost = [answer for answer in answers if "error" in answer]
            assert lost
            assert {(answer["error"]["code"], answer["error"]["data"]["outcome"]) for answer in lost} == {
                (-32002, "unknown")
            }
            for _ in range(30):
                assert await on.a.result("resize.run", {}) in ("r1", "r3")
            await on.ready("r2", ["run"], instance="i2", service="resize")
            nursery.start_soon(serve, "r2")
            await on.a.until(lambda m: is_event("module.ready")(m) and m["params"]["data"]["module_id"] == "r2")
            served.clear()
            async with trio.open_nursery() as asking:
                for _ in range(30):
                    asking.start_soon(on.a.result, "resize.run", {})
            assert set(served) == {"r1", "r2", "r3"}
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("methods", "code"),
    [
        ("run", -32602),
        ([""], -32602),
        (["a\nb"], -32602),
        (["good", "twice", "twice"], -32602),
        ([f"m{n}" for n in range(100_000)], -32600),
        ([5], -32602),
        ({"run": {}}, -32602),
    ],
    ids=["text", "empty", "newline", "twice", "100,000", "number", "object"],
)
async def test_w32_a_registration_with_one_wrong_name_registers_nothing(methods: Any, code: int) -> None:
    async with stage("a") as on:
        d = await on.connect("d")
        await d.result("event.subscribe", {"events": []})
        error = await d.error("registry.register", {"methods": methods})
        assert error["code"] == code
        assert "methods" in json.dumps(error)
        row = await on.a.result("registry.get_module", {"module_id": "d"})
        assert (row["state"], row["methods"]) == ("connected", [])
