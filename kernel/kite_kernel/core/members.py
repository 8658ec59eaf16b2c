"""Coming and going: authentication's outcome, states, debounce, the launcher's loss.

Laws:
- A state changes by the table of core/registry.py alone.
- The debounce delays the public `module.offline` only; routing, takeover and what is known for certain are immediate.
- What a module says about itself (`ready`, `exiting`) counts for its sender, whatever `module_id` it claims.

Source: spec 20-kernel §1-2, 00 §14-15, 05-surface §8-9, cases W-27 to W-30, W-45.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kite_kernel._contract import CLOSE_REPLACED, E_CONNECTION_LOST
from kite_kernel.core.effects import Arm, Disarm, Stop
from kite_kernel.core.peer import Call, Peer
from kite_kernel.core.quality import Pulse
from kite_kernel.core.reconnect import Decision, Kind, decide
from kite_kernel.core.registry import SAID_ALL, State, Step, step
from kite_kernel.core.replay import Replay
from kite_kernel.core.text import encode, error, result
from kite_kernel.core.websocket import text_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.auth import AuthRequest, Grant
    from kite_kernel.core.board import Board
    from kite_kernel.core.calls import Calls
    from kite_kernel.core.events import Events
    from kite_kernel.core.peer import Link
    from kite_kernel.core.permissions import Permissions

GATES: Final = frozenset({"relay"})
"""Modules that judge people by roles of their own: what an admin asks reaches administrative methods through them."""


class Members:
    """Who is here and in which state. `fresh_id` makes session ids; chance is a parameter."""

    __slots__ = (
        "_board",
        "_calls",
        "_events",
        "_fresh_id",
        "_launcher_told",
        "_launcher_was_ready",
        "_told",
        "launcher_leaves",
        "permissions",
        "stopping",
    )

    def __init__(self, board: Board, calls: Calls, events: Events, fresh_id: Callable[[], str]) -> None:
        self._board = board
        self._calls = calls
        self._events = events
        self._fresh_id = fresh_id
        self.permissions: dict[str, Permissions] = {}
        self._launcher_was_ready = False  # before its offline was told
        self._launcher_told = False  # its return was told, so its own `module.ready` needs no second telling
        self.launcher_leaves = False  # it said `module.exiting`: the instance ends on purpose
        self.stopping = ""
        self._told: tuple[Any, msgspec.Raw, msgspec.Raw] = (None, msgspec.Raw(), msgspec.Raw())

    # --- coming ---

    def admit(
        self, link: Link, grant: Grant, module_id: str, request: AuthRequest, kernel: dict[str, Any], *, now: float
    ) -> None:
        """Let an authenticated wire in: decide what it is, take over, answer, send again what it missed."""
        board = self._board
        peer = board.peers.get(module_id)
        how = decide(peer, instance=request.instance, protocol=request.protocol, resume=request.resume)
        if peer is not None and how.replaces:
            self._replace(peer, now=now)
        if peer is not None and how.kind is Kind.RESTARTED:
            self._restart(peer, now=now)
        if peer is None:
            peer = board.peers[module_id] = Peer(module_id, grant.role, State.OFFLINE, Pulse())
            self._move(peer, Step.AUTH_OK, now=now)
        elif how.kind is Kind.SAME:
            self._welcome_back(peer, how, now=now)
        board.effects.append(Disarm("debounce", module_id))
        board.note_coming(module_id, now=now)
        peer.role = grant.role
        peer.admin = grant.role != "module" or grant.name in GATES
        peer.token = grant.name
        peer.instance = request.instance if request.instance is not None else peer.instance
        peer.protocol = request.protocol
        permissions = self.permissions.get(grant.name) if grant.role == "module" else None
        if permissions is not peer.permissions:
            peer.permissions = permissions
            board.topics.forget_audiences()
        peer.exiting = False
        peer.pulse.reset()
        link.peer = peer
        self._begin_session(peer, link, request, how)
        link.urgent += text_frame(result(request.id, encode(self._welcome(peer, how, kernel))))
        if how.resumes and request.resume is not None and peer.replay is not None:
            link.urgent += peer.replay.last(peer.sent - request.resume[1])
        peer.link = link
        board.touch(peer)
        if grant.role == "launcher":
            self._launcher_back(peer, now=now)

    def _welcome(self, peer: Peer, how: Decision, kernel: dict[str, Any]) -> dict[str, Any]:
        settings = self._board.settings
        if self._told[0] is not settings:
            timing, limits = encode(timing_told(settings.timing)), encode(settings.limits())
            self._told = (settings, msgspec.Raw(timing), msgspec.Raw(limits))
        return {
            "module_id": peer.id,
            "session": peer.session,
            "protocol": peer.protocol,
            "kernel": kernel,
            "state": peer.state.value,
            "resumed": how.resumes,
            "received": peer.received,
            "timing": self._told[1],
            "limits": self._told[2],
        }

    def _begin_session(self, peer: Peer, link: Link, request: AuthRequest, how: Decision) -> None:
        """Number anew, or go on where the session stood."""
        if how.resumes:
            return
        peer.session = self._fresh_id()
        peer.replay = Replay() if request.protocol >= 2 and request.instance is not None else None
        peer.frames_in += peer.received
        peer.frames_out += peer.sent
        peer.received = 0
        peer.sent = 0
        peer.overrun = False
        peer.ack_asked = False
        held = [entry for entry in peer.out if isinstance(entry, Call) and not entry.void]
        peer.drop_queue()
        for lane in peer.subscriptions.values():
            if lane is not None:
                lane.waiting.clear()
        if held:
            peer.laned = True
            peer.out.extend(held)
        self._fail_own(peer, told=request.resume is not None)

    def _fail_own(self, peer: Peer, *, told: bool) -> None:
        """A new session knows nothing of the old one's calls: they end, said aloud to who asked to resume."""
        if not peer.calls:
            return
        idents = [call.caller_id for call in peer.calls.values() if call.sink is None]
        self._calls.drop_caller(peer)
        if told:
            for ident in idents:
                self._board.send(peer, error(ident, E_CONNECTION_LOST, "connection_lost", "unknown"))

    def _replace(self, peer: Peer, *, now: float) -> None:
        """The newcomer takes over at once; the old wire ends as 4010."""
        old = peer.link
        if old is None:
            return
        peer.link = None
        self._board.close(old, CLOSE_REPLACED, "replaced by a newer connection of the same module", now=now)
        self._board.log(
            "info", "replaced", f"[kernel] Closed old connection for {peer.id}", module_id=peer.id, code=CLOSE_REPLACED
        )

    def _restart(self, peer: Peer, *, now: float) -> None:
        """Another process under the same id: the old registration and everything in hand is gone."""
        was_ready = peer.state is State.READY
        peer.drop_queue()
        self._move(peer, Step.RESTARTED, now=now)
        self._clear(peer, "restarted")
        if was_ready:
            self._events.announce(
                "module.offline", {"module_id": peer.id, "reason": "restarted", "since": peer.since}, now=now
            )

    def _welcome_back(self, peer: Peer, how: Decision, *, now: float) -> None:
        state = step(peer.state, Step.CAME_BACK)
        if state is None:
            self._board.log("error", "impossible_step", f"[kernel] {peer.id}: came back while {peer.state.value}")
        if not how.replaces:
            self._board.log(
                "info",
                "reconnected",
                f"[kernel] {peer.id} reconnected within debounce window",
                module_id=peer.id,
                resumed=how.resumes,
            )

    # --- what it says ---

    def said(self, peer: Peer, bit: int, *, now: float) -> None:
        """Note that register or subscribe was done; both make it registered."""
        peer.said |= bit
        if peer.said == SAID_ALL and peer.state is State.CONNECTED:
            self._move(peer, Step.SAID_BOTH, now=now)

    def said_ready(self, peer: Peer, *, now: float) -> bool:
        """Take `module.ready` of its sender. Returns: False (and an error in the log) where it is too early."""
        if not self._move(peer, Step.READY_SAID, now=now):
            return False
        if peer.role == "launcher" and self._launcher_told:
            self._launcher_told = False
            return True
        self._events.announce("module.ready", {"module_id": peer.id, "since": peer.since}, now=now)
        return True

    def said_exiting(self, peer: Peer, reason: str | None, *, now: float) -> None:
        """Take `module.exiting` of its sender."""
        peer.exiting = True
        if peer.role == "launcher":
            self.launcher_leaves = True
        self._events.announce("module.exiting", {"module_id": peer.id, "reason": reason}, now=now)

    def _move(self, peer: Peer, what: Step, *, now: float) -> bool:
        state = step(peer.state, what)
        if state is None:
            self._board.log(
                "error",
                "impossible_step",
                f"[kernel] {peer.id}: {what.value} while {peer.state.value}",
                module_id=peer.id,
                state=peer.state.value,
            )
            return False
        if state is not peer.state or not peer.since_utc:
            peer.state = state
            peer.since_utc = self._board.utc(now)
        return True

    # --- going ---

    def on_cut(self, link: Link, *, clean: bool, now: float) -> None:
        """A module's wire is gone. `clean`: it said a close frame, so its process is known to be leaving."""
        peer = link.peer
        if peer is None or peer.link is not link:
            return
        peer.link = None
        peer.pulse.reset()
        timing = self._board.settings.timing
        if clean or peer.exiting:
            self._calls.fail_in_hand(peer, "connection_lost")
        if peer.exiting:
            self.on_away(peer.id, now=now)
        else:
            self._board.effects.append(Arm("debounce", peer.id, timing.debounce))
        if not peer.resumable:
            peer.drop_queue()
        if peer.role == "launcher" and not self._board.settings.standalone and not self.stopping:
            self._board.effects.append(Arm("launcher", peer.id, timing.launcher_grace))

    def on_away(self, module_id: str, *, now: float) -> None:
        """The debounce is over (or it said that it leaves): the module is offline and forgotten."""
        peer = self._board.peers.get(module_id)
        if peer is None or peer.link is not None:
            return
        reason = "exiting" if peer.exiting else "connection_lost"
        was_ready = peer.state is State.READY
        del self._board.peers[module_id]
        self._move(peer, Step.AWAY, now=now)
        self._clear(peer, "connection_lost")
        self._calls.drop_caller(peer)
        peer.gone = True
        self._board.note_left(module_id, peer.since_utc)
        self._calls.once.forget_caller(module_id)
        peer.drop_queue()
        peer.replay = None
        self._board.effects.append(Disarm("debounce", module_id))
        if was_ready:
            self._board.log("info", "offline", f"[kernel] {module_id} is offline", module_id=module_id, reason=reason)
        self._events.announce(
            "module.offline", {"module_id": module_id, "reason": reason, "since": peer.since}, now=now
        )
        if peer.role == "launcher":
            self._launcher_was_ready = was_ready

    def _clear(self, peer: Peer, reason: str) -> None:
        """Drop registration, subscriptions and whatever was in its hands."""
        for pattern in peer.subscriptions:
            self._board.topics.remove(peer, pattern)
        peer.subscriptions = {}
        peer.lanes = 0
        self._calls.services.leave(peer)
        self._calls.fail_in_hand(peer, reason)
        self._calls.fail_held(peer)
        if peer.calls:
            self._calls.drop_caller(peer)
        peer.methods = {}
        peer.accepts_meta = False
        peer.meta = b"null"
        peer.said = 0

    # --- the launcher ---

    def _launcher_back(self, peer: Peer, *, now: float) -> None:
        """The launcher is back within its grace: where its going was told, its coming is told, once."""
        self._board.effects.append(Disarm("launcher", peer.id))
        self.launcher_leaves = False
        if self._launcher_was_ready:
            self._launcher_was_ready = False
            self._launcher_told = True
            self._events.announce("module.ready", {"module_id": peer.id, "since": peer.since}, now=now)

    def on_launcher_lost(self, *, now: float) -> None:
        """The launcher stayed away for its whole grace: everybody leaves."""
        self.stop("launcher_lost", now=now)

    def stop(self, reason: str, *, now: float) -> None:
        """Say `module.shutdown` to all and ask the edge to end. Idempotent."""
        if self.stopping:
            return
        self.stopping = reason
        deadline_s = self._board.settings.timing.shutdown
        self._events.announce("module.shutdown", {"reason": reason, "deadline_s": deadline_s}, now=now)
        self._board.log("info", "stopping", f"[kernel] stopping: {reason}", reason=reason)
        self._board.effects.append(Stop(reason, deadline_s))


def timing_told(timing: Any) -> dict[str, float]:
    """Return the times that a client is told, in seconds."""
    return {
        "scale": timing.scale,
        "debounce_s": timing.debounce,
        "ping_active_s": timing.ping_active,
        "ping_idle_s": timing.ping_idle,
        "pong_s": timing.pong,
        "ping_misses": timing.ping_misses,
        "call_s": timing.call,
        "shutdown_s": timing.shutdown,
        "launcher_grace_s": timing.launcher_grace,
    }
