"""What the hub asks its edge to do; the edge carries it out and decides nothing.

Messages are no effects: they go into the queue of their peer, which the edge drains (see core/peer.py). An effect is
rare: a close, a clock to be started or stopped, a line for the log, the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from kite_kernel.core.peer import Link

Clock: TypeAlias = Literal["debounce", "launcher"]


@attrs.frozen
class CloseWire:
    """Send these frames (whole ones, headers included), then a close frame, then let the socket go.

    `code` is already the number that this peer's protocol version knows.
    """

    link: Link
    code: int
    reason: str
    frames: bytes = b""


@attrs.frozen
class Arm:
    """Start the clock of `key`; after `delay_s` it calls the hub back. Armed again it starts anew."""

    clock: Clock
    key: str
    delay_s: float


@attrs.frozen
class Disarm:
    """Cancel the clock of `key`, if it runs."""

    clock: Clock
    key: str


@attrs.frozen
class Log:
    """One line: `text` for people, `event` and `fields` for machines. Never a token, never a payload."""

    level: Literal["debug", "info", "warning", "error"]
    event: str
    text: str
    fields: dict[str, object] = attrs.field(factory=dict)


@attrs.frozen
class Stop:
    """The kernel ends: `module.shutdown` was said; wait for the last wire, at most `deadline_s`, then exit 0."""

    reason: str
    deadline_s: float


@attrs.frozen
class Revoke:
    """Wires of other planes that used a token of this name are closed 4001."""

    names: frozenset[str]


Effect: TypeAlias = CloseWire | Arm | Disarm | Log | Stop | Revoke
