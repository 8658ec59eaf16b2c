"""The relay's pure rooms and its file: the login's table, limits, roles, accounts, frames, guard, picture, fan-out.

Cases X-22 … X-28, X-31, X-34.
"""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyotp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kite_modules.relay import fanout, frames, guard, limits, login, picture, roles
from kite_modules.relay.accounts import Accounts, Locked, Made, User, Wrong, hash_of, is_name, verify
from kite_modules.relay.wire import FRAMES_MAX, Wire

# ------------------------------------------------------------------ login

REQUESTS: dict[str, tuple[str, Any]] = {
    "call": ("greeter.greet", {}),
    "subscribe": ("event.subscribe", {"events": [">"]}),
    "auth": ("auth", {"token": "x"}),
    "login": ("login", {"nonce": "N", "user": "u", "password": "p"}),
    "token": ("login.token", {"nonce": "N", "token": "t"}),
    "totp": ("login.totp", {"code": "123456"}),
    "resume": ("login.resume", {"nonce": "N", "session": "noise"}),
}


def walk(order: tuple[str, ...]) -> str:
    """Send these requests, everything right but the session; returns `open`, `closed` or `not open`."""
    way = login.Login("N")
    for name in order:
        step = way.on_request(*REQUESTS[name])
        match step:
            case login.Close():
                return "closed"
            case login.CheckPassword() | login.CheckToken():
                way.password_checked("u")
            case login.CheckCode():
                assert way.code_checked(right=True) is None
                return "open"
            case login.CheckSession():
                assert way.resumed(None) is not None
                return "closed"
            case login.Refuse(code):
                assert code == (-32601 if name == "auth" else -32004)
            case login.Answer():
                raise AssertionError("nothing is answered at once")
    return "not open"


def test_only_the_right_order_opens() -> None:
    noise = {"call", "subscribe", "auth"}
    for length in range(1, 6):
        for order in itertools.product(REQUESTS, repeat=length):
            told = [name for name in order if name not in noise]
            opened = walk(order) == "open"
            assert opened == (told[:2] in (["login", "totp"], ["token", "totp"])), order


def test_a_nonce_is_used_up_by_a_wrong_try() -> None:
    way = login.Login("N")
    assert isinstance(way.on_request("login", {"nonce": "M", "user": "u", "password": "p"}), login.Close)
    assert isinstance(way.on_request("login", {"nonce": "N", "user": "u", "password": "p"}), login.Close)


# ------------------------------------------------------------------ limits


def test_the_window_lets_twenty_through_in_ten_seconds() -> None:
    window = limits.Window()
    assert [window.take("a", now=float(n) / 10) for n in range(20)] == [None] * 20
    wait_s = window.take("a", "b", now=2.0)
    assert wait_s == pytest.approx(8.0)
    assert window.take("a", now=10.5) is None


def test_thirty_days_of_guessing_succeed_less_than_once_in_a_thousand() -> None:
    """An attacker who knows the password, tries whenever the account lets him, while its owner logs in every day."""
    now, failures, guesses, next_visit = 0.0, 0, 0, 86400.0
    while now < 30 * 86400:
        guesses += 1
        failures += 1
        now += max(0.001, limits.code_delay_s(failures))
        if now >= next_visit:
            failures = max(0, failures - limits.FORGIVEN)
            next_visit += 86400.0
    chance = 1 - (1 - 3e-6) ** guesses
    assert chance < 0.001, guesses


def test_a_bucket_refills() -> None:
    bucket = limits.Bucket(now=0.0)
    for _ in range(int(limits.RATE_BURST)):
        assert bucket.take(now=0.0) is None
    wait_s = bucket.take(now=0.0)
    assert wait_s is not None
    assert bucket.take(now=wait_s + 0.001) is None


# ------------------------------------------------------------------ roles


@pytest.mark.parametrize(
    ("method", "who"),
    [
        ("registry.list_modules", "viewer operator admin"),
        ("greeter.health", "viewer operator admin"),
        ("launcher.why", "viewer operator admin"),
        ("logs.query", "viewer operator admin"),
        ("launcher.restart", "operator admin"),
        ("greeter.greet", "operator admin"),
        ("chat.send", "operator admin"),
        ("event.publish", "operator admin"),
        ("stream.publish", "operator admin"),
        ("launcher.down", "admin"),
        ("fact.list", "admin"),
        ("kernel.drain", "admin"),
        ("ownership.release", "admin"),
        ("audit.query", "admin"),
        ("audit.append", "admin"),
        ("backup.restore", "admin"),
        ("registry.register", ""),
        ("replica.register", ""),
    ],
)
def test_roles(method: str, who: str) -> None:
    assert [role for role in roles.ROLES if roles.may_call(role, method)] == who.split()
    assert not roles.may_call("", method)
    assert not roles.may_call("viewer", method.upper())


# ------------------------------------------------------------------ accounts


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounts(tmp_path: Path, clock: Clock) -> Iterator[Accounts]:
    made = Accounts(tmp_path / "accounts.db", clock=clock)
    yield made
    made.close()


def code_of(made: Made, clock: Clock, steps: int = 0) -> str:
    return pyotp.TOTP(made.secret).at(int(clock.now) + 30 * steps)


def add(accounts: Accounts, name: str = "ada") -> Made:
    made = accounts.add(name, "operator", "correct horse")
    assert made is not None
    return made


def test_a_code_counts_once_and_never_an_earlier_one(accounts: Accounts, clock: Clock, tmp_path: Path) -> None:
    made = add(accounts)
    assert accounts.check_code("ada", code_of(made, clock, -2), recovery=False) == Wrong(1)
    assert accounts.check_code("ada", code_of(made, clock), recovery=False) == User("ada", "operator")
    assert isinstance(accounts.check_code("ada", code_of(made, clock), recovery=False), Wrong)
    assert isinstance(accounts.check_code("ada", code_of(made, clock, -1), recovery=False), Wrong)
    second = Accounts(tmp_path / "accounts.db", clock=clock)  # a restart forgets nothing
    assert isinstance(second.check_code("ada", code_of(made, clock), recovery=False), Wrong)
    assert second.check_code("ada", code_of(made, clock, 1), recovery=False) == User("ada", "operator")
    second.close()


def test_recovery_codes_count_once(accounts: Accounts) -> None:
    made = add(accounts)
    assert len(set(made.recovery_codes)) == 10
    assert accounts.check_code("ada", made.recovery_codes[0], recovery=True) == User("ada", "operator")
    assert isinstance(accounts.check_code("ada", made.recovery_codes[0], recovery=True), Wrong)


def test_the_delay_belongs_to_the_account_and_grows(accounts: Accounts, clock: Clock) -> None:
    made = add(accounts)
    for number in range(1, limits.FREE_FAILURES + 1):
        assert accounts.check_code("ada", "000000", recovery=False) == Wrong(number)
    assert accounts.check_code("ada", code_of(made, clock), recovery=False) == Locked(limits.DELAY_S)
    clock.now += limits.DELAY_S + 1
    accounts.check_code("ada", "000000", recovery=False)
    locked = accounts.check_code("ada", "000000", recovery=False)
    assert locked == Locked(2 * limits.DELAY_S)
    clock.now += 2 * limits.DELAY_S + 1
    assert accounts.check_code("ada", code_of(made, clock), recovery=False) == User("ada", "operator")


def test_sessions_end_by_time_by_hand_and_with_the_user(accounts: Accounts, clock: Clock) -> None:
    add(accounts)
    session = accounts.open_session("ada", "127.0.0.1")
    hashed = hash_of(session)
    assert accounts.living(idle_s=100, max_s=250) == {hashed}
    clock.now += 90
    found = accounts.use_session(hashed, idle_s=100, max_s=250)
    assert found is not None
    assert found.ends_at == clock.now + 100
    clock.now += 90
    found = accounts.use_session(hashed, idle_s=100, max_s=250)
    assert found is not None
    assert found.ends_at == clock.now + 70  # the absolute limit
    clock.now += 71
    assert accounts.living(idle_s=100, max_s=250) == set()
    assert accounts.use_session(hashed, idle_s=100, max_s=250) is None
    other = hash_of(accounts.open_session("ada"))
    accounts.remove("ada")
    assert accounts.use_session(other, idle_s=100, max_s=250) is None


def test_secrets_are_stored_as_hashes_in_a_private_file(accounts: Accounts, tmp_path: Path) -> None:
    made = add(accounts)
    session = accounts.open_session("ada")
    token = accounts.set_token("ada")
    assert token is not None
    assert accounts.check_token(token) == "ada"
    assert accounts.check_token("other") is None
    files = list(tmp_path.glob("accounts.db*"))
    stored = b"".join(path.read_bytes() for path in files)
    for secret in ("correct horse", session, token, *made.recovery_codes):
        assert secret.encode() not in stored
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert repr(made).count(made.secret) == 0


def test_a_taken_name_and_an_unknown_one(accounts: Accounts) -> None:
    add(accounts)
    assert accounts.add("ada", "viewer", "other") is None
    assert verify(accounts.password_of("ada"), "correct horse")
    assert not verify(accounts.password_of("ada"), "wrong")
    assert not verify(accounts.password_of("nobody"), "")
    assert accounts.reset_totp("nobody") is None
    assert accounts.set_token("nobody") is None
    assert accounts.remove("nobody") is False


@pytest.mark.parametrize(
    ("name", "good"),
    [("ada", True), ("艾达", True), ("<img>", True), ("", False), (" a", False), ("a\n", False), ("x" * 65, False)],
)
def test_names(name: str, good: bool) -> None:
    assert is_name(name) is good


# ------------------------------------------------------------------ frames


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    frames.read(text)


@pytest.mark.parametrize("ident", ["1", "1.0", '"1"', "1e3", "9007199254740993", "null", '""'])
def test_ids_and_params_keep_their_text(ident: str) -> None:
    read = frames.read('{"jsonrpc":"2.0","id":' + ident + ',"method":"a.b","params":{"x":1.0, "y":[ ]}}')
    assert isinstance(read, frames.Request)
    assert (read.id, read.params) == (ident, '{"x":1.0, "y":[ ]}')
    assert json.loads(frames.result(ident, {"a": 1})) == {"jsonrpc": "2.0", "id": json.loads(ident), "result": {"a": 1}}


def test_answers_of_a_browser_are_dropped() -> None:
    assert frames.read('{"jsonrpc":"2.0","id":1,"result":1}') == frames.Answered()


def test_deep_and_long_things_are_refused() -> None:
    deep = '{"jsonrpc":"2.0","id":1,"method":"a.b","params":' + "[" * 63 + "]" * 63 + "}"
    assert frames.read(deep) == frames.Bad(-32600, "too_deep")
    text = '{"jsonrpc":"2.0","id":1,"method":"a.b","params":["' + "[" * 500 + '"]}'
    assert isinstance(frames.read(text), frames.Request)
    long = '{"jsonrpc":"2.0","id":1,"method":"a.b","params":[' + "9" * 401 + "]}"
    assert frames.read(long) == frames.Bad(-32700, "number_too_long")


# ------------------------------------------------------------------ guard


def judged(path: str = "/", host: str | None = "127.0.0.1:7391", origin: str | None = None, **more: Any) -> int | None:
    headers = {"host": [] if host is None else [host]} | ({} if origin is None else {"origin": [origin]})
    settings: dict[str, Any] = {"method": "GET", "local": "127.0.0.1", "secure": True, "origins": (), **more}
    found = guard.judge(path=path, headers=headers, **settings)
    return None if found is None else found.status


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, None),
        ({"host": "localhost"}, None),
        ({"host": "[::1]:7391"}, None),
        ({"host": None}, 400),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "localhost@evil.example"}, 403),
        ({"host": "127.0.0.1:99999"}, 403),
        ({"host": "192.168.1.5:7391"}, 403),
        ({"host": "192.168.1.5:7391", "local": "192.168.1.5"}, None),
        ({"host": "box.lan", "origins": ("https://box.lan",)}, None),
        ({"origin": "https://127.0.0.1:7391"}, None),
        ({"origin": "http://127.0.0.1:7391"}, 403),
        ({"origin": "https://127.0.0.1:7392"}, 403),
        ({"origin": "https://box.lan", "origins": ("https://box.lan",)}, None),
        ({"origin": "null"}, 403),
        ({"method": "CONNECT", "path": "inner:80"}, 405),
        ({"path": "http://inner/"}, 400),
    ],
)
def test_who_may_ask(asked: dict[str, Any], status: int | None) -> None:
    assert judged(**asked) == status


def test_the_cookie_is_found_among_others() -> None:
    assert guard.cookie_of({"cookie": ["a=1; kite_session=S; b=2"]}) == "S"
    assert guard.cookie_of({"cookie": ["kite_session="]}) is None
    assert guard.cookie_of({}) is None


# ------------------------------------------------------------------ picture and fan-out


def test_only_what_changed_is_told() -> None:
    old: dict[str, picture.Row] = {"a": {"name": "a", "n": 1}, "b": {"name": "b"}, "c": {"name": "c"}}
    new: dict[str, picture.Row] = {"a": {"name": "a", "n": 2}, "b": {"name": "b"}, "d": {"name": "d"}}
    assert picture.changes(old, new) == ([{"name": "a", "n": 2}, {"name": "d"}], ["c"])


def test_rows_join_launcher_kernel_and_process() -> None:
    status = {"modules": [{"name": "a", "state": "running", "pid": 7, "restarts": 1}], "state": "ok"}
    stats = [{"module_id": "a", "state": "ready", "grade": "good", "ping": {"rtt_ms": 1.234}, "frames_in": 30}]
    row = picture.rows_of(status, stats, {7: (12.5, 1 << 20)}, elapsed_s=2.0, before={"a": {"frames_in": 10}})["a"]
    assert (row["state"], row["restarts"], row["cpu"], row["memory"]) == ("running", 1, 12.5, 1 << 20)
    assert (row["grade"], row["rtt"], row["in_rate"]) == ("good", 1.23, 10.0)
    alone = picture.rows_of(None, [{"module_id": "x", "state": "ready", "since": ""}], {}, elapsed_s=1.0, before={})
    assert alone["x"]["state"] == "running"


def test_flows_have_rates() -> None:
    rows = picture.flows_of([{"caller": "a", "callee": "b", "calls": 30}], {("a", "b"): 10}, 2.0)
    assert rows == [{"from": "a", "to": "b", "calls": 30, "rate": 10.0}]


class Sent:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    async def receive(self) -> Any:
        return {"type": "websocket.disconnect"}


async def test_a_full_wire_is_cut_with_4011_and_sends_nothing_of_its_line() -> None:
    sent = Sent()
    wire = Wire(sent.receive, sent.send)
    for number in range(FRAMES_MAX + 5):
        wire.send(f"{number}")
    assert wire.closing
    wire.gone.set()
    await wire.write()
    assert [message.get("code") for message in sent.messages] == [4011]


async def test_a_binary_frame_closes_1003() -> None:
    sent = Sent()
    texts = iter([{"type": "websocket.receive", "bytes": b"x"}, {"type": "websocket.disconnect"}])

    async def receive() -> Any:
        return next(texts)

    wire = Wire(receive, sent.send)
    assert await wire.read() is None
    await wire.write()
    assert sent.messages[0]["code"] == 1003


def test_an_ear_that_may_lose_is_told_how_much() -> None:
    sent = Sent()
    wire = Wire(sent.receive, sent.send)
    hub, ear = fanout.Fanout(), fanout.Ear(wire)
    hub.add(ear)
    ear.patterns = {"a.*": "drop_oldest"}
    for number in range(FRAMES_MAX):
        hub.send({"event": "a.b", "data": number, "source": "x", "time": 0.0})
    assert not wire.closing
    assert ear.lost == FRAMES_MAX // 2
    wire._frames.clear()
    hub.send({"event": "a.b", "data": "last", "source": "x", "time": 0.0})
    gap, last = (json.loads(text) for text in wire._frames)
    assert gap["params"] == {"pattern": "a.*", "lost": FRAMES_MAX // 2}
    assert last["params"]["data"] == "last"
    hub.send({"event": "other", "data": 0, "source": "x", "time": 0.0})
    assert len(wire._frames) == 2
    hub.remove(ear)
    hub.send({"event": "a.b", "data": 0, "source": "x", "time": 0.0})
    assert len(wire._frames) == 2
