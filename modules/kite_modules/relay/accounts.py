"""Users and sessions of the relay in one small SQLite file that the command line and the relay share.

Passwords are argon2id hashes; sessions and recovery codes are kept as hashes only; a TOTP step is used by a
compare-and-set, so that one code opens one door. Wall-clock seconds: sessions outlive the process.
Source: spec 80 §1, 00 §10, cases X-25 … X-29.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import pyotp
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error

from kite_modules.relay.limits import code_delay_s

STEP_S: Final = 30
RECOVERY_CODES: Final = 10
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS users (
  name TEXT PRIMARY KEY, role TEXT NOT NULL, password TEXT NOT NULL, secret TEXT NOT NULL, token TEXT,
  last_step INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, locked_until REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS recovery (user TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (user, hash)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
  hash TEXT PRIMARY KEY, user TEXT NOT NULL, made REAL NOT NULL, used REAL NOT NULL
) WITHOUT ROWID;
"""


@attrs.frozen
class User:
    """Somebody who may log in."""

    name: str
    role: str


@attrs.frozen
class Made:
    """What a new user is told, once."""

    name: str
    role: str
    password: str | None
    secret: str
    recovery_codes: tuple[str, ...]

    @property
    def otpauth(self) -> str:
        """The URI that an authenticator reads."""
        return pyotp.TOTP(self.secret).provisioning_uri(name=self.name, issuer_name="Kite")


@attrs.frozen
class Locked:
    """The account waits."""

    wait_s: float


def hash_of(secret: str) -> str:
    """Return the stored form of a random secret: long and random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Accounts:
    """The file. All methods may block for a moment; password checks take about 50 ms by design."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        self._db = apsw.Connection(str(path))
        self._db.set_busy_timeout(5000)
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "full")
        self._db.execute(_TABLES)
        self._clock = clock
        self._hasher = PasswordHasher()
        self._nobody = self._hasher.hash(secrets.token_hex(16))

    def close(self) -> None:
        """Close the file."""
        self._db.close(True)

    # ---------------------------------------------------------------- users

    def add(self, name: str, role: str, password: str | None = None) -> Made | None:
        """Make a user; None when the name is taken. Without a password one is made."""
        made = None if password is not None else secrets.token_urlsafe(15)
        secret = pyotp.random_base32()
        row = (name, role, self._hasher.hash(password if password is not None else made or ""), secret)
        codes: tuple[str, ...] | None = None
        with self._db:
            if self.find(name) is None:
                self._db.execute("INSERT INTO users (name, role, password, secret) VALUES (?, ?, ?, ?)", row)
                codes = self._fresh_codes(name)
        return None if codes is None else Made(name, role, made, secret, codes)

    def _fresh_codes(self, name: str) -> tuple[str, ...]:
        codes = tuple(f"{secrets.token_hex(4)}-{secrets.token_hex(4)}" for _ in range(RECOVERY_CODES))
        self._db.execute("DELETE FROM recovery WHERE user = ?", (name,))
        self._db.executemany("INSERT INTO recovery VALUES (?, ?)", [(name, hash_of(code)) for code in codes])
        return codes

    def remove(self, name: str) -> bool:
        """Remove a user and end the sessions."""
        with self._db:
            known = self.find(name) is not None
            for table, column in (("users", "name"), ("recovery", "user"), ("sessions", "user")):
                self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))
        return known

    def reset_totp(self, name: str) -> Made | None:
        """Give a user a new secret and new recovery codes, and end the sessions."""
        secret = pyotp.random_base32()
        with self._db:
            user = self.find(name)
            if user is None:
                return None
            self._db.execute(
                "UPDATE users SET secret = ?, last_step = 0, failures = 0, locked_until = 0 WHERE name = ?",
                (secret, name),
            )
            self._db.execute("DELETE FROM sessions WHERE user = ?", (name,))
            return Made(name, user.role, None, secret, self._fresh_codes(name))

    def set_role(self, name: str, role: str) -> bool:
        """Change what a user may do; the next request is judged by it."""
        self._db.execute("UPDATE users SET role = ? WHERE name = ?", (role, name))
        return self._db.changes() == 1

    def set_token(self, name: str) -> str:
        """Make a personal token, which replaces the password, never the code."""
        token = secrets.token_urlsafe(32)
        self._db.execute("UPDATE users SET token = ? WHERE name = ?", (hash_of(token), name))
        return token

    def find(self, name: str) -> User | None:
        """Return a user."""
        row = self._db.execute("SELECT name, role FROM users WHERE name = ?", (name,)).fetchone()
        return None if row is None else User(*row)

    def list(self) -> list[User]:
        """Return all users."""
        return [User(*row) for row in self._db.execute("SELECT name, role FROM users ORDER BY name")]

    # ---------------------------------------------------------------- logging in

    def check_password(self, name: str, password: str) -> str | None:
        """Return the user's name when the password is right; an unknown user costs the same time."""
        row = self._db.execute("SELECT password FROM users WHERE name = ?", (name,)).fetchone()
        try:
            self._hasher.verify(self._nobody if row is None else row[0], password)
        except (Argon2Error, ValueError):
            return None
        return None if row is None else name

    def check_token(self, token: str) -> str | None:
        """Return the user of a personal token."""
        row = self._db.execute("SELECT name FROM users WHERE token = ?", (hash_of(token),)).fetchone()
        return None if row is None else str(row[0])

    def check_code(self, name: str, code: str, *, recovery: bool) -> bool | Locked:
        """Use a code, once; wrong ones count against the account, whose delay grows."""
        now = self._clock()
        with self._db:
            row = self._db.execute(
                "SELECT secret, last_step, failures, locked_until FROM users WHERE name = ?", (name,)
            ).fetchone()
            if row is None:
                return False
            secret, last_step, failures, locked_until = row
            if now < locked_until:
                return Locked(locked_until - now)
            if self._use_recovery(name, code) if recovery else self._use_step(name, secret, last_step, code, now):
                self._db.execute("UPDATE users SET failures = 0, locked_until = 0 WHERE name = ?", (name,))
                return True
            until = now + code_delay_s(failures + 1)
            self._db.execute("UPDATE users SET failures = failures + 1, locked_until = ? WHERE name = ?", (until, name))
        return False

    def _use_recovery(self, name: str, code: str) -> bool:
        self._db.execute("DELETE FROM recovery WHERE user = ? AND hash = ?", (name, hash_of(code)))
        return self._db.changes() == 1

    def _use_step(self, name: str, secret: str, last_step: int, code: str, now: float) -> bool:
        if len(code) != 6 or not code.isascii() or not code.isdigit():
            code = "······"  # compared all the same: no difference in time
        totp = pyotp.TOTP(secret)
        found = 0
        for step in range(int(now) // STEP_S - 1, int(now) // STEP_S + 2):
            if hmac.compare_digest(totp.at(step * STEP_S).encode(), code.encode()):
                found = step
        if found <= last_step:
            return False
        self._db.execute("UPDATE users SET last_step = ?1 WHERE name = ?2 AND last_step < ?1", (found, name))
        return self._db.changes() == 1

    # ---------------------------------------------------------------- sessions

    def open_session(self, name: str) -> str:
        """Make a session for somebody who has just logged in."""
        session, now = secrets.token_urlsafe(32), self._clock()
        self._db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", (hash_of(session), name, now, now))
        return session

    def use_session(self, session: str, *, idle_s: float, max_s: float) -> User | None:
        """Return whose session it is and renew it; None when it has ended."""
        now = self._clock()
        with self._db:
            self._db.execute("DELETE FROM sessions WHERE used < ? OR made < ?", (now - idle_s, now - max_s))
            self._db.execute("UPDATE sessions SET used = ? WHERE hash = ?", (now, hash_of(session)))
            row = self._db.execute("SELECT user FROM sessions WHERE hash = ?", (hash_of(session),)).fetchone()
        return None if row is None else self.find(row[0])

    def session_lives(self, session: str) -> bool:
        """True while the session was not ended; renews nothing."""
        return self._db.execute("SELECT 1 FROM sessions WHERE hash = ?", (hash_of(session),)).fetchone() is not None

    def end_session(self, session: str) -> None:
        """Log out."""
        self._db.execute("DELETE FROM sessions WHERE hash = ?", (hash_of(session),))

    @property
    def version(self) -> Any:
        """Changes when another process changed the file."""
        return self._db.pragma("data_version")
