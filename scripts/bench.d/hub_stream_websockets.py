"""Yardstick of streams: the users' hub (numbers, ring) on `websockets` and uvloop, its fan-out by `broadcast`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve


async def main() -> None:
    subscribers: set[ServerConnection] = set()
    ring: deque[str] = deque(maxlen=1000)
    seq = 0

    async def handle(link: ServerConnection) -> None:
        nonlocal seq
        assert link.request is not None
        if link.request.path.startswith("/sub"):
            subscribers.add(link)
            try:
                await link.wait_closed()
            finally:
                subscribers.discard(link)
            return
        async for text in link:
            seq += 1
            frame = json.dumps({"seq": seq, "data": text})
            ring.append(frame)
            broadcast(subscribers, frame)

    async with serve(
        handle, "127.0.0.1", 0, compression=None, max_size=1 << 20, ping_interval=1, ping_timeout=2
    ) as hub:
        os.write(int(sys.argv[2]), b"%d\n" % next(iter(hub.sockets)).getsockname()[1])
        await asyncio.get_running_loop().create_future()


uvloop.run(main())
