"""How many lines each log still has to confess, where a killed keeper can't forget it.

The numbers live in shared memory in a file that was given its room beforehand: on a full disk, the very time when
lines are lost, nothing new could be written.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

_SLOT: Final = struct.Struct("<QQ32sH160s")  # lines, bytes, since when, length of the name, the name
_SLOT_BYTES: Final = 256
_SLOTS: Final = 256
_SIZE: Final = _SLOT_BYTES * _SLOTS

Lost = tuple[int, int, str]
NOTHING: Final[Lost] = (0, 0, "")


class LostBook:
    """Lines and bytes by log. Holds 256 failing logs; without a file it lives in memory and promises less."""

    def __init__(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, _SIZE)
                self._map = mmap.mmap(fd, _SIZE)
            finally:
                os.close(fd)
        except OSError:
            self._map = mmap.mmap(-1, _SIZE)
        self._slots: dict[str, int] = {}
        self._free = list(range(_SLOTS))
        for slot in range(_SLOTS):
            lines, size, _, length, name = _SLOT.unpack_from(self._map, slot * _SLOT_BYTES)
            if (lines or size) and 0 < length <= 160:
                self._slots[name[:length].decode("utf-8", "replace")] = slot
                self._free.remove(slot)

    def get(self, name: str) -> Lost:
        """Give (lines, bytes, since when) of a log."""
        slot = self._slots.get(name)
        if slot is None:
            return NOTHING
        lines, size, since, _, _ = _SLOT.unpack_from(self._map, slot * _SLOT_BYTES)
        return lines, size, since.rstrip(b"\0").decode("ascii", "replace")

    def put(self, name: str, lines: int, size_bytes: int, since: str) -> None:
        """Note what is lost by now; nothing lost frees the place."""
        if not lines and not size_bytes:
            slot = self._slots.pop(name, None)
            if slot is not None:
                self._map[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES] = bytes(_SLOT_BYTES)
                self._free.append(slot)
            return
        raw = name.encode("utf-8", "replace")
        if name not in self._slots:
            if not self._free or len(raw) > 160:
                return
            self._slots[name] = self._free.pop()
        place = self._slots[name] * _SLOT_BYTES
        _SLOT.pack_into(
            self._map, place, max(0, lines), max(0, size_bytes), since.encode("ascii", "replace"), len(raw), raw
        )
