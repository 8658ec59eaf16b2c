"""A file system for SQLite that forgets: at the power cut each unsynced 512-byte sector is kept or lost by chance.

Files live in memory: what is durable, and the sectors written since the last sync. Deletion and creation are taken as
durable only after a sync of the file too. Seeded, so that a failing run replays.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import apsw

SECTOR = 512


class PowerCut(apsw.IOError):
    """The machine is off."""


class _Disk:
    """Durable content and the sectors that are only in the cache."""

    def __init__(self) -> None:
        self.durable: dict[str, bytearray] = {}
        self.cached: dict[str, bytearray] = {}
        self.dirty: dict[str, set[int]] = {}

    def cut(self, chance: random.Random, keep: float) -> dict[str, bytes]:
        """Return what is found after the power is back."""
        found: dict[str, bytes] = {}
        for name, cached in self.cached.items():
            durable = self.durable.get(name, bytearray())
            content = bytearray(durable)
            for sector in sorted(self.dirty.get(name, ())):
                if chance.random() < keep:
                    part = cached[sector * SECTOR : (sector + 1) * SECTOR]
                    if len(content) < sector * SECTOR:
                        content.extend(bytes(sector * SECTOR - len(content)))
                    content[sector * SECTOR : sector * SECTOR + len(part)] = part
            found[name] = bytes(content)
        return found


class _File:
    def __init__(self, vfs: ForgetfulVFS, name: str) -> None:
        self._vfs = vfs
        self._name = name

    @property
    def _content(self) -> bytearray:
        return self._vfs.disk.cached[self._name]

    def xRead(self, amount: int, offset: int) -> bytes:
        self._vfs.tick()
        return bytes(self._content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.tick()
        content = self._content
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        dirty = self._vfs.disk.dirty.setdefault(self._name, set())
        dirty.update(range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1))

    def xTruncate(self, size: int) -> None:
        self._vfs.tick()
        del self._content[size:]
        durable = self._vfs.disk.durable.get(self._name)
        if durable is not None:
            del durable[size:]

    def xSync(self, flags: int) -> None:
        self._vfs.tick()
        self._vfs.fault()
        self._vfs.disk.durable[self._name] = bytearray(self._content)
        self._vfs.disk.dirty[self._name] = set()

    def xFileSize(self) -> int:
        return len(self._content)

    def xLock(self, level: int) -> None:
        """One process: always granted."""

    def xUnlock(self, level: int) -> None:
        """One process: nothing to do."""

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xClose(self) -> None:
        """The content stays with the disk."""


class ForgetfulVFS(apsw.VFS):
    """Register under a name; `after` calls it turns the power off. `fault` is asked before each sync."""

    def __init__(self, name: str, *, after: int, fault: Callable[[], None] = lambda: None) -> None:
        super().__init__(name, "")
        self.disk = _Disk()
        self.calls = 0
        self.after = after
        self.fault = fault

    def tick(self) -> None:
        self.calls += 1
        if self.calls > self.after:
            raise PowerCut

    def xOpen(self, name: object, flags: list[int]) -> _File:  # type: ignore[override]
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self.disk.cached.setdefault(path, bytearray())
        flags[1] = flags[0]
        return _File(self, path)

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self.disk.cached

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.tick()
        for kept in (self.disk.cached, self.disk.durable, self.disk.dirty):
            kept.pop(filename, None)

    def xFullPathname(self, name: str) -> str:
        return name
