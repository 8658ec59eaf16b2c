"""The last number of every volatile stream, so that numbers go on after a restart and are never given out twice.

While the kernel runs the file holds numbers ahead of those given out (a reserved block); a clean end writes the exact
ones. After a kill a stream goes on behind its block: what was asked for is then gone, and the subscriber is told so.

Source: spec 00 §22, cases W-61.
"""

import json
from typing import Final

import attrs

from kite_kernel.store.files import Files

SCHEMA: Final = 1
BLOCK_FIRST: Final = 1024
"""The first block; each further one is twice as large, so that a fast stream writes seldom."""

BLOCK_MAX: Final = 1_048_576

AWAY_MAX: Final = 10_000
"""Streams that nobody has used for long and whose numbers are still remembered."""


@attrs.define
class _Row:
    epoch: str
    reserved: int
    block: int = BLOCK_FIRST


class StreamNumbers:
    """The file. A missing or broken one means new epochs, never numbers twice in one epoch."""

    def __init__(self, files: Files, path: str) -> None:
        """Read what stands there; `was_broken` says that there was something and that it can't be read."""
        self._files = files
        self._path = path
        self._rows: dict[str, _Row] = {}
        self._away: dict[str, None] = {}
        self.was_broken = False
        try:
            raw = bytes(files.view(path))
        except FileNotFoundError:
            return
        except OSError:
            self.was_broken = True
            return
        try:
            table = json.loads(raw)
            if table["schema"] != SCHEMA:
                raise ValueError(table["schema"])
            for name, row in table["streams"].items():
                self._rows[name] = _Row(str(row["epoch"]), int(row["seq"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._rows.clear()
            self.was_broken = True

    def begin(self, name: str, fresh_epoch: str) -> tuple[str, int]:
        """Return (epoch, the number to go on after) of a stream."""
        self._away.pop(name, None)
        row = self._rows.setdefault(name, _Row(fresh_epoch, 0))
        return row.epoch, row.reserved

    def needs_block(self, name: str, seq: int) -> bool:
        """Tell whether number `seq` is the first one outside the reserved block."""
        row = self._rows.get(name)
        return row is None or seq > row.reserved

    def reserve(self, name: str, seq: int) -> None:
        """Reserve a block from number `seq` on. Errors: OSError; the numbers may then come again after a crash."""
        row = self._rows[name]
        row.reserved = seq - 1 + row.block
        row.block = min(2 * row.block, BLOCK_MAX)
        self._write(safe=False)

    def put_away(self, name: str, seq: int) -> None:
        """A stream makes room: its numbers go on after `seq` when it comes back, unless too many went after it."""
        self._note(name, seq)
        self._away[name] = None
        if len(self._away) > AWAY_MAX:
            oldest = next(iter(self._away))
            del self._away[oldest]
            del self._rows[oldest]  # a new epoch then: no number is given twice

    def _note(self, name: str, seq: int) -> None:
        row = self._rows.get(name)
        if row is not None:
            row.reserved, row.block = seq, BLOCK_FIRST

    def forget(self, name: str) -> None:
        """A deleted stream begins anew, with another epoch."""
        self._away.pop(name, None)
        if self._rows.pop(name, None) is not None:
            self._write(safe=False)

    def close(self, exact: dict[str, int]) -> None:
        """Write the exact last numbers of the streams that were used. Errors: OSError."""
        for name, seq in exact.items():
            self._note(name, seq)
        if any(row.reserved for row in self._rows.values()):
            self._write(safe=True)

    def _write(self, *, safe: bool) -> None:
        streams = {name: {"epoch": row.epoch, "seq": row.reserved} for name, row in self._rows.items() if row.reserved}
        data = json.dumps({"schema": SCHEMA, "streams": streams}).encode()
        self._files.write_whole(self._path, data, safe=safe)
