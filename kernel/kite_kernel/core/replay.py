"""What was sent and not acknowledged: joined frames by chunks, as the wire took them, so that a flush costs one entry.

Laws (10-wire §8): frames leave only from the old end, acknowledged or pushed out by the bound; what is handed out again
is whole frames, in order, from any frame on that is still here.
"""

from __future__ import annotations


class Replay:
    """The kept frames of one session: the last `frames` of all that were sent, `size_bytes` together."""

    __slots__ = ("_chunks", "frames", "size_bytes")

    def __init__(self) -> None:
        self._chunks: list[tuple[int, bytes]] = []
        self.frames = 0
        self.size_bytes = 0

    def add(self, count: int, data: bytes) -> None:
        """Keep `count` whole, unmasked text frames, joined."""
        self._chunks.append((count, data))
        self.frames += count
        self.size_bytes += len(data)

    def trim(self, max_frames: int, max_bytes: int) -> None:
        """Let go of the oldest chunks above the bound; `max_frames` at least stay where the bytes allow it."""
        drop = 0
        frames, size = self.frames, self.size_bytes
        for count, data in self._chunks:
            if frames - count < max_frames and size <= max_bytes:
                break
            frames -= count
            size -= len(data)
            drop += 1
        if drop:
            del self._chunks[:drop]
            self.frames, self.size_bytes = frames, size

    def acknowledge(self, unacknowledged: int) -> None:
        """Let go of chunks that the other side has wholly; it still lacks the last `unacknowledged` frames."""
        drop = 0
        for count, data in self._chunks:
            if self.frames - count < unacknowledged:
                break
            self.frames -= count
            self.size_bytes -= len(data)
            drop += 1
        if drop:
            del self._chunks[:drop]

    def last(self, wanted: int) -> bytes:
        """Return the last `wanted` frames, joined. Never more than are here: ask `frames` first."""
        skip = self.frames - wanted
        parts: list[bytes] = []
        for count, data in self._chunks:
            if skip >= count:
                skip -= count
                continue
            parts.append(data[offset_of(data, skip) :] if skip else data)
            skip = 0
        return b"".join(parts)

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.frames = 0
        self.size_bytes = 0


def offset_of(data: bytes, frames: int) -> int:
    """Return where the frame number `frames` (from 0) begins in joined, unmasked frames."""
    at = 0
    for _ in range(frames):
        length = data[at + 1]
        if length < 126:
            at += 2 + length
        elif length == 126:
            at += 4 + int.from_bytes(data[at + 2 : at + 4], "big")
        else:
            at += 10 + int.from_bytes(data[at + 2 : at + 10], "big")
    return at
