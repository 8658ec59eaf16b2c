"""What can go wrong for an author, and whose fault it is.

- `CallError`: a call failed; `code`, `reason`, `outcome` say how, `repeat` whether asking again is safe.
- `Refused`: raised by a handler to answer its caller with an error of its own.
- `NotConnected`: the session stopped for good (a final close code, told to end) before or while it was used.
- `SettingsError`: the process was started without what it needs; carries the exit code.
Source: spec 05-surface §7 and §9, 00 §20.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from kite_modules import _contract

Repeat = Literal["safe", "with_key", "no"]
_LATER: Final = frozenset(
    {
        _contract.E_OFFLINE,
        _contract.E_CONNECTION_LOST,
        _contract.E_DEADLINE,
        _contract.E_OVERLOADED,
        _contract.E_STORE_UNAVAILABLE,
        _contract.E_CLOSING,
    }
)


class KiteError(Exception):
    """The root of all that the SDK raises on purpose."""


def repeat_of(code: int, data: Any) -> tuple[Repeat, bool]:
    """Say whether a failed call may be repeated, and whether waiting could help.

    Args: `code` and `data` of the JSON-RPC error. Returns: `safe` = it had no effect, `with_key` = only together with
    an idempotency key, `no` = it ran; and True where the cause may pass.
    """
    later = code in _LATER
    outcome = data.get("outcome") if isinstance(data, dict) else None
    if outcome == "not_sent":
        return "safe", later
    if outcome == "done" or (outcome is None and code not in _contract.ERROR_TEXT):
        return "no", later
    return "with_key", later


class CallError(KiteError):
    """A call was answered with an error, or could not be answered.

    `outcome` is `not_sent` (no effect), `unknown` or `done`; None for a callee's own error. `retry_after_s` where the
    kernel said it.
    """

    def __init__(self, code: int, message: str, data: Any = None, *, method: str = "") -> None:
        self.code = code
        self.message = message
        self.data = data
        self.method = method
        fields = data if isinstance(data, dict) else {}
        self.reason: str = fields["reason"] if isinstance(fields.get("reason"), str) else ""
        self.outcome: str | None = fields["outcome"] if isinstance(fields.get("outcome"), str) else None
        after = fields.get("retry_after")
        self.retry_after_s: float | None = float(after) if isinstance(after, int | float) else None
        self.repeat, self.later = repeat_of(code, data)
        super().__init__(self._text())

    def _text(self) -> str:
        about = f"{self.method}: " if self.method else ""
        detail = ", ".join(word for word in (self.reason, self.outcome or "") if word)
        return f"{about}{self.message} ({self.code}{', ' + detail if detail else ''})"


def kernel_error(code: int, reason: str, outcome: str, *, method: str = "", **more: Any) -> CallError:
    """Return the error that the kernel would have made, where the client itself had to."""
    data = {"reason": reason, "outcome": outcome, **more}
    return CallError(code, _contract.ERROR_TEXT[code], data, method=method)


class Refused(KiteError):
    """Raise it in a handler: the caller gets this error instead of a result.

    Args: `code` any integer outside −32768…−32000 (−1 by default); `data` any JSON value.
    """

    def __init__(self, message: str, *, code: int = -1, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data


class NotConnected(KiteError):
    """The session is over for good: nothing will be sent any more."""

    def __init__(self, reason: str, close_code: int | None = None) -> None:
        super().__init__(f"not connected: {reason}")
        self.reason = reason
        self.close_code = close_code


class SettingsError(KiteError):
    """What the process was given does not suffice; `exit_code` is the sysexits number to end with."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
