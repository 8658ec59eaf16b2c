"""`registry.*`: what a module serves, and who is here.

Source: spec 05-surface §7, §9, 10-wire §5, cases W-29, W-31, W-32, X-17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kite_kernel._contract import E_CONFLICT, E_INVALID_PARAMS, E_INVALID_REQUEST, E_OFFLINE
from kite_kernel.core.asking import Answer, Ask, Refused
from kite_kernel.core.auth import RESERVED_IDS, is_module_id
from kite_kernel.core.hub import FAMILIES
from kite_kernel.core.peer import Method
from kite_kernel.core.registry import REGISTERED_BIT
from kite_kernel.core.text import encode
from kite_kernel.methods.quality import quality_of

if TYPE_CHECKING:
    from kite_kernel.core.hub import Hub
    from kite_kernel.core.peer import Peer

_MAX_METHOD_BYTES: Final = 256  # a name is a label, as an event's is
_MAX_META_BYTES: Final = 16_384  # meta is shown in every list; a schema belongs to its method
_MAX_REGISTRATION_BYTES: Final = 1 << 20  # what one module's declarations may hold in memory


def register(hub: Hub, ask: Ask) -> Answer:
    """Declare the methods that this module serves. Whole or not at all; again adds and replaces."""
    peer, params = ask.peer, ask.params
    methods = _read_methods(peer, params["methods"])
    if isinstance(methods, Refused):
        return methods
    if len(methods) > hub.settings.max_methods or len(peer.methods.keys() | methods.keys()) > hub.settings.max_methods:
        return Refused(E_INVALID_REQUEST, "too_many_methods", field="methods", limit=hub.settings.max_methods)
    if sum(method.size_bytes for method in {**peer.methods, **methods}.values()) > _MAX_REGISTRATION_BYTES:
        return Refused(E_INVALID_REQUEST, "limit", field="methods", limit=_MAX_REGISTRATION_BYTES)
    service = params.get("service")
    if service is not None:
        refused = _judge_service(hub, service)
        if refused is not None:
            return refused
    meta = encode(params["meta"]) if "meta" in params else None
    if meta is not None and len(meta) > _MAX_META_BYTES:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="meta")
    peer.methods = {**peer.methods, **methods}
    if service is not None and service != peer.service:
        hub.calls.services.join(peer, service)
    if meta is not None:
        peer.meta = meta
    if "accepts_meta" in params:
        peer.accepts_meta = params["accepts_meta"]
    hub.members.said(peer, REGISTERED_BIT, now=ask.now)
    return encode({"state": peer.state.value})


def _read_methods(peer: Peer, rows: list[Any]) -> dict[str, Method] | Refused:
    """Read the list; names are kept relative to their module."""
    wrong = Refused(E_INVALID_PARAMS, "invalid_params", field="methods")
    found: dict[str, Method] = {}
    for row in rows:
        info: dict[str, Any] = {}
        if isinstance(row, dict):
            info = {key: row[key] for key in ("params", "result", "doc") if key in row}
            row = row.get("name")
        if not isinstance(row, str):
            return wrong
        name = row.removeprefix(f"{peer.id}.")
        if not name or len(name) > _MAX_METHOD_BYTES or not name.isprintable() or " " in name or name in found:
            return wrong
        found[name] = Method(name, encode(name), info)
    return found


def _judge_service(hub: Hub, service: str) -> Refused | None:
    """A shared name is a module name that is nobody's own."""
    if not is_module_id(service) or service in RESERVED_IDS or service in FAMILIES:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="service")
    if service in hub.board.peers or service in hub.tokens.names:
        return Refused(E_CONFLICT, "exists", field="service")
    return None


def unregister(hub: Hub, ask: Ask) -> Answer:
    """Take methods back; without a list all of them and the service."""
    peer = ask.peer
    names = ask.params.get("methods")
    if names is None:
        peer.methods = {}
        hub.calls.services.leave(peer)
        return encode({"state": peer.state.value})
    if not all(isinstance(name, str) for name in names):
        return Refused(E_INVALID_PARAMS, "invalid_params", field="methods")
    gone = {name.removeprefix(f"{peer.id}.") for name in names}
    peer.methods = {name: method for name, method in peer.methods.items() if name not in gone}
    return encode({"state": peer.state.value})


def list_modules(hub: Hub, ask: Ask) -> Answer:
    """Tell who is here."""
    rows = [describe(hub, peer, now=ask.now) for peer in hub.board.peers.values()]
    return b'{"modules":[' + b",".join(rows) + b"]}"


def get_module(hub: Hub, ask: Ask) -> Answer:
    """Tell about one module."""
    module_id = ask.params["module_id"]
    peer = hub.board.peers.get(module_id)
    if peer is None:
        reason, state, since = hub.board.why_absent(module_id)
        return Refused(E_OFFLINE, reason, module_id=module_id, state=state, since=since)
    return describe(hub, peer, now=ask.now)


def describe(hub: Hub, peer: Peer, *, now: float) -> bytes:
    """Make one row of the list."""
    row = {
        "module_id": peer.id,
        "state": peer.state.value,
        "since": peer.since,
        "methods": [
            {"name": method.name, **method.info} if method.info else method.name for method in peer.methods.values()
        ],
        "service": peer.service,
        "role": peer.role,
        "subscriptions": list(peer.subscriptions),
        **quality_of(hub, peer, now=now),
    }
    return encode(row)[:-1] + b',"meta":' + peer.meta + b"}"
