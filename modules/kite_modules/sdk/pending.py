"""One call on its way: what it asks, whether it went out, how it ended. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kite_modules.sdk import frames
from kite_modules.sdk.errors import CallError


class Pending:
    """A call from `call` or `publish` until its one end.

    Attributes: `sent` once a frame of it was handed to a wire; `done` once it ended, with `raw` (the result's bytes) or
    `error`. `wake` is called once at the end. `keep`: a call that is asked again after a lost session, because it is
    safe (a publish with its key) and nobody waits for it.
    """

    __slots__ = (
        "done",
        "due_at",
        "error",
        "id",
        "keep",
        "meta",
        "method",
        "on_progress",
        "params",
        "raw",
        "sent",
        "wake",
    )

    def __init__(
        self,
        rpc_id: int,
        method: str,
        params: str,
        *,
        meta: dict[str, Any],
        due_at: float | None,
        wake: Callable[[], None],
        on_progress: Callable[[Any], None] | None = None,
        keep: bool = False,
    ) -> None:
        self.id = rpc_id
        self.method = method
        self.params = params
        self.meta = meta
        self.due_at = due_at
        self.wake = wake
        self.on_progress = on_progress
        self.keep = keep
        self.sent = False
        self.done = False
        self.raw: msgspec.Raw | None = None
        self.error: CallError | None = None

    def render(self, *, now: float) -> str:
        """Return the request frame; the deadline that it carries is what is left of it."""
        meta = self.meta
        if self.due_at is not None:
            meta = {**meta, "timeout": max(0.001, round(self.due_at - now, 3))}
        return frames.request(self.id, self.method, self.params, meta or None)

    def succeed(self, raw: msgspec.Raw) -> None:
        """End it with a result."""
        self.raw = raw
        self._end()

    def fail(self, error: CallError) -> None:
        """End it with an error."""
        self.error = error
        self._end()

    def _end(self) -> None:
        if not self.done:
            self.done = True
            self.wake()
