"""The pytest fixture `hub`, for projects that use pytest-trio: an in-memory kernel on the virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_trio  # type: ignore[import-untyped]

from kite_modules.sdk.testing.hub import Hub


@pytest_trio.trio_fixture  # type: ignore[untyped-decorator]
async def hub(autojump_clock: Any) -> AsyncIterator[Hub]:
    """An in-memory kernel that lives for one test."""
    async with Hub() as kernel:
        yield kernel
