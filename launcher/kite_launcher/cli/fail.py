"""How a command says no: one line for people, one JSON object for programs, an exit code for both.

Source: spec 05 §3 (exit codes, errors in `--json` mode).
"""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import suppress
from typing import Final, NoReturn, TextIO

OK: Final = 0
NO: Final = 1
FAILED: Final = 2
NOTHING: Final = 3
USAGE: Final = 64
UNAVAILABLE: Final = 69
BUG: Final = 70
RUNNING: Final = 75
PERMISSION: Final = 77
CONFIG: Final = 78


class Failure(Exception):
    """A command ends here: its exit code, what is wrong, and the way out. The user's or the machine's fault.

    `lines` replaces the one line on stderr when there is more than one thing wrong (a mistake each).
    """

    def __init__(self, code: int, message: str, hint: str = "", *, lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.lines = lines


_SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.E2BIG)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def of_machine(error: OSError) -> Failure | None:
    """Return the refusal when the machine lacks something (69) or forbids it (77); None for what nobody foresaw."""
    where = f"{error.filename}: " if isinstance(error.filename, str) else ""
    text = f"{where}{(error.strerror or str(error)).lower()} (errno {error.errno})"
    if error.errno in _SCARCE:
        return Failure(UNAVAILABLE, text, "make room and try again; `kite doctor` looks for the cause")
    return Failure(PERMISSION, text) if error.errno in _FORBIDDEN else None


def tell(failure: Failure, *, as_json: bool) -> int:
    """Print a failure on stderr, in the form the caller asked for, and return its exit code."""
    if as_json:
        message = "\n".join(failure.lines) or failure.message
        complain(json.dumps({"schema": 1, "error": {"code": failure.code, "message": message, "hint": failure.hint}}))
        return failure.code
    for line in failure.lines:
        complain(line)
    if not failure.lines:
        complain(f"kite-launch: {failure.message}" + (f"; {failure.hint}" if failure.hint else ""))
    return failure.code


def complain(text: str) -> None:
    """Write one line to stderr; a stderr that nobody reads is no reason to fail."""
    _write(sys.stderr, text)


def say(text: str) -> None:
    """Write one line to stdout. Once its reader has gone (`| head -1`), the rest of the output is let go quietly."""
    _write(sys.stdout, text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed by the caller: `status >&-`
        return
    # What the terminal's encoding can't show, and bytes of names that are no text, stand there escaped.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):
        _let_go(stream)


def _let_go(stream: TextIO) -> None:
    """Point the descriptor at /dev/null, so that Python's own flush at the end has nothing to complain of."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, stream.fileno())
        os.close(null)


def bug(error: BaseException, state_dir: str | None) -> int:
    """Keep the report of a fault of Kite's own in a file, say where, and return 70.

    The report holds the traceback and versions; neither arguments nor environment, for they may hold secrets.
    """
    import platform
    import tempfile
    import traceback

    frames = traceback.format_exception(type(error), error, error.__traceback__)
    report = f"kite-launch, Python {platform.python_version()}, {platform.platform()}\n\n{''.join(frames)}"
    folder = state_dir if state_dir and os.access(state_dir, os.W_OK) else tempfile.gettempdir()
    try:
        fd, path = tempfile.mkstemp(prefix="kite-bug-", suffix=".txt", dir=folder)
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
        where = f"the report is in {path}"
    except OSError as problem:
        where = f"its report could not be kept ({problem.strerror})"
    complain(f"kite-launch: a fault of Kite's own, {type(error).__name__}: {where}")
    return BUG


def leave(code: int) -> NoReturn:
    """End the process with `code` without a second complaint about streams that were closed meanwhile."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            _let_go(stream)
    sys.exit(code)
