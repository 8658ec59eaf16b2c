"""The module plane: one reader task a wire, which routes all that has arrived and then settles once.

Source: spec 00 §8a, 10-wire §2, 20-kernel §4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from kite_kernel.core.websocket import Closed, Codec, Fault, Ping, Pong
from kite_kernel.edge.listener import accept_upgrade
from kite_kernel.edge.wire import Wire

if TYPE_CHECKING:
    from kite_kernel.core.http import Head
    from kite_kernel.core.peer import Link
    from kite_kernel.edge.hand import Hand
    from kite_kernel.edge.port import Port

_FLOOD: Final = 64  # refused for overload in one read batch
_FLOOD_REST_S: Final = 0.01
_HEADER: Final = 6  # bytes of a masked header of a short frame: two and the mask


class ModulePlane:
    """Serves `/` and `/ws`."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    async def serve(self, port: Port, head: Head, addr: str, leftover: bytes) -> None:
        """Serve one wire from its 101 to its end. Cancel: safe, the socket is closed by the caller."""
        hand = self._hand
        hub = hand.hub
        link = hub.on_open(addr, None, now=trio.current_time())
        wire = Wire(port, hand.nursery, link, hand.on_drained)
        link.wire = wire
        link.urgent = accept_upgrade(head)
        wire.flush()
        code: int | None = None
        clean = False
        try:
            code, clean = await self._read(wire, link, leftover)
        finally:
            hub.on_cut(
                link, code=code, clean=clean, why="closed by peer" if clean else "wire cut", now=trio.current_time()
            )
            hand.settle()
            if not wire.closing:
                wire.end()
        while wire.closing and not wire.ended and await wire.receive():
            pass  # the farewell bounds this: what the peer still sends is read, so that it can read our close
        wire.end()

    async def _read(self, wire: Wire, link: Link, leftover: bytes) -> tuple[int | None, bool]:
        """Read to the end. Returns: the peer's close code, and whether it said goodbye."""
        hand = self._hand
        hub = hand.hub
        codec = Codec(max_message_bytes=hub.settings.pre_auth_frame_bytes)
        data = leftover or await wire.receive()
        while data and link.peer is None and not codec.finished:
            now = trio.current_time()
            for piece in one_frame_at_a_time(data, codec):
                ended = self._feed(wire, link, codec, piece, now)
                if ended is not None:
                    return ended
            hand.settle()
            data = await wire.receive()
        while data:
            if not codec.finished and not wire.closing:
                ended = self._feed(wire, link, codec, data, trio.current_time())
                if ended is not None:
                    return ended
                hand.settle_soon(len(data))
                await self._slow_down(link)
            data = await wire.receive()
        return None, False

    @staticmethod
    async def _slow_down(link: Link) -> None:
        """Leave a flooder's bytes in its own socket for a moment; its answers wait no longer than that either."""
        peer = link.peer
        if peer is not None and peer.overloads:
            if peer.overloads >= _FLOOD:
                await trio.sleep(_FLOOD_REST_S)
            peer.overloads = 0

    def _feed(self, wire: Wire, link: Link, codec: Codec, data: bytes, now: float) -> tuple[int | None, bool] | None:
        """Give what arrived to the hub. Returns: how the peer ended, if it did."""
        hub = self._hand.hub
        on_text = hub.on_text
        for event in codec.feed(data):
            if event.__class__ is bytes:
                on_text(link, event, now=now)
            elif isinstance(event, Ping):
                wire.pong(event.payload)
            elif isinstance(event, Pong):
                continue
            elif isinstance(event, Closed):
                wire.close(event.code)
                return event.code, True
            elif isinstance(event, Fault):
                hub.on_fault(link, event.code, event.reason, now=now)
        peer = link.peer
        if peer is not None:
            peer.bytes_in += len(data)
            codec.max_message_bytes = hub.settings.max_message_bytes
        if link.urgent:
            wire.flush()
        return None


def one_frame_at_a_time(data: bytes, codec: Codec) -> list[bytes]:
    """Cut what arrived before authentication so that the first frame is judged alone: after it other limits hold."""
    if not codec.held_bytes and len(data) >= _HEADER and data[0] == 0x81 and 0x80 <= data[1] <= 0xFE:
        length = data[1] & 0x7F
        end = _HEADER + length
        if length == 126 and len(data) >= 4:
            end = _HEADER + 2 + (data[2] << 8 | data[3])
        return [data[:end], data[end:]] if end < len(data) else [data]
    return [data[at : at + 1] for at in range(len(data))] if len(data) <= 8192 else [data]
