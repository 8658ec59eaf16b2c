"""Says in one line where an author's code failed: a traceback is for a terminal, a log wants one line."""

from __future__ import annotations

import traceback
from pathlib import Path

_FRAMES_MAX = 8


def where_it_failed(error: BaseException) -> list[str]:
    """Return `file:line function` of the frames that led to an exception, innermost last, without the SDK's own."""
    if isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        return where_it_failed(error)
    own = Path(__file__).parent
    stack = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in stack if Path(frame.filename).parent != own] or list(stack)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in theirs[-_FRAMES_MAX:]]
