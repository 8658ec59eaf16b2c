"""The pipes that the launcher holds together with its log keeper, so that the keeper's death loses nothing.

They are held by this process for a state directory, whichever link fetched them: the next keeper gets them.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from kite_launcher.core.keeper_orders import KeptRecord


@attrs.define
class HeldRun:
    """The pipes of one run: `out`, `err` (reading ends) and `in` (the writing end of a stdin)."""

    record: KeptRecord
    fds: dict[str, int]


class HeldPipes:
    """What is held for one state directory."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], HeldRun] = {}

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

    def release_stdin(self, name: str, run: int) -> None:
        """Let go of the stdin of a process that has ended."""
        held = self._runs.get((name, run))
        if held is not None and "in" in held.fds:
            os.close(held.fds.pop("in"))

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
