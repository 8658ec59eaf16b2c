"""The way in, as a table: challenge → password or token → code → open. Pure; what costs time is an effect.

States: challenged → checking → code → checking_code → open. Whatever else comes before `open` is refused and never
reaches the kernel. Source: spec 80 §1, 05 §9 (Relay), cases X-22 … X-26.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import attrs

from kite_modules import _contract

CHALLENGE_S: Final = 30.0
CHALLENGED: Final = "challenged"
CHECKING: Final = "checking"
CODE: Final = "code"
CHECKING_CODE: Final = "checking_code"
OPEN: Final = "open"
FAILED_TEXT: Final = "user or password is wrong"
CODE_TEXT: Final = "the code is wrong"


@attrs.frozen
class Answer:
    """Answer the request with a result."""

    result: dict[str, Any]


@attrs.frozen
class Refuse:
    """Answer the request with an error; the wire stays."""

    code: int
    reason: str
    message: str


@attrs.frozen
class Close:
    """Answer with −32010 and close."""

    close: int
    reason: str
    retry_after_s: float | None = None


@attrs.frozen
class CheckPassword:
    """Verify user and password; then call `password_checked`."""

    user: str
    password: str


@attrs.frozen
class CheckToken:
    """Verify a personal token; then call `password_checked`."""

    token: str


@attrs.frozen
class CheckCode:
    """Verify a TOTP or recovery code of the user; then call `code_checked`."""

    user: str
    code: str
    recovery: bool


@attrs.frozen
class CheckSession:
    """Look a session up (None: the cookie's); then call `resumed`."""

    session: str | None


Step = Answer | Refuse | Close | CheckPassword | CheckToken | CheckCode | CheckSession


class Login:
    """One browser's way in. `nonce` is of this wire and good once."""

    def __init__(self, nonce: str) -> None:
        self._nonce: str | None = nonce
        self.state = CHALLENGED
        self.user = ""

    def challenge(self, nonce: str, *, resumable: bool) -> dict[str, Any]:
        """Return the first words of the relay."""
        return {"nonce": nonce, "expires_s": CHALLENGE_S, "resumable": resumable}

    def on_request(self, method: str, params: Any) -> Step:
        """Say what a request before `open` leads to."""
        if method == "auth":
            return Refuse(_contract.E_METHOD_NOT_FOUND, "unknown_method", "auth is not offered here")
        if method == "login.totp":
            return self._on_code(params)
        if method not in ("login", "login.token", "login.resume"):
            return Refuse(_contract.E_FORBIDDEN, "not_open", "log in first")
        if self.state != CHALLENGED:
            return Close(_contract.CLOSE_AUTH_FAILED, "the challenge was used already")
        if not isinstance(params, dict) or not self._use(params.get("nonce")):
            return Close(_contract.CLOSE_AUTH_FAILED, "wrong nonce")
        self.state = CHECKING
        return self._first(method, params)

    def _first(self, method: str, params: dict[str, Any]) -> Step:
        if method == "login.resume":
            session = params.get("session")
            if session is not None and not isinstance(session, str):
                return Close(_contract.CLOSE_AUTH_FAILED, FAILED_TEXT)
            return CheckSession(session)
        if method == "login.token":
            token = params.get("token")
            return CheckToken(token) if isinstance(token, str) else Close(_contract.CLOSE_AUTH_FAILED, FAILED_TEXT)
        user, password = params.get("user"), params.get("password")
        if not isinstance(user, str) or not isinstance(password, str):
            return Close(_contract.CLOSE_AUTH_FAILED, FAILED_TEXT)
        return CheckPassword(user, password)

    def _use(self, nonce: object) -> bool:
        """Take the nonce; it is gone afterwards, right or wrong."""
        mine, self._nonce = self._nonce, None
        return mine is not None and isinstance(nonce, str) and hmac.compare_digest(mine.encode(), nonce.encode())

    def _on_code(self, params: Any) -> Step:
        if self.state != CODE:
            return Close(_contract.CLOSE_AUTH_MALFORMED, "login.totp before a right password")
        recovery = isinstance(params, dict) and "recovery_code" in params
        code = params.get("recovery_code" if recovery else "code") if isinstance(params, dict) else None
        self.state = CHECKING_CODE
        # What has not the form of a code is checked like one that is wrong: the same words, the same count.
        return CheckCode(self.user, code if isinstance(code, str) else "", recovery)

    def password_checked(self, user: str | None) -> Step:
        """Take the first step's verdict: the user's name, or None."""
        if user is None:
            return Close(_contract.CLOSE_AUTH_FAILED, FAILED_TEXT)
        self.user, self.state = user, CODE
        return Answer({"stage": "totp"})

    def code_checked(self, *, right: bool) -> Close | None:
        """Take the second step's verdict; None = open."""
        if not right:
            return Close(_contract.CLOSE_MFA_FAILED, CODE_TEXT)
        self.state = OPEN
        return None

    def resumed(self, user: str | None) -> Close | None:
        """Take the verdict on a session; None = open."""
        if user is None:
            return Close(_contract.CLOSE_AUTH_FAILED, "this session has ended; log in again")
        self.user, self.state = user, OPEN
        return None
