"""Module states: TRANSITIONS is the only thing that may change one.

Law: an event that is not in the table changes nothing; `step` says so with None and the caller logs an error.
Source: spec 20-kernel §1.
"""

from __future__ import annotations

import enum
from typing import Final


class State(enum.Enum):
    """Where a module stands; the values are the words of the wire."""

    OFFLINE = "offline"
    CONNECTED = "connected"
    REGISTERED = "registered"
    READY = "ready"


class Step(enum.Enum):
    """What can happen to a module's state."""

    AUTH_OK = "auth ok"
    SAID_BOTH = "subscribe and register done"
    READY_SAID = "publishes module.ready"
    WIRE_CUT = "wire cut"
    CAME_BACK = "same module back within the debounce"
    RESTARTED = "another process of it back within the debounce"
    AWAY = "debounce over, or it said module.exiting and its wire is closed"


_S, _E = State, Step
TRANSITIONS: Final[dict[tuple[State, Step], State]] = {
    (_S.OFFLINE, _E.AUTH_OK): _S.CONNECTED,
    (_S.CONNECTED, _E.SAID_BOTH): _S.REGISTERED,
    (_S.REGISTERED, _E.SAID_BOTH): _S.REGISTERED,
    (_S.READY, _E.SAID_BOTH): _S.READY,
    (_S.REGISTERED, _E.READY_SAID): _S.READY,
    (_S.READY, _E.READY_SAID): _S.READY,
    **{(state, _E.WIRE_CUT): state for state in (_S.CONNECTED, _S.REGISTERED, _S.READY)},
    **{(state, _E.CAME_BACK): state for state in (_S.CONNECTED, _S.REGISTERED, _S.READY)},
    **{(state, _E.RESTARTED): _S.CONNECTED for state in (_S.CONNECTED, _S.REGISTERED, _S.READY)},
    **{(state, _E.AWAY): _S.OFFLINE for state in (_S.CONNECTED, _S.REGISTERED, _S.READY)},
}

REGISTERED_BIT: Final = 1
SUBSCRIBED_BIT: Final = 2
SAID_ALL: Final = REGISTERED_BIT | SUBSCRIBED_BIT


def step(state: State, what: Step) -> State | None:
    """Return the state after `what`, or None where the table has no such row."""
    return TRANSITIONS.get((state, what))
