"""A running kernel: hub, hand, door and planes in one nursery; and how it ends.

`run` is what `main` runs and what tests run over their own streams. Source: spec 20-kernel §7, case W-58.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from kite_kernel._contract import CLOSE_GOING_AWAY
from kite_kernel.core.hub import Hub
from kite_kernel.edge.hand import Hand
from kite_kernel.edge.listener import Door
from kite_kernel.edge.modules import ModulePlane
from kite_kernel.edge.pages import Pages
from kite_kernel.edge.wire import FAREWELL_S
from kite_kernel.methods import table

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from kite_kernel.config import Config
    from kite_kernel.core.auth import Tokens

_log = structlog.get_logger()


@attrs.define
class Kernel:
    """The parts of a running kernel, for those who join further planes and methods to it."""

    hub: Hub
    hand: Hand
    door: Door
    pages: Pages
    config: Config
    nursery: trio.Nursery
    at_end: list[Callable[[], None]] = attrs.field(factory=list)
    on_tokens: list[Callable[[], None]] = attrs.field(factory=list)

    def use_tokens(self, tokens: Tokens) -> None:
        """Let other tokens hold from now."""
        self.hub.on_tokens(tokens, now=trio.current_time())
        for act in self.on_tokens:
            act()
        self.hand.settle()

    def stop(self, reason: str) -> None:
        """Begin the graceful end; `run` returns when it is done."""
        self.hub.stop(reason, now=trio.current_time())
        self.hand.settle()

    def expect_launcher(self) -> None:
        """A launcher started this kernel: should it die before it ever connects, its grace runs all the same.

        Without this nobody would end such a kernel: no wire is cut, so no clock would begin. Source: 20-kernel §2.
        """
        if not self.hub.settings.standalone:
            self.hand.scopes.arm("launcher", "launcher", self.hub.settings.timing.launcher_grace)

    def listen(self, listener: socket.socket) -> None:
        """Serve one more listening socket."""
        self.nursery.start_soon(self.door.serve, listener)


def build(
    config: Config,
    tokens: Tokens,
    nursery: trio.Nursery,
    *,
    version: str,
    epoch: str,
    tls: ssl.SSLContext | None = None,
    max_connections: int = 100_000,
) -> Kernel:
    """Join the parts. Nothing runs before `run`."""
    hub = Hub(
        config.settings, epoch=epoch, version=version, fresh_id=lambda: secrets.token_hex(16), now=trio.current_time()
    )
    hub.gate.set_tokens(tokens)
    hub.members.permissions = config.permissions
    hub.handlers.update(table(hub))
    hand = Hand(hub, nursery)
    door = Door(
        hand,
        hosts=config.hosts,
        origins=config.origins,
        tls=tls,
        max_connections=max_connections,
        spread=lambda low, high: low + secrets.randbelow(high - low + 1),
    )
    pages = Pages(hub, door)
    door.pages.update(pages.table())
    modules = ModulePlane(hand)
    door.planes.update({"": modules.serve, "ws": modules.serve})
    return Kernel(hub, hand, door, pages, config, nursery)


async def run(kernel: Kernel) -> str:
    """Run until the hub asks for the end, then end gracefully. Returns: the reason. Cancel: ends at once."""
    hub, hand = kernel.hub, kernel.hand
    kernel.nursery.start_soon(hand.run_timers)
    kernel.nursery.start_soon(hand.run_flusher)
    kernel.nursery.start_soon(kernel.door.ears.run)
    await hand.stopping.wait()
    with trio.move_on_after(hand.stop_deadline_s):
        while any(peer.link is not None for peer in hub.board.peers.values()):
            await kernel.door.wait_one_left()
    now = trio.current_time()
    links = [peer.link for peer in hub.board.peers.values() if peer.link is not None] + list(
        hub.gate.strangers.values()
    )
    for link in links:
        hub.board.close(link, CLOSE_GOING_AWAY, f"kernel stops: {hand.stop_reason}", now=now)
    hand.settle()
    for act in kernel.at_end:
        act()
    with trio.move_on_after(FAREWELL_S + 0.1):
        while kernel.door.open_connections:
            await kernel.door.wait_one_left()
    kernel.nursery.cancel_scope.cancel()
    return hand.stop_reason
