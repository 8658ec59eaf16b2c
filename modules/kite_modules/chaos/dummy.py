"""A module of a scratch instance: answers, publishes now and then, does nothing else. `python -P -m …dummy`."""

from __future__ import annotations

import os

import trio

from kite_modules.sdk import Kite, Module

module = Module(os.environ.get("KITE_MODULE_ID", "dummy"))


@module.method
async def echo(text: str = "") -> str:
    """Give back what was said."""
    return text


@module.task
async def murmur(kite: Kite) -> None:
    """Say now and then that it is there."""
    while True:
        kite.publish_nowait("chaos.murmur", {"from": kite.module_id})
        await trio.sleep(0.5)


if __name__ == "__main__":
    module.run()
