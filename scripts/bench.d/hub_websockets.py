"""Yardstick: a hub on `websockets` and uvloop, written as its documentation shows."""

from __future__ import annotations

import asyncio
import os

import uvloop
from hub_core import Core, Peer, arguments
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed


async def main() -> None:
    tokens, ready = arguments()
    waiting: list[tuple[Peer, bytes]] = []
    core = Core(
        tokens,
        lambda peer, text: waiting.append((peer, text)),
        lambda peers, text: broadcast([peer.link for peer in peers], text, text=True),
    )

    async def handle(link: ServerConnection) -> None:
        peer = Peer(link, link.remote_address[0], link.transport.abort)
        try:
            async for text in link:
                core.on_text(peer, text)
                while waiting:
                    target, answer = waiting.pop(0)
                    await target.link.send(answer, text=True)
        except ConnectionClosed:
            pass
        finally:
            core.on_closed(peer)

    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=1 << 20, backlog=4096) as server:
        os.write(ready, b"%d\n" % next(iter(server.sockets)).getsockname()[1])
        await asyncio.get_running_loop().create_future()


uvloop.run(main())
