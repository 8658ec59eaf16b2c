"""The request head: read to the letter or refused, and judged before 101."""

import pytest

from kite_kernel.core.http import (
    Head,
    Incomplete,
    Refusal,
    bearer_token,
    judge_host,
    judge_origin,
    judge_query,
    judge_upgrade,
    parse_head,
    refusal_response,
    response,
    switching_protocols,
    wants_websocket,
)

UPGRADE = {
    "Host": "localhost:8765",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def raw(target: str = "/ws", *, method: str = "GET", version: str = "1.1", **changes: str | None) -> bytes:
    """A head with UPGRADE's fields; a keyword `sec_websocket_key=None` leaves that one out."""
    fields = {name.lower(): value for name, value in UPGRADE.items()}
    fields |= {name.replace("_", "-"): value for name, value in changes.items()}  # type: ignore[misc]
    lines = [f"{method} {target} HTTP/{version}", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def head(target: str = "/ws", *, method: str = "GET", version: str = "1.1", **changes: str | None) -> Head:
    parsed = parse_head(raw(target, method=method, version=version, **changes))
    assert isinstance(parsed, Head), parsed
    return parsed


def status(refusal: Refusal | None) -> int:
    return 101 if refusal is None else refusal.status


def test_a_whole_head_gives_its_parts_and_says_where_it_ends() -> None:
    wire = raw("/sub/ticks?last=7&epoch=&last=8", x_more="a", accept="b") + b"\x81\x80"
    parsed = parse_head(bytearray(wire))
    assert isinstance(parsed, Head)
    assert (parsed.method, parsed.path, parsed.version) == ("GET", "/sub/ticks", "1.1")
    assert parsed.field("last") == "7"
    assert parsed.field("epoch") == ""
    assert parsed.field("none") is None
    assert wire[parsed.size_bytes :] == b"\x81\x80"


def test_every_beginning_of_a_good_head_is_incomplete_and_never_refused() -> None:
    wire = raw("/sub?last=1")
    assert all(isinstance(parse_head(wire[:size]), Incomplete) for size in range(len(wire)))


def test_repeated_fields_are_joined_and_blanks_around_values_dropped() -> None:
    parsed = parse_head(b"GET / HTTP/1.1\r\nHost:  a \t\r\nConnection: x\r\nCONNECTION:Upgrade\r\nEmpty:\r\n\r\n")
    assert isinstance(parsed, Head)
    assert parsed.headers == {"host": "a", "connection": "x, Upgrade", "empty": ""}
    assert parsed.tokens_of("connection") == ["x", "Upgrade"]
    assert parsed.tokens_of("nothing") == []


@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00",
        b"\xff\xfe",
        b"{",
        b" GET / HTTP/1.1",
        b"\r\nGET / HTTP/1.1\r\n",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 more",
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\rX",
        b"GET / HTTP/0.9\r\n",
        b"GET / HTTP/2.0\r\n",
        b"GET / http/1.1\r\n",
        b"GET /\r\n",
        b"GET /\x80 HTTP/1.1\r\n",
        b"GET /caf\xc3\xa9 HTTP/1.1\r\n",
        b"A" * 33,
        b"GET / HTTP/1.1\r\nX: a\x00",
        b"GET / HTTP/1.1\r\nX: a\x7f",
        b"GET / HTTP/1.1\r\nX: a\nY: b",
    ],
)
def test_noise_is_400_before_its_head_ends(noise: bytes) -> None:
    assert status(parse_head(noise)) == 400  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        b"Host: a\r\n folded\r\n",
        b"Host : a\r\n",
        b": a\r\n",
        b"Host\r\n",
        b"H\xc3\xb6st: a\r\n",
        b"Host: a\r\nhost: a\r\n",
        b"Host: a\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n",
        b"Host: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n",
        b"Host: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n",
        b"X: no host\r\n",
        b"",
    ],
)
def test_fields_that_two_readers_could_read_differently_are_400(fields: bytes) -> None:
    refusal = parse_head(b"GET /ws HTTP/1.1\r\n" + fields + b"\r\n")
    assert isinstance(refusal, Refusal)
    assert refusal.status == 400


@pytest.mark.parametrize("target", ["http://localhost/ws", "localhost:80", "*", "ws", "/ws#part", "//x#", "/?a=%FF"])
def test_targets_that_are_no_path_are_400(target: str) -> None:
    assert status(parse_head(raw(target))) == 400  # type: ignore[arg-type]


def test_two_slashes_and_a_query_of_strange_fields_are_read_as_they_stand() -> None:
    assert head("//localhost/ws").path == "//localhost/ws"
    assert head("/a?b=%20c&d").query == (("b", " c"), ("d", ""))


@pytest.mark.parametrize(
    "wire",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000,
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 3000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 101 + b"\r\n",
    ],
)
def test_a_head_over_16_kib_or_100_fields_is_431(wire: bytes) -> None:
    assert status(parse_head(wire)) == 431  # type: ignore[arg-type]


def test_a_head_of_exactly_16_kib_is_read() -> None:
    start = b"GET / HTTP/1.1\r\nHost: a\r\nX: "
    wire = start + b"a" * (16384 - len(start) - 4) + b"\r\n\r\n"
    assert isinstance(parse_head(wire), Head)
    assert isinstance(parse_head(wire[:-1]), Incomplete)


def test_an_old_client_may_leave_out_the_host() -> None:
    parsed = parse_head(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert isinstance(parsed, Head)
    assert judge_host(parsed) is None


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("localhost", 101), ("LOCALHOST:1", 101), ("127.0.0.1:8765", 101), ("127.9.8.7", 101), ("[::1]:80", 101),
        ("kite.lan", 101), ("Kite.LAN:99", 101), ("exact.lan:8765", 101), ("xn--bcher-kva.lan", 403),
        ("exact.lan", 403), ("exact.lan:8766", 403),
        ("evil.example", 403), ("127.0.0.1.evil", 403), ("localhost.evil", 403), ("evil.localhost", 403),
        ("127.0.0.256", 403), ("127.0.0", 403), ("[::2]", 403), ("::1", 403), ("localhost:", 403),
        ("localhost:65536", 403), ("localhost:90000", 403), ("localhost:8o", 403), ("localhost:-1", 403),
        ("user@localhost", 403), ("localhost/x", 403), ("localhost, evil.example", 403), ("localhost.", 403),
    ],
)  # fmt: skip
def test_hosts(host: str, right: int) -> None:
    assert status(judge_host(head(host=host), {"kite.lan", "exact.lan:8765"})) == right


@pytest.mark.parametrize(
    ("origin", "right"),
    [
        (None, 101), ("http://localhost", 101), ("http://localhost:3000", 101), ("https://127.0.0.1:65535", 101),
        ("HTTP://LOCALHOST:80", 101), ("http://[::1]:5173", 101), ("https://console.example", 101),
        ("http://evil.example", 403), ("null", 403), ("http://localhost.evil", 403), ("http://localhost:90000", 403),
        ("http://127.0.0.1.evil", 403), ("http://localhost@evil.example", 403), ("http://evil.example/localhost", 403),
        ("http://localhost/", 403), ("file://", 403), ("ws://localhost", 403), ("localhost", 403),
        ("http://localhost:", 403), ("http://localhost:3000 http://evil.example", 403),
        ("http://console.example", 403), ("https://console.example:444", 403), ("chrome-extension://abc", 403),
    ],
)  # fmt: skip
def test_origins(origin: str | None, right: int) -> None:
    assert status(judge_origin(head(origin=origin), {"https://console.example"})) == right


def test_null_is_no_origin_even_where_it_is_configured() -> None:
    assert status(judge_origin(head(origin="null"), {"null"})) == 403


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, 101),
        ({"connection": "Upgrade"}, 101),
        ({"upgrade": "h2c, WebSocket"}, 101),
        ({"content_length": "0"}, 101),
        ({"upgrade": None}, 426),
        ({"connection": "close"}, 426),
        ({"upgrade": "h2c"}, 426),
        ({"sec_websocket_version": "8"}, 426),
        ({"sec_websocket_version": None}, 426),
        ({"sec_websocket_version": "13, 8"}, 426),
        ({"sec_websocket_key": None}, 400),
        ({"sec_websocket_key": "short"}, 400),
        ({"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZ===="}, 400),
        ({"sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ=!"}, 400),
        ({"content_length": "5"}, 400),
        ({"transfer_encoding": "chunked"}, 400),
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
    ],
)
def test_upgrades(changes: dict[str, str | None], right: int) -> None:
    assert status(judge_upgrade(head(**changes))) == right  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "OPTIONS", "get"])
def test_another_method_is_405_and_names_the_right_one(method: str) -> None:
    refusal = judge_upgrade(head(method=method))
    assert refusal == Refusal(405, "this path speaks WebSocket: GET only", (("Allow", "GET"),))


def test_an_old_http_version_never_becomes_a_websocket() -> None:
    assert status(judge_upgrade(head(version="1.0"))) == 400


def test_a_wrong_version_is_told_the_right_one() -> None:
    refusal = judge_upgrade(head(sec_websocket_version="8"))
    assert refusal is not None
    assert ("Sec-WebSocket-Version", "13") in refusal.headers
    answer = refusal_response(refusal)
    assert answer.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in answer
    assert b"\r\nConnection: close, Upgrade\r\n" in answer


@pytest.mark.parametrize(
    "query", ["token=s3cr3t", "access_token=s3cr3t", "Token=s3cr3t", "last=1&%74oken=s3cr3t", "token"]
)
def test_a_token_in_the_url_is_refused_and_never_said(query: str) -> None:
    asked = head(f"/sub?{query}")
    assert status(judge_query(asked)) == 400
    assert status(judge_upgrade(asked)) == 400
    assert "s3cr3t" not in repr(asked) + repr(judge_query(asked))


def test_secrets_of_headers_are_not_in_a_repr() -> None:
    assert "s3cr3t" not in repr(head(authorization="Bearer s3cr3t"))


@pytest.mark.parametrize(
    ("changes", "token"),
    [
        ({"authorization": "Bearer abc.def"}, "abc.def"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"authorization": "Basic abc"}, None),
        ({"authorization": "Bearer"}, None),
        ({"sec_websocket_protocol": "kite.stream, kite.bearer.abc"}, "abc"),
        ({"sec_websocket_protocol": "kite.bearer."}, None),
        ({}, None),
    ],
)
def test_bearer_tokens(changes: dict[str, str | None], token: str | None) -> None:
    assert bearer_token(head(**changes)) == token  # type: ignore[arg-type]


def test_the_accept_key_is_that_of_the_rfc() -> None:
    answer = switching_protocols(head())
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")
    assert b"Extensions" not in answer
    assert b"\r\nSec-WebSocket-Protocol: kite.stream\r\n" in switching_protocols(head(), "kite.stream")


def test_a_plain_request_wants_no_websocket() -> None:
    assert not wants_websocket(head(upgrade=None))
    assert wants_websocket(head())


def test_an_answer_has_its_length_and_ends_the_connection() -> None:
    answer = response(503, "später", [("Retry-After", "3")])
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith("\r\n\r\nspäter".encode())
    for line in (b"Content-Length: 7", b"Retry-After: 3", b"Connection: close", b"Cache-Control: no-store"):
        assert b"\r\n" + line + b"\r\n" in answer
    assert response(200, b"abc", head_only=True).endswith(b"\r\n\r\n")
    assert b"Content-Length: 3" in response(200, b"abc", head_only=True)
