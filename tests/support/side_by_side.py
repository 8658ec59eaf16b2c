"""Scenarios that mostly wait for real processes, run at the same time: each test asks for the outcome of its own.

    @pytest.fixture(scope="module")
    def rows(request, tmp_path_factory):
        yield from side_by_side(request, tmp_path_factory, workers=3)

    @scenario
    def test_something(folder: Path) -> None: ...

A scenario is written like a test, with a folder of its own; coroutine functions run in a trio loop of their own.
Only what was collected is started.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

Scenario = Callable[[Path], Any]
Rows = dict[str, "Future[None]"]


def scenario(function: Scenario) -> Callable[[Rows], None]:
    """Make a test that waits for the scenario's outcome in the fixture `rows`."""

    def test(rows: Rows) -> None:
        rows[function.__name__].result()

    test.__name__ = test.__qualname__ = function.__name__
    test.__doc__, test.__module__ = function.__doc__, function.__module__
    test.scenario = function  # type: ignore[attr-defined]
    return test


def side_by_side(request: pytest.FixtureRequest, folders: pytest.TempPathFactory, *, workers: int) -> Iterator[Rows]:
    """Start the scenarios of the asking module that were collected; give each one's future by its name."""
    wanted: dict[str, Scenario] = {}
    for item in request.session.items:
        function = getattr(getattr(item, "obj", None), "scenario", None)
        if function is not None and getattr(item, "module", None) is request.module:
            wanted[function.__name__] = function
    with ThreadPoolExecutor(workers) as threads:
        yield {name: threads.submit(_run, one, folders.mktemp(name[:40])) for name, one in wanted.items()}


def _run(function: Scenario, folder: Path) -> None:
    if inspect.iscoroutinefunction(function):
        trio.run(function, folder)
    else:
        function(folder)
