"""What a link says: one line per change of state, not per attempt, and what the kernel's notices to it mean.

Source: spec 20-kernel §8 (the users' texts), 10-wire §7 (`bye`, `pressure`).
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kite_modules._contract import CLOSE_RATE_LIMITED
from kite_modules.sdk import frames, log
from kite_modules.sdk.frames import Frame
from kite_modules.sdk.reconnect import Decision, modern_code
from kite_modules.sdk.session import Session
from kite_modules.sdk.transport import Lost

_COOLDOWN_MAX: Final = 5


class Telling:
    """Remembers what was said, so that a hundred tries for one reason are one line."""

    def __init__(self) -> None:
        self._kind: str | None = None

    def connected(self, module_id: str, *, resumed: bool) -> None:
        """The session is in step."""
        self._kind = None
        log.say(logging.INFO, "connected", module_id=module_id, resumed=resumed)

    def lost(self, lost: Lost, decision: Decision, session: Session, *, protocol: int | None) -> None:
        """A wire ended: the first loss, another kind of loss, each rate limit (the users' text), the end."""
        code = modern_code(lost.code, protocol=protocol, close_reason=lost.reason)
        fields: dict[str, Any] = {"code": code, "kind": decision.kind, "why": lost.reason}
        if not decision.retry:
            log.say(logging.ERROR, log.FATAL.format(code=code), **fields)
        elif code == CLOSE_RATE_LIMITED:
            attempt = session.cooldown_attempts
            text = log.RATE_LIMITED.format(delay=f"{decision.delay_s:g}", attempt=attempt, max=_COOLDOWN_MAX)
            log.say(logging.WARNING, text, **fields, attempt=attempt)
        elif self._kind != decision.kind:
            self._kind = decision.kind
            log.say(logging.WARNING, "connection lost, coming back by itself", **fields, delay_s=decision.delay_s)


def read_bye(frame: Frame) -> Lost:
    """Read the notice that comes right before a close."""
    params = frames.object_of(frame.params)
    code, after = params.get("code"), params.get("retry_after_s")
    return Lost(
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        str(params.get("why", "")),
        float(after) if isinstance(after, int | float) and 0 <= after < float("inf") else None,
    )


def tell_pressure(frame: Frame) -> None:
    """Say that this module reads too slowly."""
    params = frames.object_of(frame.params)
    shown = {key: params.get(key) for key in ("level", "topic", "messages", "bytes")}
    log.say(logging.WARNING, "the kernel's queue for this module grows: it reads too slowly", **shown)
