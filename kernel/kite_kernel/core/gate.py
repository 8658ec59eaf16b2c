"""The gate: wires before authentication, the first frame of each, and the tokens that hold now.

Laws:
- Nothing but the first frame decides; what is refused is kept nowhere, and no part of a token is ever said.
- Bad tries cost only further bad tries: a good token passes however many bad ones its address sent.

The lookup of a token is one hash and one dictionary access, so `[timing] verify` bounds it by construction; who comes
later than `[timing] auth` is closed by the clock. Source: spec 10-wire §2, 00 §9-12, cases W-47 to W-51.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kite_kernel._contract import (
    CLOSE_AUTH_FAILED,
    CLOSE_AUTH_MALFORMED,
    CLOSE_AUTH_TIMEOUT,
    CLOSE_RATE_LIMITED,
)
from kite_kernel.core.auth import Malformed, Rates, Tokens, judge_id, read_auth
from kite_kernel.core.peer import Link

if TYPE_CHECKING:
    from kite_kernel.core.auth import Grant
    from kite_kernel.core.board import Board
    from kite_kernel.core.calls import Calls
    from kite_kernel.core.members import Members

_INF = float("inf")
_LONG_AGO = float("-inf")


class Gate:
    """Who stands before the gate (`strangers`, the oldest first) and what opens it."""

    __slots__ = ("_board", "_calls", "_members", "_next_link", "kernel", "last_in_at", "rates", "strangers", "tokens")

    def __init__(self, board: Board, calls: Calls, members: Members, kernel: dict[str, Any]) -> None:
        self._board = board
        self._calls = calls
        self._members = members
        self._next_link = 0
        self.last_in_at = _LONG_AGO  # when somebody was let in last
        self.kernel = kernel  # what the auth answer says about the kernel
        self.strangers: dict[int, Link] = {}
        self.tokens = Tokens({})
        timing = board.settings.timing
        self.rates = Rates(timing.rate_window, timing.rate_max)

    def open(self, addr: str, wire: Any, *, now: float) -> Link:
        """Let a wire stand before the gate; its first frame is due."""
        self._next_link += 1
        link = Link(self._next_link, addr, now, now + self._board.settings.timing.auth, wire)
        self.strangers[link.id] = link
        self._board.counts["connections"] += 1
        return link

    def first_frame(self, link: Link, payload: bytes, now: float) -> None:
        """Judge the first frame: in, or out with one of 4001, 4003, 4020."""
        request = read_auth(payload)
        link.protocol = request.protocol
        if isinstance(request, Malformed):
            self._refuse(link, CLOSE_AUTH_MALFORMED, "authentication malformed", request.id, now)
            return
        found = self.tokens.find(request.token)
        module_id = judge_id(found[0], request.module_id) if found is not None else None
        if found is None or module_id is None:
            wait_s = self.rates.failure(link.addr, now=now)
            if wait_s is not None:
                self._limit(link, request.id, wait_s, now, None)
            else:
                self._refuse(link, CLOSE_AUTH_FAILED, "authentication failed", request.id, now)
            return
        wait_s = self.rates.good(link.addr, module_id, now=now)
        if wait_s is not None:
            self._limit(link, request.id, wait_s, now, module_id)
            return
        link.grant, link.digest = found
        self.strangers.pop(link.id, None)
        self._board.counts["authenticated"] += 1
        self.last_in_at = now
        self._members.admit(link, found[0], module_id, request, self.kernel, now=now)

    def _refuse(self, link: Link, code: int, why: str, ident: bytes, now: float) -> None:
        self._board.log_seldom(
            "warning", "auth_refused", f"{link.addr} {code}", f"[kernel] {why}", now=now, address=link.addr, code=code
        )
        self._board.close(link, code, why, now=now, ident=ident)

    def _limit(self, link: Link, ident: bytes, wait_s: float, now: float, module_id: str | None) -> None:
        self._board.counts["rate_limited"] += 1
        self._board.log_seldom(
            "warning",
            "rate_limited",
            f"{link.addr} {module_id}",
            f"[kernel] rate limited, next try in {wait_s:.1f}s",
            now=now,
            address=link.addr,
            module_id=module_id,
            code=CLOSE_RATE_LIMITED,
        )
        self._board.close(link, CLOSE_RATE_LIMITED, "rate limited", now=now, ident=ident, retry_after_s=wait_s)

    # --- time ---

    def next_at(self) -> float:
        """Return when the oldest stranger's first frame is due (monotonic; inf: none)."""
        return next(iter(self.strangers.values())).due_at if self.strangers else _INF

    def on_time(self, now: float) -> None:
        """Close those who said nothing in time."""
        for link in list(self.strangers.values()):
            if link.due_at > now:
                break
            del self.strangers[link.id]
            self._refuse(link, CLOSE_AUTH_TIMEOUT, "authentication timeout", b"null", now)

    def on_stall(self, now: float) -> None:
        """The kernel itself was away: everybody gets the whole time again."""
        for link in self.strangers.values():
            link.due_at = now + self._board.settings.timing.auth

    # --- tokens ---

    def set_tokens(self, tokens: Tokens) -> None:
        """Let these tokens hold from now."""
        self.tokens = tokens
        self._board.known_ids = tokens.names

    def is_good(self, digest: bytes, grant: Grant | None) -> bool:
        """Tell whether a token that opened the gate still would."""
        return grant is None or self.tokens.still_good(digest, grant)

    def revoke(self, *, now: float) -> None:
        """Close the wires whose token is gone: 4001, and what they had in hand has an unknown outcome."""
        for peer in list(self._board.peers.values()):
            link = peer.link
            if link is not None and not self.is_good(link.digest, link.grant):
                self._calls.fail_in_hand(peer, "connection_lost")
                self._board.log("warning", "revoked", f"[kernel] token of {peer.id} revoked", module_id=peer.id)
                self._board.close(link, CLOSE_AUTH_FAILED, "token revoked", now=now)
