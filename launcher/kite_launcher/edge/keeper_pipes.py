"""The pipes that the launcher holds together with its log keeper, so that the keeper's death loses nothing.

They are held by this process for a state directory, whichever link fetched them: the next keeper gets them.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs
import trio

from kite_launcher.core.keeper_orders import KeptRecord

STATUSES: Final = 1000


@attrs.define
class HeldRun:
    """The pipes of one run: `out`, `err` (reading ends) and `in` (the writing end of a stdin).

    `ended` says that the end of its process was heard: what is left belongs to its children.
    """

    record: KeptRecord
    fds: dict[str, int]
    ended: bool = False


class HeldPipes:
    """What is held for one state directory. `statuses` maps a pid to its raw wait status."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], HeldRun] = {}
        self.statuses: dict[int, int] = {}
        self.status_news = trio.Event()

    @property
    def runs(self) -> list[HeldRun]:
        """Give what is held now."""
        return list(self._runs.values())

    def hold(self, record: KeptRecord, fds: dict[str, int]) -> None:
        """Take descriptors; one that is held already is closed."""
        held = self._runs.setdefault((record.name, record.run), HeldRun(record, {}))
        for stream, fd in fds.items():
            if stream in held.fds:
                os.close(fd)
            else:
                held.fds[stream] = fd

    def release(self, name: str, run: int) -> None:
        """Let go of a run whose output is over."""
        held = self._runs.pop((name, run), None)
        if held is not None:
            close_all(held.fds.values())

    def note_end(self, name: str, run: int) -> None:
        """Take note that a process has ended; its stdin is let go."""
        held = self._runs.get((name, run))
        if held is None:
            return
        held.ended = True
        if "in" in held.fds:
            os.close(held.fds.pop("in"))

    def note_status(self, pid: int, status: int) -> None:
        """Keep the wait status of a child that fell to this process, for the word of the (next) keeper."""
        if len(self.statuses) >= STATUSES:
            del self.statuses[next(iter(self.statuses))]
        self.statuses[pid] = status
        self.status_news.set()
        self.status_news = trio.Event()

    def release_all(self) -> None:
        """Let go of everything."""
        for name, run in list(self._runs):
            self.release(name, run)


_HELD: Final[dict[Path, HeldPipes]] = {}


def held_pipes(state_dir: Path) -> HeldPipes:
    """Give what this process holds for a state directory."""
    return _HELD.setdefault(state_dir, HeldPipes())


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)
