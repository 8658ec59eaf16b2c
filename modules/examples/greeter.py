"""Answers calls, calls the other module, and cheers at every tenth tick."""

from kite_modules.sdk import Event, Module

module = Module("greeter")


@module.method
async def greet(name: str = "world") -> str:
    """Greet somebody, and say how far the ticker is."""
    ticks = await module.kite.call("ticker.count")
    return f"Hello {name}! The ticker stands at {ticks}."


@module.on("ticker.tick")
async def cheer(event: Event) -> None:
    if event.data["n"] % 10 == 0:
        await module.kite.publish("greeter.cheer", {"ticks": event.data["n"]})


if __name__ == "__main__":
    module.run()
