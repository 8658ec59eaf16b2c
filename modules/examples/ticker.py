"""Publishes a live stream and an event each second, and says how far it is."""

import trio

from kite_modules.sdk import Kite, Module

module = Module("ticker")
ticks = 0


@module.method
async def count() -> int:
    """Say how many ticks there were."""
    return ticks


@module.task
async def tick(kite: Kite) -> None:
    global ticks
    while True:
        ticks += 1
        await kite.stream("ticks").publish(f"tick {ticks}")
        await kite.publish("ticker.tick", {"n": ticks})
        await trio.sleep(1)


if __name__ == "__main__":
    module.run()
