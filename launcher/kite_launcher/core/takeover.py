"""What one launcher leaves to the next when it is upgraded in place: all that its children must not notice.

The document passes through memory only (it holds tokens). Instants are ages, since each launcher's monotonic clock
begins anew. A document of another version is refused before anything has changed.
Source: spec 05 §3 (`upgrade`); issue of the launcher, point 4.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from kite_launcher.core.child import Child, Entry, State
from kite_launcher.core.proc import Identity

VERSION: Final = 1


@attrs.define
class Takeover:
    """`fds` names inherited descriptors; `notify` those of the modules' sockets. `answer` is who waits for the word.

    `rollback` is the argv of the launcher that left this, None once it was used.
    """

    config: str
    state_dir: str
    mark: str
    url: str
    umask: int
    nofile: tuple[int, int]
    detached: bool
    restart_argv: tuple[str, ...]
    rollback: tuple[str, ...] | None
    fds: dict[str, int]
    notify: dict[str, int]
    tokens: dict[str, Any] = attrs.field(repr=False)
    wire: dict[str, Any] = attrs.field(repr=False)
    units: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    answer: tuple[int, Any] | None = None
    note: str = ""

    def render(self) -> bytes:
        """Return the document."""
        return json.dumps({"version": VERSION, **attrs.asdict(self)}, ensure_ascii=True).encode("ascii")


def parse_takeover(data: bytes) -> Takeover:
    """Read a document. Raises ValueError for what this version can't go on with."""
    document = json.loads(data)
    if not isinstance(document, dict) or document.pop("version", None) != VERSION:
        raise ValueError("the running launcher is of a version that this one can't take over from")
    known = {field.name for field in attrs.fields(Takeover)}
    if unknown := set(document) - known:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    try:
        made = Takeover(**document)
    except TypeError as error:
        raise ValueError(f"members are missing: {error}") from error
    made.nofile = (made.nofile[0], made.nofile[1])
    made.restart_argv = tuple(made.restart_argv)
    made.rollback = tuple(made.rollback) if made.rollback is not None else None
    made.answer = (made.answer[0], made.answer[1]) if made.answer is not None else None
    return made


def dump_child(child: Child, *, now: float) -> dict[str, Any]:
    """Put one unit's story into plain data."""
    identity = child.identity
    return {
        "state": child.state.value,
        "since_utc": child.since_utc,
        "wanted": child.wanted,
        "by_hand": child.by_hand,
        "run": child.run,
        "pid": identity.pid if identity is not None else 0,
        "start_ticks": identity.start_ticks if identity is not None else 0,
        "up_s": child.up_s(now),
        "restarts": child.restarts,
        "why": child.why,
        "note": child.note,
        "exit_code": child.exit_code,
        "attempt": child.tally.attempt,
        "restart_ages_s": [now - at for at in child.tally.restarts_at],
        "next_in_s": None if child.next_try is None else max(child.next_try - now, 0.0),
        "timeline": [attrs.asdict(entry) for entry in child.timeline],
    }


def restore_child(child: Child, data: dict[str, Any], *, now: float) -> Identity | None:
    """Take a story over; returns the process that is to be adopted, None when there is none.

    A unit with a process is left `waiting`: adopting it brings it back to where it was.
    """
    state = State(data["state"])
    child.wanted, child.by_hand = bool(data["wanted"]), bool(data["by_hand"])
    child.run, child.restarts, child.exit_code = int(data["run"]), int(data["restarts"]), data["exit_code"]
    child.why, child.note = str(data["why"]), str(data["note"])
    child.tally.attempt = int(data["attempt"])
    child.tally.restarts_at.extend(now - float(age) for age in data["restart_ages_s"])
    child.timeline.extend(Entry(**entry) for entry in data["timeline"])
    if data["pid"]:
        child.state = State.WAITING
        return Identity(int(data["pid"]), int(data["start_ticks"]))
    child.state, child.since_utc, child.since = state, str(data["since_utc"]), now
    child.next_try = None if data["next_in_s"] is None else now + float(data["next_in_s"])
    return None
