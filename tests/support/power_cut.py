"""A disk that loses power: the file layer of the stream log in memory, with what a real disk may do to unsynced bytes.

What fsync covered stays. Of the rest each 512-byte sector is kept or lost by a seeded coin, a file's size is any that
it passed through, and of a directory's unsynced changes a prefix is kept (an ordered journal). A failed fsync leaves
sectors that look written and never will be: later fsyncs don't write them.
"""

import errno
import random
import threading
from collections.abc import Sequence

import attrs

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine is gone. A BaseException, so that no error handling of the code under test takes it for a fault."""


@attrs.define(eq=False)
class _Inode:
    data: bytearray = attrs.field(factory=bytearray)
    safe: bytearray = attrs.field(factory=bytearray)
    dirty: set[int] = attrs.field(factory=set)
    lost: set[int] = attrs.field(factory=set)

    def touch(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR_BYTES, (max(end, start + 1) - 1) // SECTOR_BYTES + 1):
            self.dirty.add(sector)
            self.lost.discard(sector)

    def sync(self) -> None:
        size = len(self.data)
        fresh = bytearray(size)
        for at in range(0, size, SECTOR_BYTES):
            sector = at // SECTOR_BYTES
            source = self.safe if sector in self.lost else self.data
            piece = source[at : min(at + SECTOR_BYTES, size)]
            fresh[at : at + len(piece)] = piece
        self.safe = fresh
        self.dirty.clear()

    def lose(self, rng: random.Random) -> None:
        """Become what the platter holds after the cut."""
        sizes = [len(self.safe), len(self.data), rng.randint(*sorted((len(self.safe), len(self.data))))]
        size = rng.choice(sizes)
        platter = bytearray(size)
        for at in range(0, size, SECTOR_BYTES):
            sector = at // SECTOR_BYTES
            is_new = sector in self.dirty and sector not in self.lost and rng.random() < 0.5
            source = self.data if is_new else self.safe
            piece = source[at : min(at + SECTOR_BYTES, size)]
            platter[at : at + len(piece)] = piece
        self.data = platter
        self.safe = bytearray(platter)
        self.dirty.clear()
        self.lost.clear()


class _File:
    def __init__(self, disk: "PowerCutFiles", inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def write(self, data: bytes) -> None:
        inode = self._inode
        room = self._disk.step(len(data))
        start = len(inode.data)
        inode.data += data[:room]
        if room:
            inode.touch(start, start + room)
        self._disk.after_write(room, len(data))

    def sync(self) -> None:
        self._disk.step()
        self._disk.syncs += 1
        if self._disk.gate is not None:
            assert self._disk.gate.wait(30)
        if self._disk.fail_syncs:
            self._disk.fail_syncs -= 1
            inode = self._inode
            inode.lost |= inode.dirty
            inode.dirty.clear()
            raise OSError(errno.EIO, "Input/output error")
        self._inode.sync()

    def truncate(self, size_bytes: int) -> None:
        self._disk.step()
        inode = self._inode
        if size_bytes < len(inode.data):
            del inode.data[size_bytes:]
            inode.touch(size_bytes, size_bytes)

    def close(self) -> None:
        pass


class PowerCutFiles:
    """The file layer. `cut_at`: the call in which the power goes; `room_bytes`: what the disk still takes.

    `fail_syncs`: so many syncs answer EIO; `gate`: a sync waits for it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now: dict[str, _Inode] = {}
        self._safe: dict[str, _Inode] = {}
        self._changes: dict[str, list[tuple[str, str, _Inode | None]]] = {}
        self.calls = 0
        self.cut_at: int | None = None
        self.fail_syncs = 0
        self.room_bytes: int | None = None
        self.largest_read_bytes = 0
        self.syncs = 0
        self.gate: threading.Event | None = None

    # ---- faults

    def step(self, size_bytes: int = 0) -> int:
        """Count a call; the power may go in the middle of it. Returns how many bytes it may write."""
        self.calls += 1
        if self.cut_at is not None and self.calls >= self.cut_at:
            if size_bytes == 0:
                raise PowerCut
            return self._rng.randint(0, size_bytes)
        return size_bytes if self.room_bytes is None else min(size_bytes, self.room_bytes)

    def after_write(self, written: int, wanted: int) -> None:
        """End a write as the fault wants it."""
        if self.cut_at is not None and self.calls >= self.cut_at:
            raise PowerCut
        if self.room_bytes is not None:
            self.room_bytes -= written
        if written < wanted:
            raise OSError(errno.ENOSPC, "No space left on device")

    def power_cut(self) -> None:
        """Lose what wasn't safe, and come up again."""
        for changes in self._changes.values():
            for kind, path, inode in changes[: self._rng.randint(0, len(changes))]:
                self._apply(self._safe, kind, path, inode)
        self._changes.clear()
        for inode in {id(i): i for i in self._safe.values()}.values():
            inode.lose(self._rng)
        self._now = dict(self._safe)
        self.cut_at = None
        self.fail_syncs = 0
        self.room_bytes = None

    @staticmethod
    def _apply(table: dict[str, _Inode], kind: str, path: str, inode: _Inode | None) -> None:
        if kind == "link" and inode is not None:
            table[path] = inode
        elif kind == "rename":
            source, _, target = path.partition("\0")
            if source in table:
                table[target] = table.pop(source)
        else:
            table.pop(path, None)

    def _change(self, kind: str, path: str, inode: _Inode | None = None) -> None:
        self._apply(self._now, kind, path, inode)
        folder = path.rpartition("\0")[2].rpartition("/")[0]
        self._changes.setdefault(folder, []).append((kind, path, inode))

    # ---- the layer

    def make_dir(self, path: str) -> None:
        self.step()

    def names(self, path: str) -> Sequence[str]:
        self.step()
        return sorted(name.rpartition("/")[2] for name in self._now if name.rpartition("/")[0] == path)

    def open_append(self, path: str) -> _File:
        self.step()
        if path not in self._now:
            self._change("link", path, _Inode())
        return _File(self, self._now[path])

    def _inode(self, path: str) -> _Inode:
        try:
            return self._now[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file", path) from None

    def size_bytes(self, path: str) -> int:
        return len(self._inode(path).data)

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        found = bytes(self._inode(path).data[offset : offset + size_bytes])
        self.largest_read_bytes = max(self.largest_read_bytes, len(found))
        return found

    def view(self, path: str) -> memoryview:
        return memoryview(bytes(self._inode(path).data))

    def write_whole(self, path: str, data: bytes, *, safe: bool = True) -> None:
        temporary = path + ".new"
        if temporary in self._now:
            self._change("remove", temporary)
        file = self.open_append(temporary)
        file.write(data)
        if safe:
            file.sync()
        self.rename(temporary, path)
        if safe:
            self.sync_dir(path.rpartition("/")[0])

    def rename(self, source: str, target: str) -> None:
        self.step()
        inside = [name for name in self._now if name.startswith(source + "/")]
        for name in inside or [source]:
            self._change("rename", f"{name}\0{target}{name.removeprefix(source)}")

    def remove(self, path: str) -> None:
        self.step()
        if path in self._now:
            self._change("remove", path)

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self._now if name.startswith(path + "/")]:
            self.remove(name)

    def sync_dir(self, path: str) -> None:
        self.step()
        for kind, name, inode in self._changes.pop(path, []):
            self._apply(self._safe, kind, name, inode)

    # ---- what tests do to files

    def paths(self) -> list[str]:
        """Name every file."""
        return sorted(self._now)

    def flip(self, path: str, offset: int) -> None:
        """Flip one bit on the platter."""
        inode = self._inode(path)
        inode.data[offset] ^= 1
        inode.safe = bytearray(inode.data)

    def cut_file(self, path: str, size_bytes: int) -> None:
        """Make a file shorter on the platter."""
        inode = self._inode(path)
        del inode.data[size_bytes:]
        inode.safe = bytearray(inode.data)
