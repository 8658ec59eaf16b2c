"""Cases W-47 to W-51: authentication and its limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.support.frames import client_frame
from tests.support.raw_peer import RawPeer
from tests.support.stage import Stage, stage

from kite_kernel.core.queues import CRITICAL

AUTH: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "auth"}


async def farewell(peer: RawPeer) -> tuple[int | None, list[Any]]:
    """Return the close code and every message before it."""
    closed = await peer.end()
    return closed.code, peer.take()


FIRST_FRAMES: dict[str, Any] = {
    "noise": "x",
    "another method": {"jsonrpc": "2.0", "id": 1, "method": "registry.list_modules", "params": {}},
    "notification": {"jsonrpc": "2.0", "method": "auth", "params": {"token": "token-of-a-0123456789"}},
    "batch": [AUTH | {"params": {"token": "token-of-a-0123456789"}}],
    "array": AUTH | {"params": ["token-of-a-0123456789"]},
    "number": AUTH | {"params": {"token": 5}},
    "no token": AUTH | {"params": {"module_id": "a"}},
    "no params": AUTH,
    "wrong version": {"jsonrpc": "1.0", "id": 1, "method": "auth", "params": {"token": "token-of-a-0123456789"}},
    "wrong resume": AUTH | {"params": {"token": "token-of-a-0123456789", "resume": 7}},
}


@pytest.mark.parametrize("name", FIRST_FRAMES)
async def test_w47_a_first_frame_that_is_no_auth_is_answered_and_closed_4003(name: str) -> None:
    async with stage("c") as on:
        peer = await on.stranger()
        await peer.send(FIRST_FRAMES[name])
        code, messages = await farewell(peer)
        assert code == 4003
        assert messages[0]["error"]["code"] == -32010
        assert messages[0]["error"]["data"]["close"] == 4003
        assert "result" not in json.dumps(messages)
        assert "a" not in on.hub.board.peers
        assert "token-of" not in json.dumps([messages, on.logs], default=str)


async def test_w47_silence_ends_after_five_seconds_with_4002() -> None:
    async with stage("c") as on:
        began = trio.current_time()
        peer = await on.stranger()
        code, _ = await farewell(peer)
        assert code == 4002
        assert 4.5 < trio.current_time() - began < 6.5


@pytest.mark.parametrize("where", ["head", "frame"])
async def test_w47_dribbling_buys_no_time(where: str) -> None:
    async with stage("c") as on:
        began = trio.current_time()
        frame = client_frame(json.dumps(AUTH | {"params": {"token": "x" * 200}}).encode())
        with trio.fail_after(12):
            if where == "frame":
                peer = await on.stranger()
                stream, data = peer.stream, frame
            else:
                stream = await trio.open_tcp_stream("127.0.0.1", on.port)
                data = b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 100
            async with stream:
                try:
                    for at in range(len(data)):
                        await stream.send_all(data[at : at + 1])
                        await trio.sleep(1)
                        if where == "frame" and peer.ended.is_set():
                            break
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
        assert trio.current_time() - began < 9
        if where == "frame":
            assert peer.closed is not None
            assert peer.closed.code in (4002, None)


async def login(on: Stage, name: str, token: str | None = None, **params: Any) -> tuple[int, list[Any]]:
    """Try to authenticate; return 0 or the close code, and what was said."""
    peer = await on.stranger()
    await peer.ask("auth", {"token": token or on.tokens[name], "module_id": name, "protocol": 2} | params)
    message = await peer.until(lambda m: "result" in m or "error" in m)
    if "result" in message:
        on.peers[name] = peer
        return 0, [message]
    code, rest = await farewell(peer)
    assert code is not None
    return code, [message, *rest]


async def test_w48_the_limit_belongs_to_the_pair_of_address_and_module() -> None:
    async with stage("b") as on:
        names = {f"m{n}": f"token-of-m{n}-0123456789" for n in range(300)}
        on.set_tokens(**names)
        assert [(await login(on, "c"))[0] for _ in range(20)] == [0] * 20
        code, messages = await login(on, "c")
        assert code == 4020
        bye = next(m["params"] for m in messages if m.get("method") == "bye")
        assert bye["verdict"] == "back_off"
        assert bye["retry_after_s"] > 0
        assert {(await login(on, name))[0] for name in names} == {0}
        await trio.sleep(bye["retry_after_s"] + 0.1)
        assert (await login(on, "c"))[0] == 0


async def test_w49_bad_tries_never_use_up_a_good_ones_budget() -> None:
    async with stage("b") as on:
        codes = []
        for n in range(60):
            codes.append((await login(on, "c" if n % 2 else "nobody", f"wrong-{n}"))[0])
            if n % 20 == 19:
                began = trio.current_time()
                assert (await login(on, "c"))[0] == 0
                assert trio.current_time() - began < 1
        assert codes == [4001] * 20 + [4020] * 40


async def test_w50_silent_strangers_take_no_modules_place() -> None:
    async with stage("b") as on:
        strangers = []
        for n in range(400):
            strangers.append(await on.stranger())
            if n % 100 == 99:
                await trio.sleep(0.3)
        began = trio.current_time()
        assert (await login(on, "c"))[0] == 0
        assert trio.current_time() - began < 1
        first = await strangers[0].end()
        assert first.code == 4002
        assert trio.current_time() - began < 1.5
        for peer in strangers:
            assert (await peer.end(10)).code == 4002
        assert trio.current_time() - began < 7


async def test_w50_a_first_frame_over_4_kib_is_1009() -> None:
    async with stage("c") as on:
        for size, code in ((4096, 4001), (4097, 1009)):
            text = json.dumps(AUTH | {"params": {"token": ""}})
            text = text.replace('""', '"' + "x" * (size - len(text)) + '"')
            assert len(text) == size
            peer = await on.stranger()
            await peer.send(text)
            assert (await peer.end()).code == code


async def test_w51_protocol_1_is_told_the_old_numbers() -> None:
    async with stage("b", "c") as on:
        for protocol, replaced, limited in ((1, 4000, 4029), (2, 4010, 4020)):
            name = f"old{protocol}"
            on.set_tokens(**{name: f"token-of-{name}-0123456789"})
            await login(on, name, protocol=protocol)
            first = on.peers[name]
            await login(on, name, protocol=protocol)
            assert (await first.end()).code == replaced
            codes = [(await login(on, name, protocol=protocol))[0] for _ in range(19)]
            assert codes == [0] * 18 + [limited]
            silent = await on.stranger()
            await silent.send(AUTH | {"params": {"token": "wrong", "protocol": protocol}})
            assert (await silent.end()).code == 4001


@pytest.mark.parametrize(("protocol", "code"), [(1, 4010), (2, 4011)])
async def test_w51_the_pressure_cut_has_an_old_number_too(protocol: int, code: int) -> None:
    async with stage("c") as on:
        await login(on, "a", protocol=protocol)
        await on.a.result("event.subscribe", {"events": ["x.t"]})
        on.a.stop_reading()
        one = client_frame(
            json.dumps(
                {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "x.t", "data": "y" * 50_000}}
            ).encode()
        )
        with trio.fail_after(60):
            while on.hub.board.peers["a"].link is not None:
                await on.c.send_bytes(one * 5)
                await on.c.settle()
                if on.hub.board.peers["a"].pressure == CRITICAL:
                    on.a.read_again(on.nursery)  # there is room for the farewell
                    on.a.stop_reading()
                    await trio.sleep(0.5)
        on.a.read_again(on.nursery)
        closed = await on.a.end()
        assert closed.code in (code, None)
        assert (await on.closed_record("a"))["code"] == 4011
