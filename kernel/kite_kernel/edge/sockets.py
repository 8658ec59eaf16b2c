"""Listening sockets: inherited (LISTEN_FDS), bound by ourselves, and the Unix socket in the state directory.

Source: spec 00 §7-8, 05-surface §2, cases W-59, X-12.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from kite_kernel.errors import EXIT_PERMISSION, EXIT_UNAVAILABLE, StartError

if TYPE_CHECKING:
    from pathlib import Path

_BACKLOG: Final = 4096  # a whole fleet may come back at once; the system cuts it to its own bound
_FIRST_FD: Final = 3  # sd_listen_fds(3)


def inherited(environ: dict[str, str]) -> list[socket.socket]:
    """Take the sockets that LISTEN_FDS hands to this very process; the variables are removed."""
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count.isdigit() or (pid and pid != str(os.getpid())):
        return []
    found = []
    for fd in range(_FIRST_FD, _FIRST_FD + int(count)):
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            sock.listen(_BACKLOG)
        found.append(sock)
    return found


def bind_tcp(host: str, port: int) -> socket.socket:
    """Listen on an address. Errors: StartError 69 naming port (and holder, where visible), 77 not permitted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(port)
            by = f" by pid {holder}" if holder else ""
            raise StartError(EXIT_UNAVAILABLE, f"port {port} on {host} is taken{by}") from None
        code = EXIT_PERMISSION if error.errno == errno.EACCES else EXIT_UNAVAILABLE
        raise StartError(code, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock


def bind_unix(path: Path) -> socket.socket | None:
    """Listen on the kernel's Unix socket, 0600 from its first instant. Errors: StartError 77 for what is in its way.

    Returns: None where the path is too long for a socket address; TCP is there in any case.
    """
    with contextlib.suppress(FileNotFoundError):
        info = path.lstat()
        if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.getuid():
            raise StartError(EXIT_PERMISSION, f"{path}: something else stands there; remove it")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.bind(f"/proc/self/fd/{directory}/{path.name}")
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        return None
    finally:
        os.umask(before)
        os.close(directory)
    return sock


def holder_of(port: int) -> int | None:
    """Find the pid that listens on a TCP port, where /proc shows it to us."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") in inodes:
                        return int(pid)
    return None
