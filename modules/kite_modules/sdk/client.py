"""What authors hold in their hands: `Kite`, one client of the kernel. Source: spec 30-clients §2, 05-surface §9."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import msgspec
import trio

from kite_modules import _contract
from kite_modules.sdk import frames, log
from kite_modules.sdk.errors import CallError, kernel_error
from kite_modules.sdk.events import QUEUE_MAX, Dispatcher, Policy, Subscription
from kite_modules.sdk.link import Link, StateWatch
from kite_modules.sdk.pending import Pending
from kite_modules.sdk.session import State
from kite_modules.sdk.values import Values

if TYPE_CHECKING:
    from kite_modules.sdk.own import Replica
    from kite_modules.sdk.own import Session as Owned
    from kite_modules.sdk.stream_handle import Stream

CALL_S: Final = 30.0
"""The contract's default deadline of a call, until the kernel says its own."""
_GRACE_S: Final = 2.0  # the kernel answers −32003 itself; this long after it we stop believing that it will
_IN_FLIGHT_MAX: Final = _contract.MAX_IN_FLIGHT - 24  # below the kernel's bound: sync, health and publishes need room
_TIMEOUT_MAX_S: Final = 30 * 86400.0  # a call that takes longer is a job: give it a name and poll
CREDIT: Final = 16
Away = Literal["keep", "refuse", "wait"]


class Kite:
    """One client: calls, publishes, subscriptions, streams.

    Everything here is safe to cancel. Calls survive a cut wire: they go on when the session resumes, else they end with
    the error that says whether they may be repeated (`CallError.repeat`).
    """

    def __init__(self, link: Link, dispatcher: Dispatcher) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._slots = trio.Semaphore(_IN_FLIGHT_MAX)
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

    async def wait_open(self) -> None:
        """Wait until the session is in step. Raises: NotConnected when it ended for good."""
        await self._link.wait_open()

    def states(self) -> StateWatch:
        """Return each state as it comes: `async for state in kite.states()`, beginning with the present one."""
        return self._link.watch()

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

    # ------------------------------------------------------------------ calls

    async def call(
        self,
        method: str,
        params: Any = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # the deadline travels with the call
        key: str | None = None,
        wait: bool = True,
        on_progress: Callable[[Any], None] | None = None,
        result: Any = Any,
        meta: dict[str, Any] | None = None,
    ) -> Any:
        """Call a method (`module.method`) and return its result.

        Args: `timeout` in seconds (the kernel's default otherwise); `key` makes a repeated call count once;
        `wait=False` refuses at once what would have to wait for a connection or a module on its way back; `result` a
        type that the result is checked against.
        Raises: CallError; TypeError for params that JSON can't say; msgspec.ValidationError for a result of another
        type. Cancel: the callee is told.
        """
        pending = await self._request(
            method, frames.encode({} if params is None else params), timeout, key, wait, on_progress, meta
        )
        assert pending.raw is not None
        return msgspec.json.decode(pending.raw, type=result)

    async def _request(
        self,
        method: str,
        params: str,
        timeout_s: float | None,
        key: str | None,
        wait: bool,
        on_progress: Callable[[Any], None] | None,
        meta: dict[str, Any] | None,
        values: Values | None = None,
    ) -> Pending:
        """Send one call and wait for its one end. Raises: CallError."""
        exchange = self._link.exchange
        if self.state is State.STOPPED or (not wait and self.state is not State.OPEN):
            raise kernel_error(_contract.E_OFFLINE, "offline", "not_sent", method=method, why=self.reason)
        budget_s = self._default_timeout_s() if timeout_s is None else _checked_timeout_s(timeout_s)
        meta = dict(meta or {})
        if key is not None:
            meta["key"] = key
        if not wait:
            meta["wait"] = False
        done = trio.Event()
        due_at = trio.current_time() + budget_s
        pending = Pending(
            exchange.new_id(), method, params, meta=meta, due_at=due_at, wake=done.set, on_progress=on_progress
        )
        if values is not None:
            values.call_id = pending.id
        with trio.move_on_at(due_at) as queueing:
            await self._slots.acquire()
        if not queueing.cancelled_caught:
            try:
                exchange.submit(pending)
                with trio.move_on_at(due_at):
                    await done.wait()
                if pending.sent and not pending.done:
                    with trio.move_on_after(_GRACE_S):
                        await done.wait()
            finally:
                self._slots.release()
                exchange.cancel(pending)
        if pending.error is not None:
            raise pending.error
        if pending.raw is None:
            outcome = "unknown" if pending.sent else "not_sent"
            raise kernel_error(_contract.E_DEADLINE, "deadline", outcome, method=method)
        return pending

    def _default_timeout_s(self) -> float:
        return self._link.told_s("call_s", CALL_S)

    @asynccontextmanager
    async def iterate(
        self,
        method: str,
        params: Any = None,
        *,
        credit: int = CREDIT,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[Values, None]:
        """Call a method that yields values: `async with kite.iterate("scan.files") as values: async for v in values`.

        The callee is at most `credit` values ahead of the reader. Leaving the block cancels the call.
        Raises (while iterating): CallError.
        """
        if credit < 1:
            raise ValueError(f"credit must be at least 1, not {credit}")
        values = Values(credit, self._grant)
        text = frames.encode({} if params is None else params)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_iteration, values, method, text, credit, timeout)
            try:
                yield values
            except Exception as error:
                failure = error  # raised again outside the nursery, which would wrap it in a group
            finally:
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run_iteration(
        self,
        values: Values,
        method: str,
        params: str,
        credit: int,
        timeout_s: float | None,
    ) -> None:
        try:
            pending = await self._request(method, params, timeout_s, None, True, values.put, {"credit": credit}, values)
        except CallError as error:
            values.end(error=error)
        else:
            values.end(result=None if pending.raw is None else msgspec.json.decode(pending.raw))

    def _grant(self, rpc_id: int, n: int) -> None:
        exchange = self._link.exchange
        exchange.post(frames.notification("$/credit", f'{{"id":{rpc_id},"n":{n}}}'), exchange.generation)

    # ------------------------------------------------------------------ events

    async def publish(
        self,
        event: str,
        data: Any = None,
        *,
        away: Away = "keep",
        key: str | None = None,
        retain: bool = False,
        exclude_self: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> int | None:
        """Publish an event; returns to how many it was delivered.

        Args: `away` says what happens while there is no connection: `keep` puts it in line, in order and bounded, and
        returns None; `refuse` raises −32001 at once; `wait` waits like a call.
        Raises: CallError; −32005 `queue_full` when the line is full. Cancel: it may have been published.
        """
        params = _event_params(event, data, key=key, retain=retain, exclude_self=exclude_self)
        if self.state is not State.OPEN and away != "wait":
            if away == "refuse" or self.state is State.STOPPED:
                raise kernel_error(_contract.E_OFFLINE, "offline", "not_sent", method="event.publish", why=self.reason)
            self._keep(event, params, key)
            return None
        pending = await self._request("event.publish", frames.encode(params), timeout, None, True, None, None)
        assert pending.raw is not None
        delivered = msgspec.json.decode(pending.raw).get("delivered")
        return delivered if isinstance(delivered, int) else 0

    def publish_nowait(self, event: str, data: Any = None, *, retain: bool = False, exclude_self: bool = False) -> None:
        """Put an event in line without waiting for anything; it is kept until the kernel has it.

        Raises: CallError −32005 `queue_full` when the line is full.
        """
        if self.state is State.STOPPED:
            raise kernel_error(_contract.E_OFFLINE, "offline", "not_sent", method="event.publish", why=self.reason)
        self._keep(event, _event_params(event, data, retain=retain, exclude_self=exclude_self), None)

    def _keep(self, event: str, params: dict[str, Any], key: str | None) -> None:
        exchange = self._link.exchange
        rpc_id = exchange.new_id()
        params["key"] = key or f"{self._link.settings.instance}-{rpc_id}"
        pending = Pending(
            rpc_id, "event.publish", frames.encode(params), meta={}, due_at=None, wake=lambda: None, keep=True
        )

        def ended() -> None:
            if pending.error is not None:
                log.say(logging.WARNING, f"event {event} was not published: {pending.error}", code=pending.error.code)

        pending.wake = ended
        if not exchange.keep(pending):
            raise kernel_error(_contract.E_OVERLOADED, "queue_full", "not_sent", method="event.publish")

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


def _event_params(
    event: str,
    data: Any,
    *,
    key: str | None = None,
    retain: bool = False,
    exclude_self: bool = False,
) -> dict[str, Any]:
    params: dict[str, Any] = {"event": event, "data": data}
    if key is not None:
        params["key"] = key
    if retain:
        params["retain"] = True
    if exclude_self:
        params["exclude_self"] = True
    return params


def _checked_timeout_s(timeout_s: float) -> float:
    if not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise ValueError(f"timeout must be greater than 0 and at most {_TIMEOUT_MAX_S:g} s, not {timeout_s!r}")
    return float(timeout_s)
