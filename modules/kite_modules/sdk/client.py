"""What authors hold in their hands: `Kite`, one client of the kernel. Source: spec 30-clients §2, 05-surface §9."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from kite_modules.sdk import frames
from kite_modules.sdk.events import QUEUE_MAX, Dispatcher, Policy, Subscription
from kite_modules.sdk.link import Link
from kite_modules.sdk.publishing import Publishing
from kite_modules.sdk.reconnect import NetworkState
from kite_modules.sdk.session import State
from kite_modules.sdk.watch import StateWatch

if TYPE_CHECKING:
    from kite_modules.sdk.own import Replica
    from kite_modules.sdk.own import Session as Owned
    from kite_modules.sdk.stream_handle import Stream


class Kite(Publishing):
    """One client: calls, publishes, subscriptions, streams.

    Everything here is safe to cancel. Calls survive a cut wire: they go on when the session resumes, else they end with
    the error that says whether they may be repeated (`CallError.repeat`).
    """

    def __init__(self, link: Link, dispatcher: Dispatcher) -> None:
        super().__init__(link)
        self._dispatcher = dispatcher
        self.stopping = trio.Event()
        """Set as soon as this client is told to end, or ends by itself."""
        self.nursery: trio.Nursery | None = None
        """Where this client's own tasks live: subscriptions to streams read in it."""
        self._held = 0
        self._let_go = trio.Event()
        self.options: Any = link.settings.options
        """What kite.toml gives this module; checked if the module declares a class for it."""

    # ------------------------------------------------------------------ where it stands

    @property
    def module_id(self) -> str:
        """Who this client is to the kernel."""
        return self._link.module_id

    @property
    def state(self) -> State:
        """Where the session stands."""
        return self._link.session.state

    @property
    def reason(self) -> str:
        """Why it stands there, in words."""
        return self._link.session.reason

    @property
    def last_failure(self) -> str:
        """Why the last wire ended, in words; empty before the first end."""
        return self._link.last_lost.reason

    @property
    def due_in_s(self) -> float | None:
        """Seconds until the next try, while waiting."""
        due_at = self._link.session.due_at
        return None if due_at is None else max(0.0, due_at - trio.current_time())

    @property
    def kernel_epoch(self) -> str:
        """Changes when the kernel is another one."""
        return str(self._link.kernel.get("epoch", ""))

    def retry_now(self) -> bool:
        """Come back at once instead of at the due time; False where nothing waits."""
        return self._link.retry_now()

    def network(self, state: NetworkState, *, path_changed: bool = False) -> bool:
        """Tell what the system says of the network: back online means at once, the count from zero; another path means
        at once, the count stays. Repeated signals change nothing. Returns whether a new wire was begun."""
        return self._link.network(state, path_changed=path_changed)

    async def wait_open(self) -> None:
        """Wait until the session is in step. Raises: NotConnected when it ended for good."""
        await self._link.wait_open()

    def states(self) -> StateWatch:
        """Return each state as it comes: `async for state in kite.states()`, beginning with the present one."""
        return self._link.states.watch()

    def statistics(self) -> dict[str, Any]:
        """Return this client's counters."""
        exchange, session = self._link.exchange, self._link.session
        counted = exchange.statistics
        return {
            "state": session.state.value,
            "attempt": session.attempt,
            "in_flight": exchange.in_flight,
            "kept": exchange.kept,
            "buffer": exchange.book.statistics(),
            **attrs.asdict(counted),
            "reconnects": dict(self._link.attempts.total),
        }

    def metrics(self) -> str:
        """Return `reconnect_attempt_total{reason}` and the attempts' Gini coefficient as Prometheus text."""
        return self._link.attempts.metrics(now=trio.current_time())

    # ------------------------------------------------------------------ events

    @asynccontextmanager
    async def subscribe(
        self,
        *patterns: str,
        queue_max: int = QUEUE_MAX,
        policy: Policy = "close",
    ) -> AsyncGenerator[Subscription, None]:
        """Hear events for the time of the block: `async with kite.subscribe("orders.>") as events`, then `async for`.

        The subscription outlives cuts by itself. Raises: ValueError for a bad pattern; CallError when the kernel
        refuses it.
        """
        subscription = Subscription(patterns, queue_max=queue_max, policy=policy)
        self._dispatcher.add(subscription)
        try:
            wish: dict[str, Any] = {"events": list(subscription.patterns)}
            await self.call("event.subscribe", wish if policy == "close" else {**wish, "policy": policy})
            yield subscription
        finally:
            self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        unwanted = self._dispatcher.remove(subscription)
        subscription.close()
        if unwanted and self.state is not State.STOPPED:
            exchange = self._link.exchange
            text = frames.notification("event.unsubscribe", frames.encode({"events": unwanted}))
            exchange.post(text, exchange.generation)

    @contextmanager
    def held_open(self) -> Generator[None, None, None]:
        """Keep the connection for last words: a shutdown waits for the end of the block, within its deadline."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held:
                self._let_go.set()

    async def let_go(self) -> None:
        """Wait until nobody holds the connection open."""
        while self._held:
            self._let_go = trio.Event()
            await self._let_go.wait()

    # ------------------------------------------------------------------ ownership

    @asynccontextmanager
    async def replica(self, meta: dict[str, Any] | None = None) -> AsyncGenerator[Replica, None]:
        """Be a replica that may own things, for the time of the block. Raises: Fenced; CallError."""
        from kite_modules.sdk.own import Replica

        async with Replica(self, meta=meta).running() as replica:
            yield replica

    @asynccontextmanager
    async def own(self, key: str, *, route_key: str | None = None) -> AsyncGenerator[Owned, None]:
        """Own one key for the time of the block, as a replica of its own: `async with kite.own("chat/7") as session`.

        Raises: CallError −32007 when another owns it; Fenced when this one may not write any more.
        """
        async with self.replica() as replica, replica.own(key, route_key=route_key) as session:
            yield session

    # ------------------------------------------------------------------ streams

    def stream(self, name: str = "default") -> Stream:
        """Return one stream of the kernel: subscribe to it, publish into it."""
        from kite_modules.sdk.stream_handle import Stream

        settings = self._link.settings
        return Stream(name, settings.url, settings.token, nursery=self.nursery, call=self.call)
