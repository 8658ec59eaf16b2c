"""What the in-memory kernel does with frames: registry, calls, events. Monotonic time comes as an argument.

A small kernel for authors' tests, not the kernel: no permissions, no queues' pressure, no stores. What it does, it does
as the contract says; the SDK's own tests run the same scenarios against it and against the real kernel.
Source: spec 10-wire §5-8, 20-kernel §1.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kite_modules import _contract
from kite_modules.sdk import frames
from kite_modules.sdk.events import check_pattern, matches
from kite_modules.sdk.frames import Frame, RpcId
from kite_modules.sdk.testing.peers import Peer, Routed

_OWN_EVENTS: Final = ("module.ready", "module.exiting", "module.shutdown_ack", "system.pong")


class Failure(Exception):
    """An error answer of the hub."""

    def __init__(self, code: int, reason: str, outcome: str = "not_sent", **more: Any) -> None:
        super().__init__(reason)
        self.code = code
        self.data = {"reason": reason, "outcome": outcome, **more}


class Desk:
    """The hub's memory and its decisions."""

    def __init__(self, *, call_s: float) -> None:
        self.call_s = call_s
        self.peers: dict[str, Peer] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.events: list[tuple[str, str, Any]] = []
        self._routed: dict[int, Routed] = {}
        self._ids = itertools.count(1)
        self._retained: dict[str, str] = {}
        self._keys: dict[tuple[str, str, str], int] = {}
        self._methods: dict[str, Callable[[Peer, dict[str, Any]], Any]] = {
            "event.subscribe": self._subscribe,
            "event.unsubscribe": self._unsubscribe,
            "event.publish": self._publish,
            "registry.register": self._register,
            "registry.unregister": self._unregister,
            "registry.list_modules": lambda peer, params: {"modules": [self._row(p) for p in self.peers.values()]},
            "registry.get_module": self._get_module,
            "kernel.info": lambda peer, params: {"version": "testing", "protocol": _contract.PROTOCOL},
        }

    # ------------------------------------------------------------------ frames

    def on_text(self, peer: Peer, text: str, *, now: float) -> None:
        """Take one text message of an authenticated peer."""
        peer.received += 1
        peer.heard = True
        message = frames.read_frame(text)
        if not isinstance(message, Frame):
            peer.send(frames.error(None, _contract.E_PARSE_ERROR, "parse error", {"reason": "not_json"}))
        elif message.kind == "answer":
            self._on_answer(peer, message)
        elif message.kind == "request":
            self._on_request(peer, message, now)
        else:
            self._on_notice(peer, message)

    def _on_request(self, peer: Peer, frame: Frame, now: float) -> None:
        rpc_id: RpcId = None if isinstance(frame.id, msgspec.UnsetType) else frame.id
        method = str(frame.method)
        own = self._methods.get(method)
        try:
            if own is None:
                self._route(peer, rpc_id, method, frame, now)
                return
            later: list[str] = []
            result = own(peer, {**frames.object_of(frame.params), "_later": later})
            peer.send(frames.result(rpc_id, frames.encode(result)))
            for text in later:
                peer.send(text)
        except Failure as failure:
            self._fail(peer, rpc_id, failure)

    def _fail(self, peer: Peer, rpc_id: RpcId, failure: Failure) -> None:
        peer.send(frames.error(rpc_id, failure.code, _contract.ERROR_TEXT[failure.code], failure.data))

    # ------------------------------------------------------------------ calls

    def _target(self, name: str) -> Peer | None:
        if name in self.peers:
            return self.peers[name]
        members = [p for p in self.peers.values() if p.service == name and p.state == "ready" and p.out is not None]
        load = {p.module_id: sum(r.callee is p for r in self._routed.values()) for p in members}
        return min(members, key=lambda p: load[p.module_id], default=None)

    def _route(self, caller: Peer, rpc_id: RpcId, method: str, frame: Frame, now: float) -> None:
        name, _, inner = method.partition(".")
        callee = self._target(name)
        meta = frames.object_of(frame.meta)
        if callee is None:
            raise Failure(_contract.E_OFFLINE, "unknown_module", module_id=name, state="offline", since=None)
        away = callee.out is None and callee.state != "offline"
        if callee.state != "ready" or (away and meta.get("wait") is False):
            reason = "offline" if callee.state == "offline" else "debounce" if away else "not_ready"
            raise Failure(_contract.E_OFFLINE, reason, module_id=name, state=callee.state, since=None)
        if inner not in callee.methods:
            raise Failure(_contract.E_METHOD_NOT_FOUND, "unknown_method", nearest=sorted(callee.methods)[:3])
        timeout = meta.get("timeout", self.call_s)
        routed = Routed(caller, rpc_id, callee, inner, now + float(timeout))
        hub_id = next(self._ids)
        told = {"caller": caller.module_id, "deadline": time.time() + float(timeout)}
        told |= {key: meta[key] for key in ("traceparent", "tracestate", "credit") if key in meta}
        params = bytes(frame.params).decode() if isinstance(frame.params, msgspec.Raw) else "{}"
        routed.frame = frames.request(hub_id, inner, params, told if callee.accepts_meta else None)
        self._routed[hub_id] = routed
        self.calls.append((caller.module_id, method, frames.value_of(frame.params)))
        callee.send(routed.frame)

    def _on_answer(self, peer: Peer, frame: Frame) -> None:
        routed = self._routed.get(frame.id) if isinstance(frame.id, int) else None
        if routed is None or routed.callee is not peer:
            return
        del self._routed[frame.id]  # type: ignore[arg-type]  # it was found there
        if routed.caller.session != routed.session:
            return
        if isinstance(frame.error, frames.WireError):
            data = None if isinstance(frame.error.data, msgspec.UnsetType) else frames.value_of(frame.error.data)
            routed.caller.send(frames.error(routed.rpc_id, frame.error.code, frame.error.message, data))
        elif isinstance(frame.result, msgspec.Raw):
            routed.caller.send(frames.result(routed.rpc_id, bytes(frame.result).decode()))

    def _on_notice(self, peer: Peer, frame: Frame) -> None:
        params = frames.object_of(frame.params)
        if frame.method == "event.publish":
            try:
                self._publish(peer, params)
            except Failure:
                return
        elif frame.method == "event.unsubscribe":
            self._unsubscribe(peer, params)
        elif frame.method in ("$/cancelRequest", "$/credit"):
            for hub_id, routed in list(self._routed.items()):
                if routed.caller is peer and routed.rpc_id == params.get("id"):
                    routed.callee.send(frames.notification(str(frame.method), frames.encode({**params, "id": hub_id})))
                    if frame.method == "$/cancelRequest":
                        del self._routed[hub_id]
                        self._fail(peer, routed.rpc_id, Failure(_contract.E_CANCELLED, "cancelled", "unknown"))
        elif frame.method == "$/progress":
            found = self._routed.get(params.get("id", 0))
            if found is not None and found.callee is peer:
                told = frames.encode({**params, "id": found.rpc_id})
                found.caller.send(frames.notification("$/progress", told))

    def next_deadline(self) -> float | None:
        """Return when the first call in flight is due."""
        return min((routed.due_at for routed in self._routed.values()), default=None)

    def on_time(self, *, now: float) -> None:
        """End the calls that are due."""
        for hub_id, routed in list(self._routed.items()):
            if routed.due_at <= now:
                del self._routed[hub_id]
                routed.callee.send(frames.notification("$/cancelRequest", f'{{"id":{hub_id}}}'))
                self._fail(routed.caller, routed.rpc_id, Failure(_contract.E_DEADLINE, "deadline", "unknown"))

    def lose_calls_of(self, callee: Peer, reason: str) -> None:
        """The callee's process is gone with these in its hands."""
        for hub_id, routed in list(self._routed.items()):
            if routed.callee is callee:
                del self._routed[hub_id]
                failure = Failure(_contract.E_CONNECTION_LOST, reason, "unknown")
                if routed.caller.session == routed.session:
                    self._fail(routed.caller, routed.rpc_id, failure)

    # ------------------------------------------------------------------ events

    def tell_all(self, event: str, data: dict[str, Any], *, but: Peer | None = None) -> None:
        """Say a system event to every connected module."""
        text = _event(event, frames.encode(data), "kernel")
        for peer in self.peers.values():
            if peer is not but and peer.state != "offline":
                peer.send(text)

    def _publish(self, peer: Peer, params: dict[str, Any]) -> dict[str, int]:
        event, data = params.get("event"), params.get("data")
        if not isinstance(event, str) or not event or "*" in event or ">" in event or "" in event.split("."):
            raise Failure(_contract.E_INVALID_PARAMS, "invalid_params", field="event")
        if event in _OWN_EVENTS:
            self._own(peer, event, data if isinstance(data, dict) else {})
            return {"delivered": 0}
        if event in _contract.EVENTS:
            raise Failure(_contract.E_FORBIDDEN, "reserved_event")
        key = (peer.module_id, event, str(params["key"])) if "key" in params else None
        if key is not None and key in self._keys:
            return {"delivered": self._keys[key]}
        text = _event(event, frames.encode(data), peer.module_id)
        self.events.append((peer.module_id, event, data))
        if params.get("retain"):
            self._retained[event] = text
        heard = [p for p in self.peers.values() if p.state != "offline" and any(matches(x, event) for x in p.patterns)]
        heard = [p for p in heard if not (params.get("exclude_self") and p is peer)]
        for listener in heard:
            listener.send(text)
        if key is not None:
            self._keys[key] = len(heard)
        return {"delivered": len(heard)}

    def _own(self, peer: Peer, event: str, data: dict[str, Any]) -> None:
        """Take what a module says about itself."""
        if event == "system.pong":
            peer.unanswered_pings = 0
            peer.acknowledged(data.get("received"))
        elif event == "module.ready" and peer.state in ("registered", "ready"):
            peer.state = "ready"
            self.tell_all("module.ready", {"module_id": peer.module_id})
        elif event == "module.exiting":
            peer.exiting = True
            self.tell_all("module.exiting", {"module_id": peer.module_id, "reason": data.get("reason")})

    def _subscribe(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        patterns = self._patterns(params)
        fresh = [pattern for pattern in patterns if pattern not in peer.patterns]
        peer.patterns.update(dict.fromkeys(patterns))
        peer.subscribed = True
        self._step(peer)
        for event, text in self._retained.items():
            if any(matches(pattern, event) for pattern in fresh):
                params["_later"].append(text)
        return {"events": list(peer.patterns)}

    def _unsubscribe(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        for pattern in self._patterns(params):
            peer.patterns.pop(pattern, None)
        return {"events": list(peer.patterns)}

    @staticmethod
    def _patterns(params: dict[str, Any]) -> list[str]:
        patterns = params.get("events")
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise Failure(_contract.E_INVALID_PARAMS, "invalid_params", field="events")
        try:
            for pattern in patterns:
                check_pattern(pattern)
        except ValueError:
            raise Failure(_contract.E_INVALID_PARAMS, "invalid_params", field="events") from None
        return patterns

    # ------------------------------------------------------------------ registry

    def _register(self, peer: Peer, params: dict[str, Any]) -> dict[str, str]:
        methods = params.get("methods")
        if not isinstance(methods, list):
            raise Failure(_contract.E_INVALID_PARAMS, "invalid_params", field="methods")
        for row in methods:
            named = {"name": row} if isinstance(row, str) else dict(row)
            name = str(named["name"]).removeprefix(f"{peer.module_id}.")
            peer.methods[name] = {**named, "name": name}
        peer.service = params.get("service", peer.service)
        peer.accepts_meta = bool(params.get("accepts_meta", peer.accepts_meta))
        peer.registered = True
        self._step(peer)
        return {"state": peer.state}

    def _unregister(self, peer: Peer, params: dict[str, Any]) -> dict[str, str]:
        for name in params.get("methods", list(peer.methods)):
            peer.methods.pop(name, None)
        return {"state": peer.state}

    @staticmethod
    def _step(peer: Peer) -> None:
        if peer.state == "connected" and peer.registered and peer.subscribed:
            peer.state = "registered"

    def _get_module(self, peer: Peer, params: dict[str, Any]) -> dict[str, Any]:
        known = self.peers.get(str(params.get("module_id")))
        if known is None:
            raise Failure(_contract.E_OFFLINE, "unknown_module")
        return self._row(known)

    @staticmethod
    def _row(peer: Peer) -> dict[str, Any]:
        methods = list(peer.methods.values())
        return {"module_id": peer.module_id, "state": peer.state, "methods": methods, "service": peer.service}


def _event(event: str, data: str, source: str) -> str:
    params = f'{{"event":{frames.encode(event)},"data":{data},"source":{frames.encode(source)}}}'
    return frames.notification("event", params)
