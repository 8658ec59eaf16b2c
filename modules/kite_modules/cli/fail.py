"""How a command says no, and how it prints: one line for people, one JSON object for programs, never a traceback.

Source: spec 05-surface §3 (exit codes, errors in `--json` mode), cases S-48, S-53, X-38.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Final, TextIO

OK: Final = 0
NO: Final = 1
NOTHING: Final = 3
USAGE: Final = 64
UNAVAILABLE: Final = 69
BUG: Final = 70
PERMISSION: Final = 77
CONFIG: Final = 78

# what could move a terminal's cursor, hide or turn text round: C1 controls, line separators, bidi marks
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class Failure(Exception):
    """A command ends here: exit code, what is wrong, the way out. The user's or the machine's fault.

    `more` stands beside code, message and hint in `--json` mode; its `code` replaces the exit code there.
    """

    def __init__(self, code: int, message: str, hint: str = "", **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.more = more


def safe(text: str) -> str:
    """Return text that no terminal obeys: what could be is written as its escape, valid inside JSON strings."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def tell(failure: Failure, *, as_json: bool) -> int:
    """Print a failure on stderr in the form that was asked for; returns its exit code."""
    if as_json:
        error = {"code": failure.code, "message": failure.message, "hint": failure.hint, **failure.more}
        complain(json.dumps({"schema": 1, "error": error}, ensure_ascii=False, default=str))
    else:
        complain(f"kite: {failure.message}" + (f"; {failure.hint}" if failure.hint else ""))
    return failure.code


def say(text: str) -> None:
    """Write one line to stdout. Raises: BrokenPipeError when nobody reads any more."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Write one line to stderr; nobody reading it is no reason to fail."""
    try:
        _write(sys.stderr, text)
    except OSError:
        _let_go(sys.stderr)


def say_json(value: dict[str, Any]) -> None:
    """Write one object with `"schema": 1` to stdout."""
    say(json.dumps({"schema": 1, **value}, ensure_ascii=False, default=str))


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed by the caller
        return
    line = "\n".join(safe(part) for part in text.split("\n"))
    data = line.encode(stream.encoding or "utf-8", "backslashreplace").decode(stream.encoding or "utf-8")
    print(data, file=stream, flush=True)


def _let_go(stream: TextIO | None) -> None:
    """Point the descriptor at /dev/null, so that Python's own flush at the end has nothing to complain of."""
    if stream is None:
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        return


def let_go_of_stdout() -> None:
    """The reader of stdout has gone: end without a second complaint."""
    _let_go(sys.stdout)


def bug(error: BaseException) -> int:
    """Keep the report of a fault of Kite's own in a file, say where, return 70. It holds no arguments: they may be
    secrets."""
    import platform
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="kite-bug-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"kite, Python {platform.python_version()}, {platform.platform()}\n\n{text}")
        where = f"the report is in {path}"
    except OSError as problem:
        where = f"its report could not be kept ({problem.strerror})"
    complain(f"kite: a fault of Kite's own, {type(error).__name__}: {where}")
    return BUG
