"""The calling half of a client: one call, one end, whatever happens to wires meanwhile.

Source: spec 10-wire §6, 30-clients §2, 05-surface §9 (`meta`, progress window).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import trio

from kite_modules import _contract
from kite_modules.sdk import frames
from kite_modules.sdk.errors import CallError, kernel_error
from kite_modules.sdk.link import Link
from kite_modules.sdk.pending import Pending
from kite_modules.sdk.session import State
from kite_modules.sdk.values import Values

CALL_S: Final = 30.0
"""The contract's default deadline of a call, until the kernel says its own."""
_GRACE_S: Final = 2.0  # the kernel answers −32003 itself; this long after it we stop believing that it will
_IN_FLIGHT_MAX: Final = _contract.MAX_IN_FLIGHT - 24  # below the kernel's bound: sync, health and publishes need room
_TIMEOUT_MAX_S: Final = 30 * 86400.0  # a call that takes longer is a job: give it a name and poll
CREDIT: Final = 16


class Calling:
    """What `Kite` calls with."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._slots = trio.Semaphore(_IN_FLIGHT_MAX)

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
        try:
            return msgspec.json.decode(pending.raw, type=result)
        except msgspec.DecodeError as error:
            if result is not Any:
                raise
            # a number that no reader holds: the call ran, its answer is of no use
            message = f"the result can't be read: {error}"
            data = {"reason": "bad_answer", "outcome": "done"}
            raise CallError(_contract.E_INTERNAL_ERROR, message, data, method=method) from None

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
        if self._link.session.state is State.STOPPED or (not wait and self._link.session.state is not State.OPEN):
            raise kernel_error(_contract.E_OFFLINE, "offline", "not_sent", method=method, why=self._link.session.reason)
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


def _checked_timeout_s(timeout_s: float) -> float:
    if not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise ValueError(f"timeout must be greater than 0 and at most {_TIMEOUT_MAX_S:g} s, not {timeout_s!r}")
    return float(timeout_s)
