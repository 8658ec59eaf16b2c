"""The states of one client's session: idle → connecting → authenticating → syncing → open → waiting …, stopped.

What this room is for: it turns what happens to wires into a state with a reason and a due time, so that a person can be
shown `waiting` with its countdown. What it must never do: touch a socket, read a clock, draw chance of its own.
Laws: counters reset only after connect + auth; `waiting` always has a due time; `stopped` is final; what befalls a wire
that this client replaced itself changes nothing. Held by the vectors `session`. Source: spec 10-wire §4, 05-surface §9.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from kite_modules._contract import CLOSE_RATE_LIMITED, SHUTDOWN_FINAL
from kite_modules.sdk.reconnect import Decision, NetworkState, Policy, decide, modern_code, network_transition


class State(enum.Enum):
    """Where a session stands; the value is the word of the contract."""

    IDLE = "idle"
    CONNECTING = "connecting"
    AUTHENTICATING = "authenticating"
    SYNCING = "syncing"
    OPEN = "open"
    WAITING = "waiting"
    STOPPED = "stopped"


_ON_A_WIRE: Final = (State.CONNECTING, State.AUTHENTICATING, State.SYNCING, State.OPEN)


class Session:
    """One client's session over any number of wires.

    All times are monotonic seconds, given by the caller. Attributes: `state`, `reason` (for people), `due_at` (while
    waiting), `attempt`, `cooldown_attempts`, `last_close_code` (as received), `fatal` (stopped by a final code), `wire`
    (number of the newest wire, from 1), `decision` (the last one).
    """

    __slots__ = (
        "_network",
        "_policy",
        "_protocol",
        "_random",
        "_told_to_end",
        "attempt",
        "cooldown_attempts",
        "decision",
        "due_at",
        "fatal",
        "last_close_code",
        "reason",
        "state",
        "wire",
    )

    def __init__(self, policy: Policy, random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self._protocol: int | None = None
        self._network: NetworkState = "online"
        self._told_to_end = False
        self.state = State.IDLE
        self.reason = "not started"
        self.due_at: float | None = None
        self.attempt = 0
        self.cooldown_attempts = 0
        self.last_close_code: int | None = None
        self.fatal = False
        self.wire = 0
        self.decision: Decision | None = None

    def connect(self) -> None:
        """Begin a new wire; the one before it, if any, is replaced."""
        if self.state is State.STOPPED:
            return
        self.wire += 1
        self._protocol = None
        self._enter(State.CONNECTING, "connecting")

    def connected(self) -> None:
        """The upgrade is done: the auth request goes out."""
        if self.state is State.CONNECTING:
            self._enter(State.AUTHENTICATING, "authenticating")

    def authenticated(self, protocol: int) -> None:
        """The auth answer came: only now all counters start at zero."""
        if self.state is State.AUTHENTICATING:
            self._protocol = protocol if protocol in (1, 2) else 2
            self.attempt = 0
            self.cooldown_attempts = 0
            self._enter(State.SYNCING, "syncing")

    def synced(self) -> None:
        """Subscriptions, registration and missed records are in step."""
        if self.state is State.SYNCING:
            self._enter(State.OPEN, "open")

    def lost(
        self,
        code: int | None,
        *,
        now: float,
        wire: int | None = None,
        close_reason: str = "",
        retry_after_s: float | None = None,
    ) -> Decision | None:
        """A wire ended. Returns the decision, None where there was nothing to decide.

        Args: `wire` the number of the wire that ended, None = the newest.
        """
        if self.state is State.STOPPED or (wire is not None and wire != self.wire) or self.state not in _ON_A_WIRE:
            return None
        self.last_close_code = code
        if self._told_to_end:
            self._enter(State.STOPPED, "told to end")
            return None
        limited = modern_code(code, protocol=self._protocol, close_reason=close_reason) == CLOSE_RATE_LIMITED
        tries = self.cooldown_attempts if limited else self.attempt
        decision = decide(
            code,
            tries + 1,
            self._policy,
            self._random,
            protocol=self._protocol,
            close_reason=close_reason,
            retry_after_s=retry_after_s,
        )
        self.decision = decision
        if not decision.retry:
            self.fatal = True
            self._enter(State.STOPPED, decision.reason)
            return decision
        if limited:
            self.cooldown_attempts += 1
        else:
            self.attempt += 1
        self._enter(State.WAITING, decision.reason)
        self.due_at = now + decision.delay_s
        return decision

    def time(self, *, now: float) -> bool:
        """Return True when the wait is over: the next wire has begun."""
        if self.state is not State.WAITING or self.due_at is None or now < self.due_at:
            return False
        self.connect()
        return True

    def retry_now(self) -> bool:
        """End the wait at once; the count stays. Returns False where nothing waits."""
        if self.state is not State.WAITING:
            return False
        self.connect()
        return True

    def reconnect(self) -> bool:
        """Replace a wire that still stands by a new one; the count stays."""
        if self.state not in (*_ON_A_WIRE, State.WAITING):
            return False
        self.connect()
        return True

    def network(self, state: NetworkState, *, path_changed: bool = False) -> bool:
        """The network changed. Returns True when a new wire has begun; repeated signals are idempotent."""
        transition = network_transition(self._network, state, path_changed=path_changed)
        self._network = state
        if self.state in (State.IDLE, State.STOPPED):
            return False
        if transition.reset_attempt:
            self.attempt = 0
        if not transition.reconnect_now:
            return False
        return self.reconnect()

    def shutdown(self, reason: str) -> None:
        """The kernel told this client to end; with a final reason no code brings it back."""
        if reason in SHUTDOWN_FINAL:
            self._told_to_end = True

    def stop(self) -> None:
        """This client leaves by itself."""
        if self.state is not State.STOPPED:
            self._enter(State.STOPPED, "left by itself")

    @property
    def told_to_end(self) -> bool:
        """Whether a final `module.shutdown` came."""
        return self._told_to_end

    def _enter(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason
        self.due_at = None
