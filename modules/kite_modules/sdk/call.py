"""What a handler may know of the call that it serves, and how it tells progress."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from kite_modules.sdk import frames
from kite_modules.sdk.frames import RpcId


class Call:
    """The call in hand; a handler gets it by a parameter annotated `Call`.

    Attributes: `id` (the kernel's), `method`, `caller` (module id, "" when the kernel didn't say), `meta` (all of it).
    """

    def __init__(
        self,
        rpc_id: RpcId,
        method: str,
        meta: dict[str, Any],
        send: Callable[[str], Awaitable[None]],
    ) -> None:
        self.id = rpc_id
        self.method = method
        self.meta = meta
        caller = meta.get("caller")
        self.caller: str = caller if isinstance(caller, str) else ""
        self._send = send
        credit = meta.get("credit")
        self._credit: int | None = credit if isinstance(credit, int) and not isinstance(credit, bool) else None
        self._more = trio.Event()

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the caller's deadline by the wall clock, None when the kernel did not say it."""
        deadline = self.meta.get("deadline")
        if isinstance(deadline, bool) or not isinstance(deadline, int | float):
            return None
        return max(0.0, float(deadline) - time.time())

    async def progress(self, value: Any) -> None:
        """Tell the caller a value on the way to the result; waits while its credit is used up. Cancel: safe."""
        text = frames.encode(value)
        while self._credit is not None and self._credit <= 0:
            self._more = trio.Event()
            await self._more.wait()
        if self._credit is not None:
            self._credit -= 1
        await self._send(text)

    def add_credit(self, n: Any) -> None:
        """The caller takes `n` more values."""
        if self._credit is not None and isinstance(n, int) and not isinstance(n, bool) and n > 0:
            self._credit = min(self._credit + n, 1_000_000)
            self._more.set()
