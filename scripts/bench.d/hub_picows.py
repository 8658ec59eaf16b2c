"""Yardstick: a hub on picows (a frame codec and asyncio transport in Cython) and uvloop."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import picows
import uvloop
from hub_core import Core, Peer, arguments
from picows import WSFrame, WSListener, WSMsgType, WSTransport

if TYPE_CHECKING:
    from picows import WSUpgradeRequest

TEXT = WSMsgType.TEXT
CLOSE = WSMsgType.CLOSE
PING = WSMsgType.PING


def send(peer: Peer, text: bytes) -> None:
    peer.link.send(TEXT, text)


def broadcast(peers: set[Peer], text: bytes) -> None:
    for peer in peers:
        peer.link.send(TEXT, text)


class Listener(WSListener):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core

    def on_ws_connected(self, transport: WSTransport) -> None:
        address = transport.underlying_transport.get_extra_info("peername")[0]
        self.peer = Peer(transport, address, transport.disconnect)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == TEXT:
            self.core.on_text(self.peer, frame.get_payload_as_utf8_text())
        elif frame.msg_type == CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type == PING:
            transport.send_pong(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.core.on_closed(self.peer)


async def main() -> None:
    tokens, ready = arguments()
    core = Core(tokens, send, broadcast)

    def listener(_request: WSUpgradeRequest) -> WSListener:
        return Listener(core)

    server = await picows.ws_create_server(listener, "127.0.0.1", 0, backlog=4096)
    os.write(ready, b"%d\n" % server.sockets[0].getsockname()[1])
    await asyncio.get_running_loop().create_future()


uvloop.run(main())
