"""Who may ask at all: Host, Origin, the request's form; and the headers that every answer carries. Pure.

The Host check stops DNS rebinding, the Origin check a foreign page; both come before any answer body and before 101.
Source: spec 80 §1, 10 §1, cases X-01 … X-05, X-34.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import attrs

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
COOKIE: Final = "kite_session"
HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


@attrs.frozen
class Refused:
    """An answer instead of the app's; `alarm` where it looks like an attack."""

    status: int
    text: str
    alarm: str = ""


def judge(
    *,
    method: str,
    path: str,
    headers: Mapping[str, list[str]],
    local: str,
    secure: bool,
    origins: tuple[str, ...],
) -> Refused | None:
    """Judge a request before anything is done for it.

    Args: `path` raw as it came; `headers` lower-case name → values; `local` the address that the client reached;
    `origins` further origins that are allowed.
    """
    if method == "CONNECT":
        return Refused(405, "CONNECT is not offered")
    if not path.startswith("/"):
        return Refused(400, "only paths are served here")
    hosts = headers.get("host", [])
    if len(hosts) != 1:
        return Refused(400, "one Host is needed")
    if not _is_own_host(hosts[0], local, origins):
        return Refused(403, "this name is not served here", "foreign_host")
    for origin in headers.get("origin", []):
        own = f"{'https' if secure else 'http'}://{hosts[0]}"
        if origin.lower() not in (own.lower(), *origins):
            return Refused(403, "pages of this origin may not ask here", "foreign_origin")
    return None


def host_name(host: str) -> str:
    """Return the name of HOST[:PORT], lower case, without brackets; empty when it has no right form."""
    try:
        parts = urlsplit(f"//{host}")
        if parts.port is not None and not 0 < parts.port < 65536:
            return ""
    except ValueError:
        return ""
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        return ""
    return (parts.hostname or "").lower()


def _is_own_host(host: str, local: str, origins: tuple[str, ...]) -> bool:
    name = host_name(host)
    if not name:
        return False
    if name in LOOPBACK or name in {host_name(urlsplit(origin).netloc) for origin in origins}:
        return True
    try:  # the very address that was reached: a name that was bound to it by somebody else looks different
        return ipaddress.ip_address(name) == ipaddress.ip_address(local)
    except ValueError:
        return False


def cookie_of(headers: Mapping[str, list[str]]) -> str | None:
    """Return the session that the cookie holds."""
    for line in headers.get("cookie", []):
        for part in line.split(";"):
            name, found, value = part.strip().partition("=")
            if found and name == COOKIE and value:
                return value
    return None


def set_cookie(session: str, max_age_s: float) -> str:
    """Return the cookie's line; an empty session takes it away."""
    return f"{COOKIE}={session}; Path=/; Max-Age={int(max_age_s)}; HttpOnly; Secure; SameSite=Strict"
