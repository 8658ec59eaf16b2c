"""The setting of the cases: a real kernel in this process on a loopback port, raw modules on it, virtual time.

    async with stage("a", "c") as on:      # b and c are always there: their calls must go on whatever a row does
        await on.a.call(...)

When the block ends the stage proves what every row demands: no fault of the kernel was logged, b's calls to c are
still answered, `kernel.pending` is empty.
"""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import structlog
import trio
from tests.support.raw_peer import RawPeer

from kite_kernel.config import build as config_of
from kite_kernel.core.auth import Tokens
from kite_kernel.edge.kernel import Kernel, build, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

ROLES = {"o": "operator", "launcher": "launcher", "watchdog": "watchdog"}
NAMES = ("a", "b", "c", "d", "e", "f", "g", "o", "launcher", "watchdog")
METHODS = ("echo", "ok", "slow", "never", "secret")


class Stage:
    """A running kernel and who is on it."""

    def __init__(self, kernel: Kernel, port: int, nursery: trio.Nursery, logs: list[Any]) -> None:
        self.kernel = kernel
        self.hub = kernel.hub
        self.port = port
        self.nursery = nursery
        self.logs = logs
        self.tokens = {name: f"token-of-{name}-0123456789" for name in NAMES}
        self.peers: dict[str, RawPeer] = {}
        self.life: _Life
        self._bystanders: tuple[RawPeer, RawPeer] | None = None
        self._everybody: list[RawPeer] = []

    def close(self) -> None:
        """Close what the peers still hold."""
        for peer in self._everybody:
            assert isinstance(peer.stream, trio.SocketStream)
            peer.stream.socket.close()

    def __getattr__(self, name: str) -> RawPeer:
        try:
            return self.peers[name]
        except KeyError:
            raise AttributeError(name) from None

    def set_tokens(self, **more: str) -> None:
        """Give the kernel the tokens of everybody (and `more`), as a reread file would."""
        self.tokens |= more
        rows: dict[str, tuple[str, tuple[str, ...]]] = {
            name: (ROLES.get(name, "module"), (token,)) for name, token in self.tokens.items()
        }
        self.kernel.use_tokens(Tokens(rows))

    async def stranger(self, path: str = "/ws", headers: Iterable[tuple[str, str]] | None = None) -> RawPeer:
        """Connect without authenticating."""
        peer = await RawPeer.connect(self.nursery, self.port, path, headers)
        self._everybody.append(peer)
        return peer

    async def connect(self, name: str, instance: str | None = "i1", **params: Any) -> RawPeer:
        """Connect and authenticate; the peer is `on.<name>` from now on."""
        peer = await self.stranger()
        given = {} if instance is None else {"instance": f"{name}-{instance}"}
        peer.session = await peer.auth(self.tokens[name], name, **given, **params)
        self.peers[name] = peer
        return peer

    async def ready(
        self,
        name: str,
        methods: Iterable[Any] = METHODS,
        events: Iterable[str] = (),
        instance: str | None = "i1",
        **register: Any,
    ) -> RawPeer:
        """Connect a module that is ready."""
        peer = await self.connect(name, instance)
        await peer.become_ready(methods, events, **register)
        return peer

    async def check_bystanders(self) -> None:
        """Prove that the kernel lives and that calls of others go on."""
        if self._bystanders is None:
            self.set_tokens(z1="token-of-z1-0123456789", z2="token-of-z2-0123456789")
            self._bystanders = await self.ready("z1"), await self.ready("z2")
        one, two = self._bystanders
        for _ in range(3):
            ident = await one.ask("z2.echo", {"x": 1})
            request = await two.request("echo")
            await two.reply(request, {"y": 2})
            assert (await one.answer_to(ident))["result"] == {"y": 2}

    async def closed_record(self, module_id: str | None) -> dict[str, Any]:
        """Return the newest row of `kernel.closed` of this module; it tells the newest first."""
        rows = (await (await self.operator()).result("kernel.closed", {}))["closed"]
        found: dict[str, Any] = next(row for row in rows if row["module_id"] == module_id)
        return found

    async def operator(self) -> RawPeer:
        """Return the operator, connected once."""
        return self.peers.get("o") or await self.connect("o")

    def lines(self, text: str) -> list[Any]:
        """Return the log lines that hold this text."""
        return [line for line in self.logs if text in str(line["event"])]


class _Life:
    """One kernel from its start to its end, in a nursery of its own: how it ended outlives it."""

    def __init__(self, config: dict[str, Any] | None, listener: Any, *, standalone: bool) -> None:
        self._config = config_of(config or {}, "", "kite.toml", standalone=standalone)
        self._listener = listener
        self.over = trio.Event()
        self.reason = ""

    async def run(self, task_status: trio.TaskStatus[Kernel] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            kernel = build(self._config, Tokens({}), nursery, version="0", epoch="epoch-1")
            kernel.listen(self._listener)
            task_status.started(kernel)
            self.reason = await run(kernel)
        self.over.set()


@asynccontextmanager
async def stage(*ready: str, config: dict[str, Any] | None = None, standalone: bool = True) -> AsyncIterator[Stage]:
    """Run a kernel for the block; the named modules are ready in it, in this order.

    Without `standalone` the launcher rule holds. A kernel that a test lets end owes nothing at the end of the block.
    """
    with ExitStack() as stack:
        logs = stack.enter_context(structlog.testing.capture_logs())
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stack.callback(listener.socket.close)
        life = _Life(config, listener.socket._sock, standalone=standalone)  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            kernel = await nursery.start(life.run)
            async with trio.open_nursery() as clients:
                on = Stage(kernel, listener.socket.getsockname()[1], clients, logs)
                on.life = life
                stack.callback(on.close)
                on.set_tokens()
                for name in ready:
                    await on.ready(name)
                yield on
                if not life.over.is_set():
                    await on.check_bystanders()
                    assert (await (await on.operator()).result("kernel.pending", {}))["calls"] == []
                assert [line for line in on.logs if line.get("key") == "bug"] == []
                clients.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
