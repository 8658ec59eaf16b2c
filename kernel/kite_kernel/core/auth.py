"""Who may come in: the first frame, the tokens, the rates. Law: no token ever leaves this room.

Tokens are kept and looked up as SHA-256 digests: what a stranger sends decides nothing about the time that a lookup
takes, and no table holds a token. Source: spec 10-wire §2, 00 §9-12, cases W-47 to W-50, X-06.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import OrderedDict
from typing import Any, Final, Literal

import attrs
import msgspec

from kite_kernel.core.frame import BadFrame, is_batch, parse

_ADDRESSES_KEPT: Final = 10_000  # rate windows that are remembered; the least recently used go first
_SHORTEST_S: Final = 0.001  # told to who comes at the very end of the window
RESERVED_IDS: Final = frozenset({"kernel", "launcher", "watchdog", "logkeeper", "operator"})
MAX_MODULE_ID_BYTES: Final = 63  # 05 §6
_MAX_RECEIVED: Final = 1 << 63


@attrs.frozen
class Grant:
    """What one token is good for. `name` is the module id that it belongs to."""

    name: str
    role: str


@attrs.frozen
class AuthRequest:
    """A well-formed first frame. `token` never shows in a repr."""

    id: bytes
    token: str = attrs.field(repr=False)
    module_id: str | None
    instance: str | None
    protocol: int
    resume: tuple[str, int] | None


@attrs.frozen
class Malformed:
    """The first frame is none: close 4003. `id` is what the error answers."""

    id: bytes
    protocol: int = 2


def read_auth(payload: bytes) -> AuthRequest | Malformed:
    """Read the first frame. Never raises, and keeps nothing of what it refuses."""
    if is_batch(payload):
        return Malformed(b"null")
    frame = parse(payload)
    if isinstance(frame, BadFrame):
        return Malformed(frame.id)
    if frame.method != "auth" or not frame.id or not frame.params:
        return Malformed(bytes(frame.id) or b"null")
    ident = bytes(frame.id)
    try:
        params = msgspec.json.decode(frame.params)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return Malformed(ident)
    if not isinstance(params, dict):
        return Malformed(ident)
    protocol = params.get("protocol", 2)
    if isinstance(protocol, bool) or not isinstance(protocol, int) or protocol < 1:
        return Malformed(ident)
    spoken = 1 if protocol == 1 else 2
    token, module_id, instance = params.get("token"), params.get("module_id"), params.get("instance")
    resume = _read_resume(params.get("resume"))
    if (
        not isinstance(token, str)
        or not isinstance(module_id, str | None)
        or not isinstance(instance, str | None)
        or (instance is not None and len(instance) > 256)
        or resume is False
    ):
        return Malformed(ident, spoken)
    return AuthRequest(ident, token, module_id, instance, spoken, resume or None)


def _read_resume(value: Any) -> tuple[str, int] | Literal[False] | None:
    """Read `resume`; False where it is malformed (05 §9: 4003)."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return False
    session, received = value.get("session"), value.get("received")
    if not isinstance(session, str) or isinstance(received, bool) or not isinstance(received, int):
        return False
    return (session, received) if 0 <= received < _MAX_RECEIVED else False


def is_module_id(name: str) -> bool:
    """Tell whether `name` may name a module (05 §6): letters of any script, digits, `_`, `-`, NFC, at most 63 bytes."""
    if not name or len(name.encode("utf-8", "replace")) > MAX_MODULE_ID_BYTES:
        return False
    if unicodedata.normalize("NFC", name) != name:
        return False
    return all(
        char in "_-" or unicodedata.category(char)[0] in "LN" or unicodedata.category(char) in ("Mn", "Mc")
        for char in name
    )


class Tokens:
    """All tokens that are good now. Replaced as a whole on SIGHUP."""

    __slots__ = ("_by_digest", "names")

    def __init__(self, rows: dict[str, tuple[str, tuple[str, ...]]]) -> None:
        """Args: name -> (role, its tokens: one, or more while they are rotated)."""
        self._by_digest: dict[bytes, Grant] = {}
        self.names = frozenset(rows)
        for name, (role, secrets) in rows.items():
            for secret in secrets:
                self._by_digest[_digest(secret)] = Grant(name, role)

    def find(self, token: str) -> tuple[Grant, bytes] | None:
        """Return what `token` is good for, and its digest as a handle; None for a stranger's."""
        digest = _digest(token)
        for_digest = self._by_digest.get(digest)
        return None if for_digest is None or not token else (for_digest, digest)

    def still_good(self, digest: bytes, grant: Grant) -> bool:
        """Tell whether the token behind `digest` still means the same."""
        return self._by_digest.get(digest) == grant


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def judge_id(grant: Grant, module_id: str | None) -> str | None:
    """Return the module id that this token comes in as, or None: close 4001.

    A module's token is good for its own name alone; an operator's for any name that is not reserved.
    """
    if module_id is None or module_id == grant.name:
        return grant.name
    if grant.role == "operator" and is_module_id(module_id) and module_id not in RESERVED_IDS:
        return module_id
    return None


class Rates:
    """Two kinds of windows: authentications of one (address, module id), failures of one address.

    Law: failures cost only further failures; a good token passes however many bad ones its address sent.
    """

    __slots__ = ("_failures", "_good", "max", "window_s")

    def __init__(self, window_s: float, max_in_window: int) -> None:
        self.window_s = window_s
        self.max = max_in_window
        self._good: OrderedDict[tuple[str, str], list[float]] = OrderedDict()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def good(self, addr: str, module_id: str, *, now: float) -> float | None:
        """Count a good authentication. Returns: None to let it in, or the seconds until one passes again."""
        return self._count(self._good, (addr, module_id), now)

    def failure(self, addr: str, *, now: float) -> float | None:
        """Count a failure. Returns: None where it gets its own code, or the seconds for a 4020."""
        return self._count(self._failures, addr, now)

    def _count(self, table: OrderedDict[Any, list[float]], key: Any, now: float) -> float | None:
        stamps = table.get(key)
        if stamps is None:
            stamps = table[key] = []
            if len(table) > _ADDRESSES_KEPT:
                table.popitem(last=False)
        else:
            table.move_to_end(key)
            while stamps and stamps[0] <= now - self.window_s:
                del stamps[0]
        if len(stamps) >= self.max:
            return max(_SHORTEST_S, stamps[0] + self.window_s - now)
        stamps.append(now)
        return None
