"""For authors' tests: an in-memory kernel on the virtual clock, with faults at hand.

    from kite_modules.sdk.testing import virtual

    @virtual
    async def test_it_greets(hub):
        async with hub.running(module, name="greeter"), hub.client() as kite:
            assert await kite.call("greeter.greet", {"name": "you"}) == "hello you"

`virtual` needs plain pytest alone. With pytest-trio there is the fixture `hub` too, to import from here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

from kite_modules.sdk.testing.hub import Hub


def virtual(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on the virtual clock, with a `Hub` as its `hub` parameter; other parameters stay fixtures."""

    @functools.wraps(function)
    def run(**fixtures: Any) -> None:
        async def scenario() -> None:
            async with Hub() as hub:
                await function(hub=hub, **fixtures)

        trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))

    return _without_hub(run, function)


def _without_hub(run: Callable[..., None], function: Callable[..., Any]) -> Callable[..., None]:
    """Show pytest the parameters that are its fixtures."""
    signature = inspect.signature(function)
    if "hub" not in signature.parameters:
        raise TypeError(f"{function.__name__} must have a parameter named hub")
    kept = [parameter for name, parameter in signature.parameters.items() if name != "hub"]
    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would look through it
    run.__signature__ = signature.replace(parameters=kept, return_annotation=None)  # type: ignore[attr-defined]
    return run


def __getattr__(name: str) -> Any:
    if name != "hub":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kite_modules.sdk.testing.fixtures import hub

    return hub


__all__ = ["Hub", "virtual"]
