"""The publishing half of a client: answered, kept or refused, never lost in silence.

Source: spec 30-clients §2, 05-surface §7 and §9 (`key`), case W-54.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec

from kite_modules import _contract
from kite_modules.sdk import frames, log
from kite_modules.sdk.calling import Calling
from kite_modules.sdk.errors import CallError, kernel_error
from kite_modules.sdk.pending import Pending
from kite_modules.sdk.session import State

Away = Literal["keep", "refuse", "wait"]


class Publishing(Calling):
    """What `Kite` publishes with."""

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
        if self._link.session.state is not State.OPEN and away != "wait":
            if away == "refuse":
                raise self._away()
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
        self._keep(event, _event_params(event, data, retain=retain, exclude_self=exclude_self), None)

    def _away(self) -> CallError:
        why = self._link.session.reason
        return kernel_error(_contract.E_OFFLINE, "offline", "not_sent", method="event.publish", why=why)

    def _keep(self, event: str, params: dict[str, Any], key: str | None) -> None:
        if self._link.session.state is State.STOPPED:
            raise self._away()
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
