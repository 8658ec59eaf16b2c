"""Shared names: several modules behind one service, the ready one with the fewest calls in flight answers.

Source: spec 10-wire §6 (connection pool and fail-over), case W-31.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kite_kernel.core.registry import State

if TYPE_CHECKING:
    from kite_kernel.core.peer import Peer


class Services:
    """Service name -> its members, in the order in which they joined."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Peer]] = {}

    def join(self, peer: Peer, service: str) -> None:
        """Enter a member; it leaves its old service first."""
        self.leave(peer)
        peer.service = service
        self._members.setdefault(service, {})[peer.id] = peer

    def leave(self, peer: Peer) -> None:
        """Take a member out, if it is one."""
        if peer.service is not None:
            members = self._members.get(peer.service, {})
            members.pop(peer.id, None)
            if not members:
                self._members.pop(peer.service, None)
            peer.service = None

    def pick(self, service: str, method: str) -> Peer | None:
        """Choose who answers. Returns: any member where none is ready, to say why not; None for an unknown name."""
        members = self._members.get(service)
        if not members:
            return None
        ready = [
            peer
            for peer in members.values()
            if peer.state is State.READY and peer.link is not None and not peer.link.closing
        ]
        serving = [peer for peer in ready if method in peer.methods] or ready
        return min(serving, key=_load) if serving else next(iter(members.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._members


def _load(peer: Peer) -> int:
    return peer.working
