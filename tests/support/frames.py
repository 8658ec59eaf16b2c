"""Client frames built by hand, right or wrong on purpose: no library would send the wrong ones."""

from __future__ import annotations


def client_frame(payload: bytes, *, opcode: int = 1, fin: bool = True, mask: bytes = b"\x9e\x01\x5a\xfc") -> bytes:
    """Return one masked frame with the shortest header, whatever the protocol says about its contents."""
    size = len(payload)
    first = bytes(((0x80 if fin else 0) | opcode,))
    if size < 126:
        header = first + bytes((0x80 | size,))
    elif size < 65536:
        header = first + b"\xfe" + size.to_bytes(2, "big")
    else:
        header = first + b"\xff" + size.to_bytes(8, "big")
    key = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
    return header + mask + masked


def client_close(code: int, reason: str) -> bytes:
    """Return a masked close frame with any number as its code."""
    return client_frame(code.to_bytes(2, "big") + reason.encode("utf-8"), opcode=8)
