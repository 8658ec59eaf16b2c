"""`kernel.*`: what the kernel knows about itself and its connections, and the operator's few orders.

Source: spec 05-surface §7, 20-kernel §5, case W-46.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kite_kernel._contract import E_INVALID_PARAMS, E_OFFLINE, PROTOCOL, SHUTDOWN_REASONS
from kite_kernel.core.asking import Answer, Ask, Refused
from kite_kernel.core.members import timing_told
from kite_kernel.core.queues import LEVELS
from kite_kernel.core.text import encode, iso
from kite_kernel.methods.quality import quality_of

if TYPE_CHECKING:
    from kite_kernel.core.hub import Hub
    from kite_kernel.core.peer import Peer

_PENDING_SHOWN: Final = 10_000  # rows of one answer; the count says how many there are


def info(hub: Hub, ask: Ask) -> Answer:
    """Tell about the kernel itself."""
    board = hub.board
    return encode(
        {
            "version": hub.version,
            "protocol": PROTOCOL,
            "epoch": board.epoch,
            "uptime_s": round(ask.now - hub.started_at, 3),
            "timing": timing_told(hub.settings.timing),
            "limits": hub.settings.limits(),
            "connections": sum(peer.link is not None for peer in board.peers.values()) + len(hub.gate.strangers),
            "modules": len(board.peers),
            "draining": hub.draining,
            "counts": dict(board.counts),
        }
    )


def get_connection_stats(hub: Hub, ask: Ask) -> Answer:
    """Tell how good each connection is."""
    module_id = ask.params.get("module_id")
    peers: list[Peer] = list(hub.board.peers.values())
    if module_id is not None:
        peers = [peer for peer in peers if peer.id == module_id]
        if not peers:
            reason, state, since = hub.board.why_absent(module_id)
            return Refused(E_OFFLINE, reason, module_id=module_id, state=state, since=since)
    return encode({"modules": [_stats(hub, peer, ask.now) for peer in peers]})


def _stats(hub: Hub, peer: Peer, now: float) -> dict[str, Any]:
    messages, size = hub.queues.measure(peer)
    quality = quality_of(hub, peer, now=now)
    return {
        "module_id": peer.id,
        "state": peer.state.value,
        "since": peer.since,
        "grade": quality["grade"],
        "score": quality["score"],
        "ping": peer.pulse.told(),
        "reconnects": quality["reconnects"],
        "queue": {"messages": messages, "bytes": size, "pressure": LEVELS[peer.pressure]},
        "frames_in": peer.frames_in + peer.received,
        "frames_out": peer.frames_out + peer.sent,
        "bytes_in": peer.bytes_in,
        "bytes_out": peer.bytes_out,
        "calls_in_flight": peer.working,
        "prediction": quality["prediction"],
    }


def flows(hub: Hub, ask: Ask) -> Answer:
    """Tell who has called whom how often, since the caller came; no params."""
    rows = [
        {"caller": peer.id, "callee": callee, "calls": calls}
        for peer in hub.board.peers.values()
        for callee, calls in peer.asked.items()
    ]
    return encode({"flows": rows})


def pending(hub: Hub, ask: Ask) -> Answer:
    """Tell every call in flight, the oldest first; no params."""
    rows = [
        {
            "caller": call.caller.id,
            "callee": call.callee.id,
            "method": call.method,
            "age_s": round(ask.now - call.started_at, 3),
            "where": "held" if call.frame is not None else "callee",
            "deadline_s": round(call.deadline_at - ask.now, 3),
        }
        for call in islice(hub.calls.pending.calls.values(), _PENDING_SHOWN)
    ]
    return encode({"calls": rows, "count": len(hub.calls.pending.calls)})


def closed(hub: Hub, ask: Ask) -> Answer:
    """Tell the last closed connections, the newest first."""
    limit = ask.params.get("limit", 50)
    if limit < 0:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="limit")
    rows = islice(reversed(hub.board.closed), limit)
    return encode({"closed": [row | {"when": iso(row["when"])} for row in rows]})


def drain(hub: Hub, ask: Ask) -> Answer:
    """Refuse new upgrades from now; what runs goes on."""
    hub.draining = True
    hub.board.log("warning", "draining", "[kernel] draining: new upgrades get 503", by=ask.peer.id)
    return b"{}"


def shutdown_module(hub: Hub, ask: Ask) -> Answer:
    """Send `module.shutdown` to one module."""
    module_id = ask.params["module_id"]
    reason = ask.params.get("reason", "module_stop")
    deadline_s = ask.params.get("deadline_s", hub.settings.timing.shutdown)
    if reason not in SHUTDOWN_REASONS:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="reason")
    if deadline_s < 0:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="deadline_s")
    peer = hub.board.peers.get(module_id)
    if peer is None or peer.link is None:
        reason, state, since = hub.board.why_absent(module_id)
        return Refused(E_OFFLINE, reason, module_id=module_id, state=state, since=since)
    hub.events.announce("module.shutdown", {"reason": reason, "deadline_s": deadline_s}, now=ask.now, only=peer)
    return b"{}"
