"""The terminal of a launcher in front: keys that stop it, and its modes put back whatever happens.

q, ESC and Ctrl+C stop the instance. A lone ESC counts after 50 ms without a following byte (an arrow key begins
with one, too). Source: spec 50 §3; 05 §3; 00 §32.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any, Final

import trio

ESC: Final = b"\x1b"
ESC_ALONE_S: Final = 0.05


class Terminal:
    """Standard input as a source of keys, when it is a terminal that is ours to read."""

    def __init__(self) -> None:
        self._fd = -1
        self._modes: list[Any] | None = None
        try:
            fd = sys.stdin.fileno()
            if os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp():
                self._fd = fd
        except (OSError, ValueError, AttributeError):
            pass

    @property
    def usable(self) -> bool:
        """True when keys can be read."""
        return self._fd >= 0

    def enter(self) -> None:
        """Read keys one by one from now on; the old modes come back at exit in every case."""
        if self._fd < 0:
            return
        try:
            self._modes = self._modes or termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSANOW)
        except termios.error:
            self._fd = -1
            return
        atexit.register(self.restore)

    def restore(self) -> None:
        """Put the modes back; harmless twice, and when the terminal is gone."""
        if self._modes is None:
            return
        modes, self._modes = self._modes, None
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, modes)

    async def keys(self, on_quit: Callable[[str], None]) -> None:
        """Call `on_quit` for each key that asks to stop, until the terminal is gone or this is cancelled."""
        while self._fd >= 0:
            await trio.lowlevel.wait_readable(self._fd)
            data = self._read()
            if data is None:
                return
            if data == ESC:
                with trio.move_on_after(ESC_ALONE_S) as alone:
                    await trio.lowlevel.wait_readable(self._fd)
                if alone.cancelled_caught:
                    on_quit("ESC")
                    continue
                data += self._read() or b""
            if data[:1] in (b"q", b"Q"):
                on_quit("q")

    def _read(self) -> bytes | None:
        try:
            return os.read(self._fd, 64) or None
        except OSError:
            return None


def has_terminal() -> bool:
    """Say whether this process still has a controlling terminal that lives."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.tcgetpgrp(fd)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)
