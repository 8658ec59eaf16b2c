"""Lets a hung module say where it hangs: on SIGUSR2 faulthandler writes all threads' stacks to `stacks.txt`.

It works when nothing else of the module does, because no Python code runs for it. The watchdog asks in this way before
it has a hung module restarted, and only where that file stands; a signal handler of the author's own is left alone.
Source: spec 60-watchdog §1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path
from typing import Final

FILE: Final = "stacks.txt"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def install(folder: str | None) -> bool:
    """Be ready to tell stacks in the module's own directory; False where there is none, or the signal is taken."""
    if not folder or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return False
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        descriptor = os.open(Path(folder) / FILE, _FLAGS, 0o600)
        faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True)
        return True
    return False
