"""The request head in front of every connection: read strictly, judged before anything is allocated.

Laws:
- Nothing is guessed: what RFC 9112 leaves to a lenient reader (bare LF, folded lines, two Hosts, absolute targets) is
  refused, so that no proxy in front can read the same bytes differently.
- Noise is refused as soon as its bytes show it, not when a deadline ends.
- Work per head is linear in its size, and its size is bounded (16 KiB).
- No value that may hold a secret stands in a `repr` or in the reason of a refusal.

Source: spec 10-wire §1, 05-surface §9, RFC 9112, RFC 6455 4.2; for streams 40-streams §1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import attrs

from kite_kernel._contract import HTTP_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([!-~]+) HTTP/(1\.[01])")
_REQUEST_LINE_BEGUN: Final = re.compile(_TOKEN + rb"{1,32}(?: (?:[!-~]+(?: [!-~]{0,8})?)?)?\r?")
_FIELDS: Final = re.compile(rb"(?:" + _TOKEN + rb"+:[^\x00-\x08\x0a-\x1f\x7f]*+\r\n)*+")
_FIELD: Final = re.compile(r"([^:]+):[ \t]*([^\r]*)\r\n")
_NEVER_IN_HEAD: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?=[^\n])|(?<!\r)\n")
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s:/?#@\[\]\\,]{1,255})(?::([0-9]{1,5}))?")
_ORIGIN: Final = re.compile(r"(https?)://(.*)")
_LOOPBACK: Final = re.compile(r"localhost|\[::1\]|127(?:\.(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}")
_ONCE: Final = frozenset(
    {"host", "origin", "authorization", "content-length", "sec-websocket-key", "sec-websocket-version"}
)
_MAX_FIELDS: Final = 100  # field lines of a head and fields of a query; browsers send about twenty
_TOKEN_FIELDS: Final = frozenset({"token", "access_token"})
_ACCEPT_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3
_BEARER_SUBPROTOCOL: Final = "kite.bearer."


@attrs.frozen
class Incomplete:
    """The head is not whole yet, and nothing in it is wrong so far: read on, within the handshake's deadline."""


@attrs.frozen
class Head:
    """A request head that was read whole. Names of `headers` are lower-case; repeated ones are joined by a comma.

    `size_bytes` of the buffer belong to it; what follows is the first of the connection's own bytes.
    """

    method: str
    path: str  # as sent, no percent-decoding: every path of the kernel is plain text
    version: str  # "1.0" or "1.1"
    size_bytes: int
    query: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    headers: dict[str, str] = attrs.field(repr=False)

    def field(self, name: str) -> str | None:
        """Return the first value of a query field, or None."""
        return next((value for key, value in self.query if key == name), None)

    def tokens_of(self, header: str) -> list[str]:
        """Return the members of a comma-separated header, as sent."""
        return [part for piece in self.headers.get(header, "").split(",") if (part := piece.strip())]


@attrs.frozen
class Refusal:
    """The answer is this status and then the end of the connection. `why` is for people and holds no secret."""

    status: int
    why: str
    headers: tuple[tuple[str, str], ...] = ()


_INCOMPLETE: Final = Incomplete()


def parse_head(buffer: bytes | bytearray) -> Incomplete | Head | Refusal:
    """Read the head at the beginning of `buffer` (all that has arrived so far).

    Returns: Refusal 431 for more than 16 KiB or 100 field lines, 400 for everything malformed, as early as the bytes
    show it. Errors: none. Source: 05-surface §9.
    """
    end = buffer.find(b"\r\n\r\n", 0, HTTP_HEAD_BYTES)
    if end < 0:
        return _judge_beginning(bytes(buffer[:HTTP_HEAD_BYTES]))
    line, _, fields = bytes(buffer[: end + 2]).partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        return Refusal(400, "malformed request line")
    headers = _read_fields(fields)
    if isinstance(headers, Refusal):
        return headers
    method, target, version = match[0].decode("ascii").split(" ")
    return _read_target(method, target, version[5:], headers, end + 4)


def _judge_beginning(block: bytes) -> Incomplete | Refusal:
    """Judge a head that is not whole: it is refused as soon as no continuation could make it right."""
    if _NEVER_IN_HEAD.search(block):
        return Refusal(400, "not an HTTP/1.1 request")
    line, newline, _ = block.partition(b"\r\n")
    begun = _REQUEST_LINE if newline else _REQUEST_LINE_BEGUN
    if block and not begun.fullmatch(line) and len(line) < HTTP_HEAD_BYTES:
        return Refusal(400, "malformed request line")
    return _INCOMPLETE if len(block) < HTTP_HEAD_BYTES else Refusal(431, "request head is over 16 KiB")


def _read_fields(fields: bytes) -> dict[str, str] | Refusal:
    """Read the field lines, each ended by CRLF."""
    if not _FIELDS.fullmatch(fields):
        return Refusal(400, "malformed header field")
    pairs = _FIELD.findall(fields.decode("latin-1"))
    if len(pairs) > _MAX_FIELDS:
        return Refusal(431, f"more than {_MAX_FIELDS} header fields")
    headers: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        if key in headers:
            if key in _ONCE:
                return Refusal(400, f"more than one {key} header")
            headers[key] += ", " + value.rstrip(" \t")
        else:
            headers[key] = value.rstrip(" \t")
    return headers


def _read_target(method: str, target: str, version: str, headers: dict[str, str], size_bytes: int) -> Head | Refusal:
    """Split an origin-form target; the other forms (absolute, authority, asterisk) are for proxies."""
    if not target.startswith("/") or "#" in target:
        return Refusal(400, "the request target must be a path")
    if version == "1.1" and "host" not in headers:
        return Refusal(400, "no Host header")
    path, mark, raw_query = target.partition("?")
    if not mark:
        return Head(method, path, version, size_bytes, (), headers)
    try:
        query = tuple(parse_qsl(raw_query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"))
    except ValueError:
        return Refusal(400, "malformed query")
    return Head(method, path, version, size_bytes, query, headers)


# --- what is judged before 101 ---


def judge_host(head: Head, hosts: Collection[str] = ()) -> Refusal | None:
    """Refuse (403) a Host that is neither a loopback name nor configured: a rebound DNS name never gets in.

    Args: `hosts` are lower-case names (any port) or `name:port`. A 1.0 request may have no Host: no browser sends one.
    """
    value = head.headers.get("host")
    if value is None or _is_allowed_authority(value.lower(), hosts):
        return None
    return Refusal(403, "this Host is not served here")


def judge_origin(head: Head, origins: Collection[str] = ()) -> Refusal | None:
    """Refuse (403) a web page that is neither of this machine nor configured; programs send no Origin.

    Args: `origins` are whole lower-case origins, as `https://console.example`.
    """
    value = head.headers.get("origin")
    if value is None:
        return None
    origin = value.lower()
    match = _ORIGIN.fullmatch(origin)
    if match and (origin in origins or _is_allowed_authority(match[2], ())):
        return None
    return Refusal(403, "this Origin may not connect")


def _is_allowed_authority(authority: str, names: Collection[str]) -> bool:
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (match[2] is not None and int(match[2]) > 65535):
        return False
    return _LOOPBACK.fullmatch(match[1]) is not None or match[1] in names or authority in names


def judge_query(head: Head) -> Refusal | None:
    """Refuse (400) a token in the URL: URLs are logged, kept in histories and sent on as referrers."""
    if head.query and any(key.lower() in _TOKEN_FIELDS for key, _ in head.query):
        return Refusal(400, "a token never belongs into a URL: send it in the first frame or a header")
    return None


def wants_websocket(head: Head) -> bool:
    """Tell whether this is a request to speak WebSocket, well-formed or not."""
    return _has_member(head, "upgrade", "websocket") and _has_member(head, "connection", "upgrade")


def _has_member(head: Head, header: str, member: str) -> bool:
    value = head.headers.get(header, "").lower()
    return value == member or member in [part.strip() for part in value.split(",")]


def judge_upgrade(head: Head, *, hosts: Collection[str] = (), origins: Collection[str] = ()) -> Refusal | None:
    """Judge a request for a WebSocket path: None means that `switching_protocols` may be sent.

    The order is: who asks (403), how (405, 426), then the details. Source: 10-wire §1, cases W-67, W-70.
    """
    refusal = judge_host(head, hosts) or judge_origin(head, origins)
    if refusal:
        return refusal
    if head.method != "GET":
        return Refusal(405, "this path speaks WebSocket: GET only", (("Allow", "GET"),))
    refusal = judge_query(head)
    if refusal:
        return refusal
    if not wants_websocket(head):
        return Refusal(426, "this path speaks WebSocket", (("Upgrade", "websocket"),))
    if head.headers.get("sec-websocket-version") != "13":
        return Refusal(426, "WebSocket version 13 only", (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")))
    if head.version != "1.1":
        return Refusal(400, "WebSocket needs HTTP/1.1")
    if not _is_key(head.headers.get("sec-websocket-key", "")):
        return Refusal(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    if head.headers.get("content-length", "0") != "0" or "transfer-encoding" in head.headers:
        return Refusal(400, "an upgrade request has no body")
    return None


def _is_key(key: str) -> bool:
    try:
        return len(key) == 24 and len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def bearer_token(head: Head) -> str | None:
    """Return the token of `Authorization: Bearer …`, or of the subprotocol `kite.bearer.<token>`; None where neither.

    Source: 40-streams §1.
    """
    scheme, _, token = head.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for name in head.tokens_of("sec-websocket-protocol"):
        if name.startswith(_BEARER_SUBPROTOCOL) and len(name) > len(_BEARER_SUBPROTOCOL):
            return name[len(_BEARER_SUBPROTOCOL) :]
    return None


# --- answers ---


def switching_protocols(head: Head, subprotocol: str | None = None) -> bytes:
    """Return the 101 for a head that `judge_upgrade` let pass. No extension is ever agreed on."""
    key = head.headers["sec-websocket-key"].encode("ascii")
    accept = base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID, usedforsecurity=False).digest())
    chosen = b"" if subprotocol is None else b"\r\nSec-WebSocket-Protocol: " + subprotocol.encode("ascii")
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept
        + chosen
        + b"\r\n\r\n"
    )


def response(
    status: int,
    body: bytes | str = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    content_type: str = "text/plain; charset=utf-8",
    head_only: bool = False,
) -> bytes:
    """Return a whole plain answer, after which the connection ends. `head_only` answers HEAD."""
    raw = body.encode("utf-8") if isinstance(body, str) else body
    fields = list(headers)
    connection = "close, Upgrade" if any(name == "Upgrade" for name, _ in fields) else "close"
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(raw)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {connection}",
        *(f"{name}: {value}" for name, value in fields),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if head_only else raw)


def refusal_response(refusal: Refusal) -> bytes:
    """Return the answer that says a refusal to the one who asked."""
    return response(refusal.status, refusal.why + "\n", refusal.headers)
