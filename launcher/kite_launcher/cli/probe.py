"""Short, bounded looks at the network for `doctor`: a port, the kernel's HTTP answers, a NATS server's greeting."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

# On one machine an answer takes milliseconds; what takes this long does not work.
_LOCAL_S: Final = 2.0
_REMOTE_S: Final = 4.0
_GREETING_BYTES_MAX: Final = 65536


def http_status(url: str, path: str) -> int | None:
    """Return the HTTP status of the kernel's plain answer at `path`, None when there is none in time."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host, port), timeout=_LOCAL_S) as wire:
            if parts.scheme == "wss":
                import ssl

                # Only whether it answers is asked; nothing secret is sent, so the certificate's name does not matter.
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                wire = context.wrap_socket(wire)
            wire.sendall(request.encode())
            match = re.match(rb"HTTP/1\.[01] (\d{3})", wire.recv(64))
            return int(match.group(1)) if match else None
    except (OSError, ValueError):
        return None


def port_trouble(host: str, port: int) -> str | None:
    """Return what keeps a listener from being opened at `host:port`, with its holder where that can be seen."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return f"{host} is no address of this machine: {error.strerror or error}"
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(address)
                listener.listen(1)
            except OSError as error:
                holder = _holder(port)
                by = f", held by {holder}" if holder else ""
                return f"{(error.strerror or str(error)).lower()}{by}"
    return None


def _holder(port: int) -> str | None:
    """Return name and pid of the process that listens on `port`, as far as this user may see it."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening(f"/proc/net/{table}", port)}
    for entry in os.listdir("/proc") if inodes else ():
        if not entry.isdigit():
            continue
        if inodes & _sockets(entry):
            try:
                with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as file:
                    return f"{file.read().strip()} (pid {entry})"
            except OSError:
                continue
    return None


def _sockets(pid: str) -> set[str]:
    """Return the inodes of the sockets that a process has open, as far as they may be seen."""
    found: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        with suppress(OSError):  # closed meanwhile, the descriptor of this very listing among them
            link = os.readlink(f"/proc/{pid}/fd/{name}")
            if link.startswith("socket:["):
                found.add(link[8:-1])
    return found


def _listening(table: str, port: int) -> Iterator[str]:
    try:
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return
    for row in rows:
        if len(row) > 9 and row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port:
            yield row[9]


def nats(url: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield each server of a NATS URL (comma-separated) with its greeting, or with why there is none."""
    for part in url.split(","):
        address = urlsplit(part if "//" in part else f"nats://{part}")
        host, port = address.hostname or "127.0.0.1", address.port or 4222
        yield f"{host}:{port}", _greeting(host, port)


def _greeting(host: str, port: int) -> dict[str, Any] | str:
    """Return the INFO that a NATS server sends first; user and password of the URL are never sent from here."""
    received = b""
    try:
        with socket.create_connection((host, port), timeout=_REMOTE_S) as wire:
            while b"\r\n" not in received and len(received) < _GREETING_BYTES_MAX:
                chunk = wire.recv(65536)
                if not chunk:
                    return "closed before its greeting"
                received += chunk
    except OSError as error:
        return (error.strerror or str(error)).lower()
    line = received.partition(b"\r\n")[0]
    try:
        found = json.loads(line.removeprefix(b"INFO "))
    except ValueError:
        return "what listens there is no NATS server"
    return found if isinstance(found, dict) and line.startswith(b"INFO ") else "what listens there is no NATS server"
