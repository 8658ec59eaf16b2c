"""`processes.json`: written before a child can run, whole at every look, one write for all who ask at once.

A record that can't be written is kept by the log keeper (it holds its own copy) and said: starts and restarts go
on, `status` says why. Source: spec 05 §5; spec 50 §1, §3; cases S-77, S-79, S-82.
"""

from __future__ import annotations

import trio

from kite_launcher.core.records import ProcessRecord, render_processes
from kite_launcher.edge.statedir import StateDir

FILE = "processes.json"


class RecordBook:
    """What runs, in memory and on disk."""

    def __init__(self, state: StateDir, *, boot_id: str, instance: str) -> None:
        self._state, self._boot_id, self._instance = state, boot_id, instance
        self._records: dict[str, ProcessRecord] = {}
        self._version = self._written = 0
        self._turn = trio.Lock()
        self.trouble: str | None = None

    def put(self, record: ProcessRecord) -> None:
        """Note one process; `flush` makes it last."""
        self._records[record.name] = record
        self._version += 1

    def drop(self, name: str, pid: int) -> None:
        """Forget the record of a process that is gone; a newer one of the same name stays."""
        record = self._records.get(name)
        if record is not None and record.pid == pid:
            del self._records[name]
            self._version += 1

    def records(self) -> tuple[ProcessRecord, ...]:
        """Return all records."""
        return tuple(self._records.values())

    async def flush(self) -> str | None:
        """Bring everything noted so far onto the disk. Returns why not, None when it is there.

        Whoever asks while a write runs is served by the next one, so 500 starts cost a handful of writes.
        """
        wanted = self._version
        async with self._turn:
            if self._written >= wanted and self.trouble is None:
                return None
            version = self._version
            data = render_processes(self._boot_id, self._instance, self._records.values())
            try:
                await trio.to_thread.run_sync(self._state.write, FILE, data)
            except OSError as error:
                self.trouble = f"{self._state.path}/{FILE}: {error.strerror} (errno {error.errno})"
            else:
                self._written, self.trouble = version, None
            return self.trouble
