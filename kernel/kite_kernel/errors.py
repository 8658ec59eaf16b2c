"""What can go wrong at the start, each with its exit code and one clear line.

Exit codes follow sysexits (05 §3).
"""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69
EXIT_BUG: Final = 70
EXIT_ALREADY_RUNNING: Final = 75
EXIT_PERMISSION: Final = 77
EXIT_CONFIG: Final = 78


class StartError(Exception):
    """The kernel cannot start as asked. The user's or the machine's fault; never retried by itself.

    `code` is the exit code, `lines` what stderr says. No line holds the content of a tokens file.
    """

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(*lines)
        self.code = code
        self.lines = lines
