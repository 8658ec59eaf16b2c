"""A whole module without the SDK: nothing but the wire, by the `websockets` library on asyncio.

It offers `add {a, b}`. The same steps in any language with a WebSocket library: connect, auth, subscribe, register,
`module.ready`; answer calls and pings; ack a shutdown and close with 1000; after a cut come back by the table.
"""

import asyncio
import json
import os
import random
import secrets
import time
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

NEVER = {1000, 1002, 1003, 1007, 1008, 1009, 1010, 4001, 4003, 4004, 4010}
INSTANCE = secrets.token_hex(8)  # the same for the life of this process: a cut is told from a restart


def token() -> str:
    if "KITE_TOKEN_FD" in os.environ:
        with open(int(os.environ["KITE_TOKEN_FD"])) as file:
            return file.read().strip()
    with open(os.environ["KITE_TOKEN_FILE"]) as file:
        return file.read().strip()


def answer(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params", {})
    if message["method"].endswith("health"):
        return {"result": {"status": "ok"}}
    if not all(isinstance(params.get(name), int | float) for name in ("a", "b")):
        return {"error": {"code": -32602, "message": "a and b must be numbers"}}
    return {"result": params["a"] + params["b"]}


async def live(ws: ClientConnection, secret: str) -> bool:
    """Serve one connection; returns True when told to end for good."""

    async def send(**frame: Any) -> None:
        await ws.send(json.dumps({"jsonrpc": "2.0", **frame}))

    await send(id=1, method="auth", params={"token": secret, "instance": INSTANCE, "protocol": 2})
    me = json.loads(await ws.recv())["result"]["module_id"]
    await send(id=2, method="event.subscribe", params={"events": []})
    await send(id=3, method="registry.register", params={"methods": ["add", "health"]})
    await send(method="event.publish", params={"event": "module.ready", "data": {"module_id": me}})
    async for text in ws:
        message = json.loads(text)
        if "method" in message and "id" in message:
            await send(id=message["id"], **answer(message))
        elif message.get("method") == "event":
            event, data = message["params"]["event"], message["params"]["data"]
            if event == "system.ping":
                pong = {"ping_time": data["ping_time"], "pong_time": time.time()}
                await send(method="event.publish", params={"event": "system.pong", "data": pong})
            elif event == "module.shutdown":
                ack = {"event": "module.shutdown_ack", "data": {"module_id": me}}
                await send(method="event.publish", params=ack)
                await ws.close(1000)
                return bool(data["reason"] != "kernel_stop")
    return False


async def main() -> int:
    secret, attempt = token(), 0
    while True:
        code = None
        try:
            async with connect(os.environ["KITE_URL"], open_timeout=5) as ws:
                attempt = 0
                if await live(ws, secret):
                    return 0
                code = ws.close_code
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else None
        except (OSError, TimeoutError, KeyError, ValueError):
            pass
        if code in NEVER:
            print(f"closed for good: {code}", flush=True)
            return 1
        attempt += 1
        base = min(0.5 * 2 ** min(attempt - 1, 10), 10)
        await asyncio.sleep(10 if code == 4020 else min(base + base * 0.2 * random.random(), 10))


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
