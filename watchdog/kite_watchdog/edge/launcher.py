"""What the watchdog asks of the launcher: over the kernel, or by its control socket when that way is closed.

Source: spec 05 §3 (`<state-dir>/launcher.sock`, reached through a directory descriptor so that long paths work), 60.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from kite_watchdog._contract import E_CONNECTION_LOST, E_DEADLINE, E_OFFLINE
from kite_watchdog.core.frames import plain
from kite_watchdog.edge.link import Link

SOCKET: Final = "launcher.sock"
LINE_BYTES_MAX: Final = 4_194_304  # bytes; the status of thousands of modules
NO_WAY: Final = (E_OFFLINE, E_CONNECTION_LOST, E_DEADLINE)  # errors that say nothing about the launcher's will


@attrs.frozen
class Said:
    """What the launcher answered. `reached` False = nobody answered; `refused` = its own words, None = done.

    `may_be` = nobody answered, and yet it may have been done: not to be ordered again.
    """

    reached: bool
    result: Any = None
    refused: str | None = None
    may_be: bool = False


class Launcher:
    """The launcher as seen from the watchdog."""

    def __init__(self, state_dir: Path, link: Link) -> None:
        self._state_dir, self._link = state_dir, link

    async def ask(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Said:
        """Ask by the kernel, and by the socket where that way is closed. For questions only: asked twice is no harm."""
        said = await self.order(method, params, timeout_s=timeout_s)
        return said if said.reached else await self.ask_socket(method, params, timeout_s=timeout_s)

    async def order(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Said:
        """Ask by the kernel alone, where the launcher sees that it is the watchdog who asks: its budget then counts.

        Cancel: the deed may have happened.
        """
        answer = await self._link.call(f"launcher.{method}", params, timeout_s=timeout_s, wait=False)
        if answer.error is None:
            return Said(True, answer.value())
        if not answer.lost and answer.error not in NO_WAY:
            return Said(True, None, answer.message or f"error {answer.error}")
        if answer.error == E_DEADLINE or answer.outcome == "unknown":
            return Said(False, None, "no answer in time", may_be=True)
        return Said(False, None, answer.message or "not reached")

    async def ask_socket(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Said:
        """Ask by the control socket alone; works while the kernel is away."""
        try:
            with trio.move_on_after(timeout_s):
                return await self._converse(method, params)
        except OSError as error:
            return Said(False, None, f"{SOCKET}: {error.strerror}")
        return Said(False, None, "no answer in time")

    async def _converse(self, method: str, params: dict[str, Any]) -> Said:
        folder = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            stream = await trio.open_unix_socket(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.close(folder)
        async with stream:
            order = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            await stream.send_all(msgspec.json.encode(order) + b"\n")
            return await _read_answer(stream)


async def _read_answer(stream: trio.SocketStream) -> Said:
    """Read lines until the answer; progress lines before it are passed over."""
    buffer = bytearray()
    while len(buffer) <= LINE_BYTES_MAX:
        line, newline, rest = bytes(buffer).partition(b"\n")
        if not newline:
            data = await stream.receive_some(65_536)
            if not data:
                return Said(False, None, "the launcher hung up")
            buffer += data
            continue
        buffer = bytearray(rest)
        said = _said(line)
        if said is not None:
            return said
    return Said(False, None, "an answer without end")


def _said(line: bytes) -> Said | None:
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return Said(False, None, "an answer that is no JSON")
    if not isinstance(value, dict) or "id" not in value:
        return None
    error = value.get("error")
    if error is None:
        return Said(True, value.get("result"))
    words = error.get("message") if isinstance(error, dict) else None
    return Said(True, None, plain(words) if isinstance(words, str) else "refused")
