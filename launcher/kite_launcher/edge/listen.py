"""The listening socket: opened once by the launcher and handed to every kernel that it starts.

So a restart of the kernel refuses nobody, and nobody else can take the port in between and collect tokens.
Source: spec 00 §7; cases S-44, S-69, X-13.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from typing import Final

import attrs

from kite_launcher.core.launch import EXIT_CONFIG, EXIT_PERMISSION, EXIT_UNAVAILABLE, RefusedError
from kite_launcher.core.spec import KernelSpec

BACKLOG: Final = 4096  # what waits while a kernel is exchanged: every module of a large instance at once
FIRST_PASSED_FD: Final = 3


@attrs.frozen(eq=False)
class Listener:
    """An open listening socket and the address under which modules reach it."""

    socket: socket.socket
    url: str
    port: int

    def close(self) -> None:
        """Close our copy; a kernel that was handed one keeps its own."""
        self.socket.close()


def open_listener(spec: KernelSpec, environ: Mapping[str, str]) -> Listener:
    """Take the socket that a service manager passed in, else bind one. Raises RefusedError 69, 77 or 78."""
    passed = _passed_in(environ)
    if passed is not None:
        return _listener(passed, spec)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            spec.host, spec.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise RefusedError(EXIT_CONFIG, f"[kernel] host {spec.host!r}: {error.strerror or error}") from error
    bound = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise _refused(spec, error) from error
    return _listener(bound, spec)


def listener_of(fd: int, spec: KernelSpec) -> Listener:
    """Go on with a socket that an earlier image of this process opened."""
    return _listener(socket.socket(fileno=fd), spec)


def _listener(bound: socket.socket, spec: KernelSpec) -> Listener:
    name = bound.getsockname()
    host, port = (name[0], name[1]) if isinstance(name, tuple) else (spec.host, spec.port)
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "wss" if spec.tls is not None else "ws"
    return Listener(bound, f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}", port)


def _passed_in(environ: Mapping[str, str]) -> socket.socket | None:
    if environ.get("LISTEN_PID") != str(os.getpid()) or environ.get("LISTEN_FDS", "0") in ("", "0"):
        return None
    try:
        passed = socket.socket(fileno=FIRST_PASSED_FD)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise RefusedError(EXIT_UNAVAILABLE, f"LISTEN_FDS: descriptor 3 is no socket ({error.strerror})") from error
    if not listening:
        raise RefusedError(
            EXIT_UNAVAILABLE, "LISTEN_FDS: descriptor 3 does not listen", "use ListenStream= in the unit"
        )
    passed.set_inheritable(False)
    passed.setblocking(False)
    return passed


def _refused(spec: KernelSpec, error: OSError) -> RefusedError:
    where = f"port {spec.port} on {spec.host}"
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(spec.port)
        by = f" by {holder}" if holder is not None else ""
        return RefusedError(EXIT_UNAVAILABLE, f"{where} is taken{by}", "end that program, or set [kernel] port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return RefusedError(EXIT_PERMISSION, f"{where}: {error.strerror}", "ports below 1024 need rights; set another")
    return RefusedError(EXIT_UNAVAILABLE, f"{where}: {error.strerror}", "check [kernel] host")


def port_holder(port: int) -> str | None:
    """Name the process that listens on a TCP port of this machine, None when it can't be seen."""
    inodes = {inode for table in ("/proc/net/tcp", "/proc/net/tcp6") for inode in _listening(table, port)}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            names = os.listdir(f"/proc/{entry}/fd")
            if any(os.readlink(f"/proc/{entry}/fd/{name}") in wanted for name in names):
                with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as file:
                    return f"pid {entry} ({file.read().strip()})"
        except OSError:
            continue
    return None


def _listening(table: str, port: int) -> list[str]:
    try:
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]
