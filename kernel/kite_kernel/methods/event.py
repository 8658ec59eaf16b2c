"""`event.subscribe` and `event.unsubscribe` (`event.publish` is the hub's own hot path).

Source: spec 05-surface §7, §9, cases W-26, W-33 to W-37, X-19.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kite_kernel._contract import E_FORBIDDEN, E_INVALID_PARAMS, E_INVALID_REQUEST
from kite_kernel.core.asking import Answer, Ask, Refused
from kite_kernel.core.peer import Lane
from kite_kernel.core.registry import SUBSCRIBED_BIT
from kite_kernel.core.text import encode
from kite_kernel.core.topics import is_pattern

if TYPE_CHECKING:
    from kite_kernel.core.hub import Hub

_POLICIES: Final = frozenset({"close", "drop_oldest", "latest"})
_LANE_EVENTS: Final = 100  # how many wait for a lane by default; a slow dashboard wants the newest, not all


def _read_events(ask: Ask) -> list[str] | Refused:
    events: list[Any] = ask.params["events"]
    if not all(isinstance(name, str) and is_pattern(name) for name in events):
        return Refused(E_INVALID_PARAMS, "invalid_params", field="events")
    return list(dict.fromkeys(events))


def subscribe(hub: Hub, ask: Ask) -> Answer:
    """Subscribe to patterns, all or none of them."""
    peer = ask.peer
    patterns = _read_events(ask)
    if isinstance(patterns, Refused):
        return patterns
    policy = ask.params.get("policy", "close")
    queue = ask.params.get("queue", min(_LANE_EVENTS, hub.settings.queue_messages))
    if policy not in _POLICIES:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="policy")
    if not 1 <= queue <= hub.settings.queue_messages:
        return Refused(E_INVALID_PARAMS, "invalid_params", field="queue")
    if peer.permissions is not None:
        refused = [pattern for pattern in patterns if not peer.permissions.may_subscribe(pattern)]
        if refused:
            return Refused(E_FORBIDDEN, "no_permission", events=refused[:10])
    if len(peer.subscriptions.keys() | set(patterns)) > hub.settings.max_subscriptions:
        return Refused(E_INVALID_REQUEST, "too_many_subscriptions", limit=hub.settings.max_subscriptions)
    fresh = [pattern for pattern in patterns if pattern not in peer.subscriptions]
    for pattern in patterns:
        if pattern in peer.subscriptions:
            _remove(hub, ask, pattern)
        lane = None if policy == "close" else Lane(pattern, policy, queue)
        peer.subscriptions[pattern] = lane
        peer.lanes += lane is not None
        hub.board.topics.add(peer, pattern, lane)
    hub.members.said(peer, SUBSCRIBED_BIT, now=ask.now)
    ask.after.append(lambda: hub.events.replay_retained(peer, fresh))
    return encode({"events": list(peer.subscriptions)})


def unsubscribe(hub: Hub, ask: Ask) -> Answer:
    """Drop patterns; ones that are not there change nothing."""
    patterns = _read_events(ask)
    if isinstance(patterns, Refused):
        return patterns
    for pattern in patterns:
        if pattern in ask.peer.subscriptions:
            _remove(hub, ask, pattern)
    return encode({"events": list(ask.peer.subscriptions)})


def _remove(hub: Hub, ask: Ask, pattern: str) -> None:
    peer = ask.peer
    lane = peer.subscriptions.pop(pattern)
    if lane is not None:
        peer.lanes -= 1
        for entry in lane.waiting.values():
            entry.void = True
        lane.waiting.clear()
    hub.board.topics.remove(peer, pattern)
