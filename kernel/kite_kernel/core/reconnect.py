"""What a successful authentication means for a module that may be known already: a table as one function.

Source: spec 20-kernel §1, 10-wire §8, 05-surface §9, cases W-27, W-28, W-55, W-56.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kite_kernel.core.peer import Peer


class Kind(enum.Enum):
    """How the newcomer relates to what is known under its id."""

    FRESH = "fresh"  # nobody there: walks from connected
    SAME = "same"  # the same process again: state, registration and subscriptions stay
    RESTARTED = "restarted"  # another process: the old registration is dropped


@attrs.frozen
class Decision:
    """`replaces`: the old wire still stands and gets 4010. `resumes`: what was not received is sent again."""

    kind: Kind
    replaces: bool = False
    resumes: bool = False


def decide(peer: Peer | None, *, instance: str | None, protocol: int, resume: tuple[str, int] | None) -> Decision:
    """Decide about a newcomer. Args: `resume` is (session, received), as the newcomer claims it."""
    if peer is None:
        return Decision(Kind.FRESH)
    replaces = peer.link is not None
    if instance is not None and peer.instance is not None and instance != peer.instance:
        return Decision(Kind.RESTARTED, replaces)
    return Decision(Kind.SAME, replaces, _resumes(peer, protocol, resume))


def _resumes(peer: Peer, protocol: int, resume: tuple[str, int] | None) -> bool:
    """Tell whether every frame after `received` is still there."""
    if resume is None or peer.replay is None or protocol < 2 or peer.overrun:
        return False
    session, received = resume
    return session == peer.session and peer.sent - peer.replay.frames <= received <= peer.sent
