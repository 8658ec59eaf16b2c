"""Frames between launcher and log keeper: four bytes of length, then JSON; descriptors travel beside them.

A frame that carries descriptors says their number in its member `fds`; they are taken in order from those that
came with the bytes. Lone surrogates (file names that are no UTF-8) survive as JSON escapes.
"""

import json
from collections import deque
from typing import Any, Final

FRAME_MAX_BYTES: Final = 32 * 1024 * 1024  # an environment of 3 MB and its escapes fit several times
FDS_MAX: Final = 200  # one message carries 253 at most


class BadFrame(ValueError):
    """The other side does not speak this; the connection is of no use any more."""


def encode_frame(data: dict[str, Any], fds: int = 0) -> bytes:
    """Give a frame as bytes. Errors: BadFrame when it is too large."""
    body = json.dumps({**data, "fds": fds} if fds else data, separators=(",", ":")).encode()
    if len(body) > FRAME_MAX_BYTES:
        raise BadFrame(f"a frame of {len(body)} bytes")
    return len(body).to_bytes(4, "big") + body


class FrameReader:
    """Collects bytes and descriptors, gives frames. Descriptors that no frame asked for stay in `spare`."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.spare: deque[int] = deque()

    def feed(self, data: bytes, fds: list[int]) -> list[tuple[dict[str, Any], list[int]]]:
        """Take what arrived, give the frames that are whole now, each with its descriptors. Errors: BadFrame."""
        self._bytes += data
        self.spare.extend(fds)
        frames: list[tuple[dict[str, Any], list[int]]] = []
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "big")
            if size > FRAME_MAX_BYTES:
                raise BadFrame(f"a frame of {size} bytes")
            if len(self._bytes) < 4 + size:
                break
            body = bytes(self._bytes[4 : 4 + size])
            del self._bytes[: 4 + size]
            frames.append(self._frame(body))
        return frames

    def _frame(self, body: bytes) -> tuple[dict[str, Any], list[int]]:
        try:
            frame = json.loads(body)
            count = int(frame.get("fds", 0))
        except (ValueError, AttributeError, TypeError, RecursionError) as problem:
            raise BadFrame("no JSON object") from problem
        if not 0 <= count <= min(FDS_MAX, len(self.spare)):
            raise BadFrame("descriptors are missing")
        return frame, [self.spare.popleft() for _ in range(count)]
