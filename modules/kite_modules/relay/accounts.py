"""Users and sessions of the relay in one small SQLite file that the command line and the relay share.

Passwords are argon2id hashes; sessions and recovery codes are kept as hashes only; a TOTP step is used by a
compare-and-set, so that one code opens one door. Wall-clock seconds: sessions outlive the process.
Source: spec 80 §1, 00 §10, cases X-24 … X-29.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw
import attrs
import pyotp
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error

from kite_modules.relay.limits import FORGIVEN, code_delay_s

FILE: Final = "accounts.db"
STEP_S: Final = 30
RECOVERY_CODES: Final = 10
NAME_MAX: Final = 64
BUSY_MS: Final = 5000  # the other process holds the file for one small transaction
# OWASP's first choice for argon2id: 46 MiB, one round, one lane. The library's default takes twice as long on a small
# machine, where each try of an attacker would cost the others that time.
_HASHER: Final = PasswordHasher(memory_cost=47104, time_cost=1, parallelism=1)
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS users (
  name TEXT PRIMARY KEY, role TEXT NOT NULL, password TEXT NOT NULL, secret TEXT NOT NULL, token TEXT,
  last_step INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, locked_until REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS recovery (user TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (user, hash)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
  hash TEXT PRIMARY KEY, user TEXT NOT NULL, made REAL NOT NULL, used REAL NOT NULL, address TEXT NOT NULL DEFAULT ''
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
    password: str | None = attrs.field(repr=False)
    secret: str = attrs.field(repr=False)
    recovery_codes: tuple[str, ...] = attrs.field(repr=False)

    @property
    def otpauth(self) -> str:
        """The URI that an authenticator reads."""
        return pyotp.TOTP(self.secret).provisioning_uri(name=self.name, issuer_name="Kite")


@attrs.frozen
class Locked:
    """The account takes no code for a while."""

    wait_s: float


@attrs.frozen
class Wrong:
    """The code is not right; `failures` in a row."""

    failures: int


@attrs.frozen
class Session:
    """A session that lives: whose, until when (wall clock)."""

    user: User
    ends_at: float


def hash_of(secret: str) -> str:
    """Return the stored form of a random secret: long and random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_name(name: str) -> bool:
    """Say whether somebody may be called so: anything a person can read."""
    return 0 < len(name) <= NAME_MAX and name.isprintable() and name == name.strip()


def verify(stored: str, password: str) -> bool:
    """Compare a password with a hash; takes about 40 ms by design, so call it in a thread."""
    try:
        return _HASHER.verify(stored, password.encode("utf-8", "surrogatepass"))
    except (Argon2Error, ValueError):
        return False


class Accounts:
    """The file. Methods touch the disk for a moment; none waits for a hash but `add`."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        old = os.umask(0o077)  # the journal's files are made by SQLite
        try:
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(BUSY_MS)
            self._db.pragma("journal_mode", "wal")
            self._db.pragma("synchronous", "full")
            self._db.execute(_TABLES)
        finally:
            os.umask(old)
        self._clock = clock
        self._nobody = _HASHER.hash(secrets.token_hex(16))

    def close(self) -> None:
        """Close the file."""
        self._db.close(True)

    @contextmanager
    def _writing(self) -> Generator[None, None, None]:
        """Be the only writer for the time of the block; all or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # ---------------------------------------------------------------- users

    def add(self, name: str, role: str, password: str | None = None) -> Made | None:
        """Make a user; None when the name is taken. Without a password one is made."""
        made = None if password is not None else secrets.token_urlsafe(15)
        secret = pyotp.random_base32()
        row = (name, role, _HASHER.hash(password if password is not None else made or ""), secret)
        with self._writing():
            if self.find(name) is not None:
                return None
            self._db.execute("INSERT INTO users (name, role, password, secret) VALUES (?, ?, ?, ?)", row)
            codes = self._fresh_codes(name)
        return Made(name, role, made, secret, codes)

    def _fresh_codes(self, name: str) -> tuple[str, ...]:
        codes = tuple(f"{secrets.token_hex(4)}-{secrets.token_hex(4)}" for _ in range(RECOVERY_CODES))
        self._db.execute("DELETE FROM recovery WHERE user = ?", (name,))
        self._db.executemany("INSERT INTO recovery VALUES (?, ?)", [(name, hash_of(code)) for code in codes])
        return codes

    def remove(self, name: str) -> bool:
        """Remove a user and end the sessions."""
        with self._writing():
            known = self.find(name) is not None
            for table, column in (("users", "name"), ("recovery", "user"), ("sessions", "user")):
                self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))
        return known

    def reset_totp(self, name: str) -> Made | None:
        """Give a user a new secret and new recovery codes, and end the sessions."""
        secret = pyotp.random_base32()
        with self._writing():
            user = self.find(name)
            if user is None:
                return None
            self._db.execute(
                "UPDATE users SET secret = ?, last_step = 0, failures = 0, locked_until = 0 WHERE name = ?",
                (secret, name),
            )
            self._db.execute("DELETE FROM sessions WHERE user = ?", (name,))
            codes = self._fresh_codes(name)
        return Made(name, user.role, None, secret, codes)

    def set_role(self, name: str, role: str) -> bool:
        """Change what a user may do; the next request is judged by it."""
        self._db.execute("UPDATE users SET role = ? WHERE name = ?", (role, name))
        return self._db.changes() == 1

    def set_password(self, name: str, password: str) -> bool:
        """Change a password and end the sessions."""
        hashed = _HASHER.hash(password)
        with self._writing():
            self._db.execute("UPDATE users SET password = ? WHERE name = ?", (hashed, name))
            changed = self._db.changes() == 1
            self._db.execute("DELETE FROM sessions WHERE user = ?", (name,))
        return changed

    def set_token(self, name: str) -> str | None:
        """Make a personal token, which replaces the password, never the code; None: nobody is called so."""
        token = secrets.token_urlsafe(32)
        self._db.execute("UPDATE users SET token = ? WHERE name = ?", (hash_of(token), name))
        return token if self._db.changes() == 1 else None

    def find(self, name: str) -> User | None:
        """Return a user."""
        row = self._db.execute("SELECT name, role FROM users WHERE name = ?", (name,)).fetchone()
        return None if row is None else User(*row)

    def users(self) -> list[User]:
        """Return all users."""
        return [User(*row) for row in self._db.execute("SELECT name, role FROM users ORDER BY name")]

    # ---------------------------------------------------------------- logging in

    def password_of(self, name: str) -> str:
        """Return the stored hash; an unknown user has one that nothing matches, so that both cost the same."""
        row = self._db.execute("SELECT password FROM users WHERE name = ?", (name,)).fetchone()
        return self._nobody if row is None else str(row[0])

    def check_token(self, token: str) -> str | None:
        """Return the user of a personal token."""
        row = self._db.execute("SELECT name FROM users WHERE token = ?", (hash_of(token),)).fetchone()
        return None if row is None else str(row[0])

    def check_code(self, name: str, code: str, *, recovery: bool) -> User | Wrong | Locked:
        """Use a code, once; wrong ones count against the account, whose delay grows and outlives the process."""
        now = self._clock()
        with self._writing():
            row = self._db.execute(
                "SELECT role, secret, last_step, failures, locked_until FROM users WHERE name = ?", (name,)
            ).fetchone()
            if row is None:
                return Wrong(0)
            role, secret, last_step, failures, locked_until = row
            if now < locked_until:
                return Locked(locked_until - now)
            if self._use_recovery(name, code) if recovery else self._use_step(name, secret, last_step, code, now):
                left = max(0, failures - FORGIVEN)
                self._db.execute("UPDATE users SET failures = ?, locked_until = 0 WHERE name = ?", (left, name))
                return User(name, role)
            until = now + code_delay_s(failures + 1)
            self._db.execute("UPDATE users SET failures = failures + 1, locked_until = ? WHERE name = ?", (until, name))
        return Wrong(failures + 1)

    def _use_recovery(self, name: str, code: str) -> bool:
        self._db.execute("DELETE FROM recovery WHERE user = ? AND hash = ?", (name, hash_of(code)))
        return self._db.changes() == 1

    def _use_step(self, name: str, secret: str, last_step: int, code: str, now: float) -> bool:
        if len(code) != 6 or not code.isascii() or not code.isdigit():
            code = "......"  # compared all the same: no difference in time
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

    def open_session(self, name: str, address: str = "") -> str:
        """Make a session for somebody who has just logged in."""
        session, now = secrets.token_urlsafe(32), self._clock()
        self._db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", (hash_of(session), name, now, now, address))
        return session

    def use_session(self, hashed: str, *, idle_s: float, max_s: float) -> Session | None:
        """Return whose session it is and renew it; None when it has ended."""
        now = self._clock()
        with self._writing():
            self._db.execute("DELETE FROM sessions WHERE used < ? OR made < ?", (now - idle_s, now - max_s))
            self._db.execute("UPDATE sessions SET used = ? WHERE hash = ?", (now, hashed))
            row = self._db.execute("SELECT user, made FROM sessions WHERE hash = ?", (hashed,)).fetchone()
            user = None if row is None else self.find(row[0])
        return None if row is None or user is None else Session(user, min(now + idle_s, row[1] + max_s))

    def living(self, *, idle_s: float, max_s: float) -> set[str]:
        """Return the hashes of all sessions that have not ended; renews nothing."""
        now = self._clock()
        wish = "SELECT hash FROM sessions JOIN users ON user = name WHERE used >= ? AND made >= ?"
        return {row[0] for row in self._db.execute(wish, (now - idle_s, now - max_s))}

    def sessions_of(self, name: str | None) -> list[dict[str, object]]:
        """Return sessions of a user (None: of all), each with a short id that opens nothing."""
        wish = "SELECT hash, user, made, used, address FROM sessions WHERE ?1 IS NULL OR user = ?1 ORDER BY made"
        return [
            {"id": row[0][:12], "user": row[1], "since": row[2], "used": row[3], "address": row[4]}
            for row in self._db.execute(wish, (name,))
        ]

    def end_session(self, hashed: str) -> None:
        """Log out."""
        self._db.execute("DELETE FROM sessions WHERE hash = ?", (hashed,))

    def end_sessions(self, name: str, short: str | None = None) -> int:
        """End one session of a user by its short id, or all of them; returns how many."""
        wish = "DELETE FROM sessions WHERE user = ?1 AND (?2 IS NULL OR substr(hash, 1, 12) = ?2)"
        self._db.execute(wish, (name, short))
        return self._db.changes()
