"""The relay's wire over real processes: the way in, what a role may do, limits, the end of sessions.

Cases X-03, X-22 … X-34 of the security page; spec 80 §1, 05 §9.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from tests.support.relay_box import PASSWORD, Page, RelayBox, page, relay_box, totp
from trio_websocket import open_websocket_url

from kite_modules.relay.accounts import Made


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayBox]:
    with relay_box(tmp_path_factory.mktemp("relay"), roles=("callee", "ear")) as made:
        yield made


_addresses = iter(f"127.0.1.{number}" for number in range(1, 250))


@pytest.fixture
def address() -> str:
    """An address of its own: limits of one test never meet another's."""
    return next(_addresses)


@asynccontextmanager
async def inside(box: RelayBox, made: Made, address: str) -> AsyncIterator[Page]:
    async with page(box, address) as opened:
        assert (await opened.log_in(made))["stage"] == "open"
        yield opened


@asynccontextmanager
async def module(box: RelayBox, name: str, *, events: tuple[str, ...] = ()) -> AsyncIterator[Page]:
    """Be a module beside the relay, that answers `echo` with what it was sent."""
    async with open_websocket_url(f"{box.kernel.url}/ws") as wire:
        made = Page(wire)
        await made.ask("auth", {"token": box.kernel.tokens[name]})
        await made.ask("event.subscribe", {"events": list(events)})
        await made.ask("registry.register", {"methods": ["echo", "slow"], "accepts_meta": True})
        await made.send('{"jsonrpc":"2.0","method":"event.publish","params":{"event":"module.ready","data":{}}}')
        await made.ask("kernel.info")
        yield made


async def serve(callee: Page) -> None:
    """Answer `echo`; leave `slow` waiting."""
    while True:
        frame = await callee.get()
        if frame.get("method", "").endswith("echo"):
            answer = {"params": frame["params"], "meta": frame.get("meta")}
            await callee.send(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": answer}))
        else:
            callee.notes.append(frame)


# ------------------------------------------------------------------ the way in


async def test_login_to_the_letter(box: RelayBox, address: str) -> None:
    made = box.user()
    async with page(box, address) as opened:
        assert (await opened.password(made.name))["result"] == {"stage": "totp"}
        answer = (await opened.ask("login.totp", {"code": totp(made)}))["result"]
        assert set(answer) == {"stage", "user", "role", "session", "session_expires_s"}
        assert (answer["stage"], answer["user"], answer["role"]) == ("open", made.name, "operator")
        assert 0 < answer["session_expires_s"] <= 12 * 3600
        assert (await opened.ask("relay.whoami"))["result"]["user"] == made.name


async def test_a_personal_token_replaces_the_password_not_the_code(box: RelayBox, address: str) -> None:
    made = box.user()
    token = box.accounts.set_token(made.name)
    async with page(box, address) as opened:
        assert (await opened.ask("login.token", {"nonce": opened.nonce, "token": token}))["result"] == {"stage": "totp"}
        assert (await opened.ask("login.totp", {"code": totp(made)}))["result"]["stage"] == "open"
    async with page(box, address) as opened:
        await opened.ask("login.token", {"nonce": opened.nonce, "token": "x"})
        assert await opened.closed() == 4001


@pytest.mark.parametrize("method", ["greeter.greet", "event.subscribe", "kernel.info", "relay.whoami", "login.other"])
async def test_nothing_but_the_login_before_open(box: RelayBox, address: str, method: str) -> None:
    async with page(box, address) as opened:
        error = (await opened.ask(method, {"events": [">"]}))["error"]
        assert (error["code"], error["data"]) == (-32004, {"reason": "not_open", "outcome": "not_sent"})
        error = (await opened.ask("auth", {"token": "x"}))["error"]
        assert (error["code"], error["data"]["outcome"]) == (-32601, "not_sent")


async def test_wrong_password_unknown_user_and_removed_user_look_the_same(box: RelayBox, address: str) -> None:
    made, gone = box.user(), box.user()
    box.accounts.remove(gone.name)
    answers = []
    for name, password in ((made.name, "wrong"), ("nobody at all", PASSWORD), (gone.name, PASSWORD)):
        async with page(box, address) as opened:
            error = (await opened.password(name, password))["error"]
            assert await opened.closed() == 4001
            answers.append(error)
    assert answers[0]["code"] == -32010
    assert answers[0]["data"] == {"close": 4001, "reason": "auth_failed"}
    assert answers[0] == answers[1] == answers[2]


async def test_a_nonce_is_of_one_wire_and_good_once(box: RelayBox, address: str) -> None:
    made = box.user()
    async with page(box, address) as one, page(box, address) as other:
        other.nonce = one.nonce
        assert (await other.password(made.name))["error"]["data"]["close"] == 4001
        assert await other.closed() == 4001
        assert (await one.password(made.name))["result"] == {"stage": "totp"}
        assert (await one.password(made.name))["error"]["data"]["close"] == 4001
        assert await one.closed() == 4001


async def test_a_code_before_the_password_is_malformed(box: RelayBox, address: str) -> None:
    async with page(box, address) as opened:
        await opened.ask("login.totp", {"code": "123456"})
        assert await opened.closed() == 4003


@pytest.mark.parametrize("code", ["12345", "1234567", " 123456", "١٢٣٤٥٦", "1e5", "9" * 5000, 123456, None])
async def test_codes_of_a_wrong_form_are_wrong_codes(box: RelayBox, address: str, code: Any) -> None:
    made = box.user()
    async with page(box, address) as opened:
        await opened.password(made.name)
        error = (await opened.ask("login.totp", {"code": code}))["error"]
        assert (error["message"], error["data"]["close"]) == ("the code is wrong", 4004)
        assert await opened.closed() == 4004


async def test_a_code_opens_one_door(box: RelayBox, address: str) -> None:
    made = box.user()
    ends: list[int] = []
    opened: list[str] = []
    ready = trio.Event()
    waiting: list[None] = []

    async def one(source: str) -> None:
        async with page(box, source) as wire:
            await wire.password(made.name)
            waiting.append(None)
            await ready.wait()
            answer = await wire.ask("login.totp", {"code": code})
            if "result" in answer:
                opened.append(answer["result"]["stage"])
            else:
                ends.append(await wire.closed())

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(one, address)
        while len(waiting) < 12:
            await trio.sleep(0.01)
        code = totp(made)
        ready.set()
    assert opened == ["open"]
    assert set(ends) <= {4004, 4020}
    assert len(ends) == 11


async def test_the_21st_try_is_one_too_many_by_user_and_by_address(box: RelayBox, address: str) -> None:
    made = box.user()
    seen: list[int] = []

    async def one(user: str, source: str, headers: dict[str, str]) -> None:
        async with page(box, source, headers) as opened:
            answer = await opened.password(user, "wrong")
            assert answer["error"]["data"]["reason"] in ("auth_failed", "rate_limited")
            assert ("retry_after" in answer["error"]["data"]) == (await opened.closed() == 4020)
            seen.append(answer["error"]["data"]["close"])

    async with trio.open_nursery() as nursery:
        for number in range(21):
            nursery.start_soon(one, made.name, f"127.0.2.{number + 1}", {})
    assert sorted(seen) == [4001] * 20 + [4020]
    async with trio.open_nursery() as nursery:
        for number in range(21):
            nursery.start_soon(one, f"name{number}", address, {"x-forwarded-for": f"10.0.0.{number}"})
    assert sorted(seen) == [4001] * 40 + [4020] * 2


async def test_too_big_and_binary_end_the_wire(box: RelayBox, address: str) -> None:
    async with page(box, address) as opened:
        await opened.send("x" * 20_000)
        assert await opened.closed() == 1009
    async with page(box, address) as opened:
        await opened.send(b"\x00\x01")
        assert await opened.closed() == 1003
    async with page(box, address) as opened:
        with trio.move_on_after(20):
            try:
                for _ in range(200):
                    await opened.send("y" * 100_000)
            except Exception:
                pass
        assert await opened.closed() == 1009


# ------------------------------------------------------------------ sessions


async def test_a_session_comes_back_silently_and_ends_when_revoked(box: RelayBox, address: str) -> None:
    made = box.user()
    async with inside(box, made, address), page(box, address) as first:
        session = (await first.log_in(made))["session"]
        async with page(box, address) as again:
            answer = (await again.ask("login.resume", {"nonce": again.nonce, "session": session}))["result"]
            assert (answer["stage"], answer["user"]) == ("open", made.name)
            rows = (await again.ask("relay.sessions"))["result"]["sessions"]
            mine = next(row for row in rows if row["mine"])
            assert len(rows) == 2
            assert session not in json.dumps(rows)
            await again.ask("relay.revoke", {"id": mine["id"]})
            assert await again.closed() == 4001
            assert await first.closed() == 4001
        async with page(box, address) as late:
            await late.ask("login.resume", {"nonce": late.nonce, "session": session})
            assert await late.closed() == 4001


async def test_one_logout_leaves_the_other_session(box: RelayBox, address: str) -> None:
    made = box.user()
    async with inside(box, made, address) as one, inside(box, made, address) as other:
        await one.ask("relay.logout")
        assert await one.closed() == 4001
        assert "result" in await other.ask("relay.whoami")


@pytest.mark.parametrize("how", ["remove", "reset_totp"])
async def test_all_wires_of_a_user_end_with_the_account(box: RelayBox, address: str, how: str) -> None:
    made = box.user()
    async with inside(box, made, address) as one, inside(box, made, address) as other:
        getattr(box.accounts, how)(made.name)
        began = time.monotonic()
        assert [await one.closed(), await other.closed()] == [4001, 4001]
        assert time.monotonic() - began < 10


async def test_the_very_next_request_is_judged_by_the_new_role(box: RelayBox, address: str) -> None:
    made = box.user("admin")
    async with inside(box, made, address) as opened:
        assert (await opened.ask("fact.list")).get("error", {}).get("data", {}).get("reason") != "viewer"
        box.accounts.set_role(made.name, "viewer")
        error = (await opened.ask("event.publish", {"event": "x.y", "data": 1}))["error"]
        assert error["data"]["reason"] == "no_permission"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of httpx, a body half sent
async def test_the_cookie_of_a_session_is_kept_from_scripts(box: RelayBox, address: str) -> None:
    made = box.user()
    async with page(box, address) as opened:
        session = (await opened.log_in(made))["session"]
        async with httpx.AsyncClient(base_url=box.url) as web:
            answer = await web.post("/session", json={"session": session})
            assert answer.status_code == 204
            cookie = answer.headers["set-cookie"]
            assert {"HttpOnly", "Secure", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
            assert (await web.get("/session")).status_code == 405
            assert (await web.post("/session", data={"session": session})).status_code == 403
            text = await web.post(
                "/session", content=json.dumps({"session": session}), headers={"content-type": "text/plain"}
            )
            assert (text.status_code, "set-cookie" in text.headers) == (403, False)
            foreign = await web.post("/session", json={"session": session}, headers={"origin": "http://evil.example"})
            assert (foreign.status_code, "set-cookie" in foreign.headers) == (403, False)
            wrong = await web.post("/session", json={"session": "x"})
            assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
            huge = await web.post("/session", content=b"x" * 100_000, headers={"content-type": "application/json"})
            assert huge.status_code == 413
        gc.collect()
        async with page(box, address, {"cookie": cookie.partition(";")[0]}) as again:
            answer = (await again.ask("login.resume", {"nonce": again.nonce}))["result"]
            assert (answer["stage"], answer["session"]) == ("open", None)


# ------------------------------------------------------------------ after open


async def test_a_call_reaches_the_module_with_who_really_asks(box: RelayBox, address: str) -> None:
    made = box.user()
    async with module(box, "callee") as callee, inside(box, made, address) as opened, trio.open_nursery() as nursery:
        nursery.start_soon(serve, callee)
        sent = {"user": "admin", "role": "admin", "n": 12345678901234567890}
        answer = await opened.ask("callee.echo", sent, meta={"caller": "o"}, user="admin", role="admin")
        assert answer["result"]["params"] == sent
        assert answer["result"]["meta"]["caller"] == "relay"
        assert answer["result"]["meta"]["tracestate"] == f"kite=user:{made.name};role:operator"
        nursery.cancel_scope.cancel()


async def test_a_viewer_sees_and_changes_nothing(box: RelayBox, address: str) -> None:
    made = box.user("viewer")
    refused = ["launcher.stop", "event.publish", "ownership.release", "fact.list", "Registry.list_modules", "chat.send"]
    async with module(box, "ear", events=("relay.request",)) as ear, inside(box, made, address) as opened:
        for method in refused:
            assert (await opened.ask(method))["error"]["data"] == {"reason": "no_permission", "outcome": "not_sent"}
        batch = [{"jsonrpc": "2.0", "id": number, "method": method} for number, method in enumerate(refused)]
        await opened.send(json.dumps(batch))
        answers = await opened.get()
        assert [row["error"]["code"] for row in answers] == [-32004] * len(refused)
        assert "result" in await opened.ask("registry.list_modules")
        trail: list[tuple[str, str, str]] = []
        while len(trail) < 2 * len(refused) + 1:
            event = await ear.note("event")
            if event["event"] == "relay.request" and event["data"]["user"] == made.name:
                trail.append((event["data"]["method"], event["data"]["verdict"], event["data"]["role"]))
        assert trail == [(method, "refused", "viewer") for method in refused * 2] + [
            ("registry.list_modules", "allowed", "viewer")
        ]


async def test_events_are_heard_and_the_systems_own_words_not_forged(box: RelayBox, address: str) -> None:
    one, other = box.user(), box.user("viewer")
    async with inside(box, one, address) as speaker, inside(box, other, address) as hearer:
        assert (await hearer.ask("event.subscribe", {"events": ["shop.*"]}))["result"] == {"events": ["shop.*"]}
        for name in ("module.exiting", "system.ping", "relay.alarm", "launcher.alarm"):
            error = (await speaker.ask("event.publish", {"event": name, "data": {}}))["error"]
            assert error["data"]["reason"] == "reserved_event"
        await speaker.send('{"jsonrpc":"2.0","method":"event.publish","params":{"event":"module.exiting"}}')
        await speaker.ask("event.publish", {"event": "other.x", "data": 0})
        await speaker.ask("event.publish", {"event": "shop.sold", "data": {"n": 1}})
        heard = await hearer.note("event")
        while heard["event"].startswith(("module.", "system.")):
            heard = await hearer.note("event")
        assert (heard["event"], heard["data"], heard["source"]) == ("shop.sold", {"n": 1}, "relay")
        await hearer.ask("event.unsubscribe", {"events": ["shop.*"]})
        assert "error" in await hearer.ask("event.subscribe", {"events": ["a..b"]})


async def test_what_is_not_there_and_what_is_no_request(box: RelayBox, address: str) -> None:
    async with inside(box, box.user("admin"), address) as opened:
        assert (await opened.ask("callee.nothing"))["error"]["code"] in (-32601, -32001)
        assert (await opened.ask("relay.nothing"))["error"]["code"] == -32601
        assert (await opened.ask("auth", {"token": "x"}))["error"]["code"] == -32601
        assert (await opened.ask("registry.register", {"methods": ["x"]}))["error"]["code"] == -32004
        for text, code in (
            ("nonsense", -32700),
            ('{"jsonrpc":"2.0","id":1,"method":"x.y","params":{"a":NaN}}', -32700),
            ('{"jsonrpc":"2.0","id":1,"method":"x.y","params":' + "[" * 70 + "]" * 70 + "}", -32600),
            ('{"jsonrpc":"2.0","id":1,"method":"x.y","params":3}', -32600),
            ('{"jsonrpc":"1.0","id":1,"method":"x.y"}', -32600),
            ("[]", -32600),
            ('{"jsonrpc":"2.0","id":1,"method":"x.y","params":["\\ud800"]}', -32700),
        ):
            await opened.send(text)
            assert (await opened.get())["error"]["code"] == code, text
        assert "result" in await opened.ask("relay.whoami")


async def test_a_call_can_be_cancelled_and_too_many_at_once_are_refused(box: RelayBox, address: str) -> None:
    async with (
        module(box, "callee") as callee,
        inside(box, box.user(), address) as opened,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve, callee)
        for number in range(40):
            await opened.send(json.dumps({"jsonrpc": "2.0", "id": f"s{number}", "method": "callee.slow"}))
        over = [await opened.get() for _ in range(8)]
        assert {row["error"]["data"]["reason"] for row in over} == {"too_many_in_flight"}
        assert all(row["error"]["data"]["retry_after"] for row in over)
        await opened.send('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"s3"}}')
        answer = await opened.get()
        assert (answer["id"], answer["error"]["code"]) == ("s3", -32800)
        nursery.cancel_scope.cancel()


async def test_one_who_floods_is_slowed_and_cut_and_others_go_on(box: RelayBox, address: str) -> None:
    flood, calm = box.user(), box.user("viewer")
    async with inside(box, calm, address) as other, inside(box, flood, address) as opened:
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "registry.list_modules"})
        with trio.move_on_after(3):
            for _ in range(3000):
                await opened.send(message)
        reasons = [
            frame.get("error", {}).get("data", {}).get("reason") for frame in [await opened.get() for _ in range(600)]
        ]
        assert "rate" in reasons
        assert await opened.closed() == 4011
        began = time.monotonic()
        assert "result" in await other.ask("relay.whoami")
        assert time.monotonic() - began < 5


# ------------------------------------------------------------------ HTTP


async def raw(box: RelayBox, request: str) -> int:
    stream = await trio.open_tcp_stream("127.0.0.1", box.port)
    async with stream:
        await stream.send_all(request.encode())
        data = b""
        with trio.move_on_after(10):
            while b"\r\n" not in data and (chunk := await stream.receive_some(4096)):
                data += chunk
    return int(data.split(b" ")[1]) if data else 0


@pytest.mark.parametrize(
    ("request_line", "host", "status"),
    [
        ("GET / HTTP/1.1", "127.0.0.1", 200),
        ("GET /healthz HTTP/1.1", "localhost:1", 200),
        ("GET http://inner/ HTTP/1.1", "127.0.0.1", 400),
        ("CONNECT inner:80 HTTP/1.1", "127.0.0.1", 405),
        ("GET /static/../../x HTTP/1.1", "127.0.0.1", 404),
        ("GET /static/%2e%2e/web.py HTTP/1.1", "127.0.0.1", 404),
        ("GET /static/..%2fweb.py HTTP/1.1", "127.0.0.1", 404),
        ("GET / HTTP/1.1", "inner.example", 403),
        ("GET / HTTP/1.1", "10.0.0.1", 403),
        ("GET / HTTP/1.1", "127.0.0.1.evil.example", 403),
        ("GET /ws HTTP/1.1", "127.0.0.1", 426),
        ("GET /nothing HTTP/1.1", "127.0.0.1", 404),
        ("POST / HTTP/1.1", "127.0.0.1", 405),
    ],
)
async def test_plain_requests_get_what_they_deserve(box: RelayBox, request_line: str, host: str, status: int) -> None:
    assert await raw(box, f"{request_line}\r\nHost: {host}\r\nConnection: close\r\n\r\n") == status


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/ws", {"origin": "http://evil.example"}, 403),
        ("/ws", {"origin": "null"}, 403),
        ("/ws", {"origin": "http://127.0.0.1:9"}, 403),
        ("/other", {}, 404),
        ("/ws?token=x", {}, 400),
        ("/ws", {}, 101),
    ],
)
async def test_a_foreign_upgrade_is_refused_before_101(
    box: RelayBox, path: str, headers: dict[str, str], status: int
) -> None:
    wanted = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"} | headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in wanted.items())
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    assert await raw(box, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{box.port}\r\n{lines}{key}\r\n\r\n") == status


async def test_every_page_carries_a_strict_policy(box: RelayBox) -> None:
    async with httpx.AsyncClient(base_url=box.url) as web:
        answer = await web.get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_no_secret_is_ever_logged(box: RelayBox) -> None:
    log = box.log.read_text("utf-8")
    assert PASSWORD not in log
    assert box.kernel.tokens["relay"] not in log
    assert "Traceback" not in log
