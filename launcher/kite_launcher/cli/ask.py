"""One question to a living launcher over `<state-dir>/launcher.sock`, blocking and bounded.

JSON-RPC 2.0, one object a line; `progress` notifications may come before the answer. The socket is reached through a
descriptor of its directory, so that no path is too long for it. Source: spec 05 §3; case S-51.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from kite_launcher.cli.fail import NO, PERMISSION, Failure

SOCKET_NAME: Final = "launcher.sock"
# One answer holds at most the table of some thousand modules with a few hundred characters each.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
# A living launcher answers within milliseconds; this long it is stopped or hangs.
ANSWER_S: Final = 3.0

Progress = Callable[[dict[str, Any]], None]


class NotThere(Exception):
    """No launcher listens in this state directory."""


class Silent(Exception):
    """A launcher listens there but does not answer in time."""


def connect(state_dir: str, *, timeout_s: float = ANSWER_S) -> socket.socket:
    """Return a connected socket whose other end is this user's own (or root's) process.

    Raises NotThere when nobody listens, Silent when nobody accepts in time, Failure 77 when it is not ours to use.
    """
    try:
        folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotThere from error
    except PermissionError as error:
        raise Failure(PERMISSION, f"may not enter {state_dir}", "run as its owner") from error
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        wire.settimeout(timeout_s)
        wire.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        _, uid, _ = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.geteuid(), 0):
            raise Failure(PERMISSION, f"{state_dir}/{SOCKET_NAME} is served by another user (uid {uid})")
    except BaseException as error:
        wire.close()
        if isinstance(error, TimeoutError | BlockingIOError):
            raise Silent from error
        if isinstance(error, PermissionError):
            raise Failure(PERMISSION, f"may not use {state_dir}/{SOCKET_NAME}", "run as its owner") from error
        if isinstance(error, OSError):
            raise NotThere from error
        raise
    finally:
        os.close(folder)
    return wire


def ask(
    state_dir: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    timeout_s: float | None = ANSWER_S,
    progress: Progress | None = None,
) -> Any:
    """Return the launcher's answer to one call.

    `timeout_s` bounds the whole call (None: until the launcher answers or dies; it bounds every order itself).
    Raises NotThere, Silent, or a Failure with the exit code that the launcher named.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wire = connect(state_dir, timeout_s=ANSWER_S if timeout_s is None else min(ANSWER_S, max(timeout_s, 0.1)))
    with wire:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        try:
            wire.sendall(json.dumps(request).encode() + b"\n")
            for message in _lines(wire, deadline):
                if message.get("method") == "progress":
                    if progress is not None:
                        progress(message.get("params") or {})
                elif message.get("id") == 1:
                    return _result(message)
        except TimeoutError as error:
            raise Silent from error
        except OSError as error:
            raise Failure(NO, "the launcher went away before it answered", "see `kite status`") from error
    raise Failure(NO, "the launcher went away before it answered", "see `kite status`")


def _lines(wire: socket.socket, deadline: float | None) -> Any:
    pending = b""
    while True:
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            yield _object(line)
        if deadline is None:
            wire.settimeout(None)
        elif (left_s := deadline - time.monotonic()) > 0:
            wire.settimeout(left_s)
        else:
            raise TimeoutError
        chunk = wire.recv(65536)
        if not chunk:
            return
        pending += chunk
        if len(pending) > ANSWER_BYTES_MAX:
            raise Failure(NO, "the launcher's answer is too long to be one")


def _object(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Failure(NO, "the launcher's answer is no JSON", "is it of another version? see `kite version`") from error
    return message if isinstance(message, dict) else {}


def _result(message: dict[str, Any]) -> Any:
    error = message.get("error")
    if error is None:
        return message.get("result")
    data = error.get("data") if isinstance(error.get("data"), dict) else {}
    code = data.get("exit")
    lines = data.get("lines")
    raise Failure(
        code if type(code) is int and 0 < code < 126 else NO,
        str(error.get("message", "refused")),
        str(data.get("hint", "")),
        lines=tuple(str(line) for line in lines) if isinstance(lines, list) else (),
    )
