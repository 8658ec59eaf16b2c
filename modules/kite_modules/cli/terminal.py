"""A terminal in cbreak mode for the time of a block: keys as they are pressed, everything restored in every case.

Source: spec 00 §32, 05-surface §3 (a lone ESC counts after 50 ms without a following byte).
"""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import trio

ESC_S: Final = 0.05
_SHOW: Final = "\x1b[?1049h\x1b[?25l"
_RESTORE: Final = "\x1b[?25h\x1b[?1049l"


def is_terminal() -> bool:
    """Say whether a person sits at both ends."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()


@contextmanager
def full_screen() -> Generator[None, None, None]:
    """Use the alternate screen without a cursor, keys unbuffered; afterwards all is as before."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        sys.stdout.write(_SHOW)
        sys.stdout.flush()
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(_RESTORE)
        sys.stdout.flush()


async def wait_quit_key() -> None:
    """Return when q, Ctrl+D or a lone ESC is pressed."""
    descriptor = sys.stdin.fileno()
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        pressed = os.read(descriptor, 64)
        if pressed in (b"q", b"Q", b"\x04", b""):
            return
        if pressed == b"\x1b":
            with trio.move_on_after(ESC_S):
                await trio.lowlevel.wait_readable(descriptor)
                os.read(descriptor, 64)  # an arrow or function key: not for us
                continue
            return
