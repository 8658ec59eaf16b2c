"""Yardstick of the stream plane: publish and subscribe on `websockets` and uvloop, numbered, with a ring, no disk."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque

import uvloop
from hub_core import arguments
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

RING = 1000


async def main() -> None:
    tokens, ready = arguments()
    good = {f"Bearer {token}" for token in tokens}
    subscribers: set[ServerConnection] = set()
    ring: deque[tuple[int, str]] = deque(maxlen=RING)
    seq = 0

    async def handle(link: ServerConnection) -> None:
        nonlocal seq
        request = link.request
        if request is None or request.headers.get("Authorization") not in good:
            await link.close(4001)
            return
        publishes = request.path.startswith("/pub")
        if not publishes:
            subscribers.add(link)
        try:
            async for text in link:
                if publishes:
                    seq += 1
                    frame = json.dumps({"seq": seq, "data": text}, separators=(",", ":"))
                    ring.append((seq, frame))
                    broadcast(subscribers, frame)
        except ConnectionClosed:
            pass
        finally:
            subscribers.discard(link)

    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=1 << 20, backlog=4096) as server:
        os.write(ready, b"%d\n" % next(iter(server.sockets)).getsockname()[1])
        await asyncio.get_running_loop().create_future()


uvloop.run(main())
