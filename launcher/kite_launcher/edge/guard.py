"""Keeps a fault of one task from ending the supervision of everything else: it is said, and the task begins again.

Only for tasks that hold nothing when they begin anew. Cancellation passes through. Source: spec 00 §2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from kite_launcher.edge.journal import Journal

PAUSE_S: Final = 1.0  # a fault that returns at once costs a line a second, and the journal sums them up


async def keep(name: str, task: Callable[[], Awaitable[object]], journal: Journal) -> None:
    """Run a task to its end; after a fault say it and begin again. Cancel: safe."""
    while True:
        try:
            await task()
        except Exception as error:
            journal.error("a fault of the launcher's own", name=name, why=first_of(error))
            await trio.sleep(PAUSE_S)
        else:
            return


def first_of(error: BaseException) -> str:
    """Return the first real exception of a group in words, with the place where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" at {place.tb_frame.f_code.co_filename.rpartition('/')[2]}:{place.tb_lineno}" if place is not None else ""
    return f"{type(error).__name__}: {error}{where}"
