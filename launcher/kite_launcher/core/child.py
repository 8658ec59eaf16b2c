"""One module as the launcher sees it: a table of states, its wish, its budget, and the story of how it came there.

Nothing else may change a state. The edge reports what happened; the table says where that leads, and what the
table does not know is refused (False) and changes nothing.
Laws: `running` only with a pid; `stopped` only after the proof that nothing of the tree is left; every step stands
in the timeline with its cause.
Source: spec 50 §2–§3; spec 05 §3 (states); cases S-12, S-13, S-54, S-59.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, Final

import attrs

from kite_launcher.core.proc import Identity
from kite_launcher.core.restart import Tally

TIMELINE_MAX: Final = 200  # entries of one module: some thirty lives, which no budget spends within an hour


class State(Enum):
    """Where a module is. The values are what `status` shows."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    BACKOFF = "backoff"
    FAILED = "failed"


class Event(Enum):
    """What can happen to a module."""

    WANTED = "wanted"  # somebody wants it up
    UNWANTED = "unwanted"  # stopped before there was a process
    BLOCKED = "blocked"  # it waits for another one again
    SPAWNED = "started"
    READY = "ready"
    DONE = "done"
    STOPPING = "stopping"
    REFUSED = "refused to end"
    GONE = "gone"  # ended as asked, nothing left
    RETRY = "back-off"
    SETTLED = "ended"  # its policy asks for no restart
    FAILED = "failed"


_S, _E = State, Event
_RESTING: Final = (_S.STOPPED, _S.DONE, _S.FAILED, _S.BACKOFF, _S.WAITING)
_ALIVE: Final = (_S.STARTING, _S.RUNNING, _S.STOPPING)

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    **{(state, _E.WANTED): _S.WAITING for state in _RESTING},
    **{(state, _E.UNWANTED): _S.STOPPED for state in _RESTING},
    **{(state, _E.SPAWNED): _S.STARTING for state in (_S.WAITING, _S.BACKOFF, _S.FAILED)},
    (_S.STARTING, _E.READY): _S.RUNNING,
    (_S.RUNNING, _E.READY): _S.RUNNING,
    (_S.STARTING, _E.DONE): _S.DONE,
    **{(state, _E.STOPPING): _S.STOPPING for state in _ALIVE},
    **{(state, _E.REFUSED): _S.STOPPING for state in _ALIVE},
    **{(state, _E.GONE): _S.STOPPED for state in _ALIVE},
    **{(state, _E.SETTLED): _S.STOPPED for state in _ALIVE},
    **{(state, _E.BLOCKED): _S.WAITING for state in _ALIVE},
    **{(state, _E.RETRY): _S.BACKOFF for state in (*_ALIVE, _S.WAITING, _S.BACKOFF)},
    **{(state, _E.FAILED): _S.FAILED for state in (*_ALIVE, _S.WAITING, _S.BACKOFF, _S.FAILED)},
}


@attrs.frozen
class Moment:
    """One instant: `now` monotonic seconds for decisions, `utc` an ISO 8601 stamp for people."""

    now: float
    utc: str


@attrs.define
class Entry:
    """One line of the story. `times` > 1: the same again, the last time at `at`."""

    at: str
    event: str
    cause: str
    detail: str
    times: int = 1


@attrs.define
class Child:
    """The state of one module (or of the kernel or the watchdog) and how it came there."""

    name: str
    role: str
    tally: Tally
    since_utc: str
    state: State = State.STOPPED
    since: float = 0.0
    wanted: bool = False
    by_hand: bool = False  # stopped by a person: remembered over reloads and crashes
    run: int = 0
    identity: Identity | None = None
    ready_at: float | None = None
    next_try: float | None = None
    restarts: int = 0
    why: str = ""
    exit_code: int | None = None  # of the last run that ended by exit, None after a signal
    note: str = ""  # STATUS= of its notify socket, or the reason of a degraded health answer
    grade: str | None = None
    refusers: tuple[Identity, ...] = ()
    timeline: deque[Entry] = attrs.field(factory=lambda: deque(maxlen=TIMELINE_MAX))

    def on(self, event: Event, moment: Moment, *, cause: str = "", detail: str = "") -> bool:
        """Take one event. False: the table knows no such step; nothing changed."""
        target = TRANSITIONS.get((self.state, event))
        if target is None:
            return False
        if target is not self.state:
            self.since, self.since_utc = moment.now, moment.utc
        self.state = target
        if target not in _ALIVE:
            self.identity = None
        if target is not State.RUNNING:
            self.ready_at = None
        if event is Event.READY and self.ready_at is None:
            self.ready_at = moment.now
        if target is not State.BACKOFF and event is not Event.FAILED:
            self.next_try = None
        if event is not Event.REFUSED and target is not State.STOPPING:
            self.refusers = ()
        self.tell(event.value, moment, cause=cause, detail=detail)
        return True

    def tell(self, event: str, moment: Moment, *, cause: str = "", detail: str = "") -> None:
        """Write one line of the story; the same line again is counted, not repeated."""
        last = self.timeline[-1] if self.timeline else None
        if last is not None and (last.event, last.cause, last.detail) == (event, cause, detail):
            last.times += 1
            last.at = moment.utc
            return
        self.timeline.append(Entry(moment.utc, event, cause, detail))

    @property
    def alive(self) -> bool:
        """True while a process of it may exist."""
        return self.state in _ALIVE

    @property
    def ready(self) -> bool:
        """True while it offers its service, or has done what it was for."""
        return self.state is State.RUNNING or self.state is State.DONE

    @property
    def settled(self) -> bool:
        """True when waiting longer changes nothing by itself."""
        return self.state in (State.RUNNING, State.DONE, State.STOPPED, State.FAILED)

    def up_s(self, now: float) -> float:
        """Return how long it has been ready, 0 when it is not."""
        return now - self.ready_at if self.ready_at is not None else 0.0


def describe_exit(status: int | None) -> tuple[str, bool]:
    """Put a raw wait status into words, and say whether it was a good end."""
    if status is None:
        return "ended, status unknown", False
    low = status & 0x7F
    if low == 0:
        code = (status >> 8) & 0xFF
        return f"exit {code}", code == 0
    return f"killed by signal {SIGNAL_NAMES.get(low, low)}", False


SIGNAL_NAMES: Final[dict[int, str]] = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
    12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ", 31: "SYS",
}  # fmt: skip
SIGNALS: Final[dict[str, int]] = {name: number for number, name in SIGNAL_NAMES.items()}


def story(child: Child, *, rule: str, now: float) -> dict[str, Any]:
    """Return `why NAME --json` of 05 §3."""
    policy = child.tally.policy
    next_try = None if child.next_try is None else round(max(child.next_try - now, 0.0), 3)
    timeline = [
        {
            "at": entry.at,
            "event": entry.event,
            "cause": entry.cause,
            "detail": entry.detail if entry.times == 1 else f"{entry.detail} ({entry.times} times)".lstrip(),
        }
        for entry in child.timeline
    ]
    return {
        "schema": 1,
        "name": child.name,
        "state": child.state.value,
        "why": child.note or child.why,
        "rule": rule,
        "budget": {"left": child.tally.left(now=now), "of": policy.max_restarts, "within_s": policy.within_s},
        "next_try_s": next_try,
        "timeline": timeline,
    }
