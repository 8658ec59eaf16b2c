"""Who may speak to the kernel: made here, handed over by descriptor, never written where others read.

The kernel gets the whole table through a sealed-off memory file and rereads it on SIGHUP; each child gets its own
token through a pipe that holds it once. Only the operator's token stands in a file (0600), for `kite`.
Source: spec 00 §12; spec 05 §2, §4, §5; cases S-84, X-11.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Final, Literal

import attrs

TokenRole = Literal["module", "launcher", "watchdog", "operator"]
TOKEN_BYTES: Final = 32
OPERATOR: Final = "operator"
ISSUED_MAX: Final = 64  # fresh tokens a name may hold by `kite token`; the oldest goes


@attrs.define
class _Entry:
    role: TokenRole
    token: str = attrs.field(repr=False)
    also: list[str] = attrs.field(factory=list[str], repr=False)


class TokenTable:
    """Every token of one instance. Never printed, never logged."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self.fd = os.memfd_create("kite-tokens", os.MFD_CLOEXEC)

    def token(self, name: str, role: TokenRole) -> str:
        """Return the name's token, made at the first call."""
        entry = self._entries.get(name)
        if entry is None or entry.role != role:
            entry = self._entries[name] = _Entry(role, secrets.token_urlsafe(TOKEN_BYTES))
        return entry.token

    def issue(self, name: str) -> str:
        """Return a further token for a name that has one: it is valid beside the first."""
        entry = self._entries[name]
        fresh = secrets.token_urlsafe(TOKEN_BYTES)
        entry.also = [*entry.also, fresh][-ISSUED_MAX:]
        return fresh

    def holds(self, name: str) -> bool:
        """Say whether the name has a token."""
        return name in self._entries

    def keep_only(self, names: frozenset[str]) -> bool:
        """Forget the tokens of all other modules; True when there was one."""
        gone = [name for name, entry in self._entries.items() if entry.role == "module" and name not in names]
        for name in gone:
            del self._entries[name]
        return bool(gone)

    def write(self) -> None:
        """Write the table into the memory file, for the kernel's next look."""
        parts = []
        for name, entry in sorted(self._entries.items()):
            also = f"also = {json.dumps(entry.also)}\n" if entry.also else ""
            # JSON strings of these characters are TOML basic strings, too.
            parts.append(
                f'[{json.dumps(name, ensure_ascii=False)}]\ntoken = "{entry.token}"\nrole = "{entry.role}"\n{also}'
            )
        data = "\n".join(parts).encode("utf-8")
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, data, 0)

    def dump(self) -> dict[str, list[object]]:
        """Return the table for the next image of this process (through memory only)."""
        return {name: [entry.role, entry.token, entry.also] for name, entry in self._entries.items()}

    def take(self, fd: int, dump: dict[str, list[object]]) -> None:
        """Take over the memory file and the table of an earlier image of this process."""
        self.close()
        self.fd = fd
        os.set_inheritable(fd, False)
        for name, (role, token, also) in dump.items():
            self._entries[name] = _Entry(role, token, list(also))  # type: ignore[arg-type,call-overload]

    def close(self) -> None:
        """Close the memory file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def token_pipe(token: str) -> int:
    """Return the reading end of a pipe that holds the token and its end of file; the caller closes it."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(writer, token.encode("ascii"))
    finally:
        os.close(writer)
    return reader
