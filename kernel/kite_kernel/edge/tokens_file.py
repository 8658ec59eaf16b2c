"""The tokens file: read strictly, refused where others could read or write it, and never quoted in a message.

Source: spec 05-surface §2, cases X-09, X-10.
"""

from __future__ import annotations

import os
import secrets
import stat
import tomllib
from typing import TYPE_CHECKING, Any, Final

from kite_kernel.core.auth import Tokens
from kite_kernel.edge.files import write_atomic
from kite_kernel.errors import EXIT_CONFIG, EXIT_PERMISSION, StartError

if TYPE_CHECKING:
    from pathlib import Path

ROLES: Final = ("module", "launcher", "watchdog", "operator")
_MAX_BYTES: Final = 16 << 20  # a larger file is no tokens file


def read_path(path: Path) -> Tokens:
    """Read a tokens file. Errors: StartError 77 (mode, owner, kind of file) or 78 (content); never waits on a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "is a symbolic link; give the file itself" if path.is_symlink() else error.strerror
        raise StartError(EXIT_PERMISSION, f"{path}: {why}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise StartError(EXIT_PERMISSION, f"{path}: is no regular file")
        if info.st_uid != os.getuid():
            raise StartError(EXIT_PERMISSION, f"{path}: belongs to another user; chown it to yourself")
        if stat.S_IMODE(info.st_mode) & 0o077:
            raise StartError(EXIT_PERMISSION, f"{path}: others can read it; chmod 600 {path}")
        raw = os.read(fd, _MAX_BYTES)
    finally:
        os.close(fd)
    return parse(raw, str(path))


def read_fd(fd: int) -> Tokens:
    """Read the tokens from an inherited descriptor, from its beginning. Errors: StartError 78."""
    try:
        size = os.fstat(fd).st_size
        raw = os.pread(fd, min(size, _MAX_BYTES), 0)
    except OSError as error:
        raise StartError(EXIT_CONFIG, f"tokens descriptor {fd}: {error.strerror}") from None
    return parse(raw, f"tokens descriptor {fd}")


def parse(raw: bytes, name: str) -> Tokens:
    """Read the TOML text of a tokens file. Errors: StartError 78 with the names of what is wrong, never a value."""
    try:
        table: dict[str, Any] = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise StartError(EXIT_CONFIG, f"{name}: is no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        place = str(error).rpartition("(at ")[2].rstrip(")")
        raise StartError(EXIT_CONFIG, f"{name}: is no TOML ({place})") from None
    if not table:
        raise StartError(EXIT_CONFIG, f"{name}: holds no token; write [NAME] with token = … and role = …")
    rows: dict[str, tuple[str, tuple[str, ...]]] = {}
    wrong: list[str] = []
    for number, (owner, row) in enumerate(table.items(), 1):
        found = _read_row(row)
        if isinstance(found, str):
            wrong.append(f"{name}: entry {number}: {found}")
        else:
            rows[owner] = found
    if wrong:
        raise StartError(EXIT_CONFIG, *wrong)
    return Tokens(rows)


def _read_row(row: Any) -> tuple[str, tuple[str, ...]] | str:
    if not isinstance(row, dict):
        return "must be a table [NAME]"
    unknown = sorted(set(row) - {"token", "role", "also"})
    if unknown:
        return "unknown key; known are token, role, also"
    token, role, also = row.get("token"), row.get("role", "module"), row.get("also", [])
    if not isinstance(token, str) or not token:
        return "token must be a non-empty text"
    if role not in ROLES:
        return f"role must be one of {', '.join(ROLES)}"
    if not isinstance(also, list) or not all(isinstance(other, str) and other for other in also):
        return "also must be a list of non-empty texts"
    return role, (token, *also)


def make_operator_tokens(path: Path) -> None:
    """Write a tokens file with one fresh operator token, 0600. Errors: OSError."""
    text = f'[operator]\ntoken = "{secrets.token_urlsafe(32)}"\nrole = "operator"\n'
    write_atomic(path, text.encode("ascii"))
