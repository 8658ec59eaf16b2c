"""Virtual time for every case: the clock jumps when nobody has anything to do, sockets included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_S = 0.02  # real seconds without news on any socket before time may jump
HERE = Path(__file__).parent


def run_in_virtual_time(main: Callable[..., Any], *, clock: Any = None, instruments: Any = ()) -> Any:
    """Run a test as trio.run does, on a clock that also jumps; a test's own clock fixture wins."""
    return trio.run(main, clock=clock or MockClock(rate=1.0, autojump_threshold=IDLE_S), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
