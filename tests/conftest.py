"""Order of the suite: what waits for real processes begins first, so that nothing long is left for the end."""

from __future__ import annotations

import pytest

FIRST = ("tests/system/", "tests/modules/test_chat", "tests/modules/test_relay", "tests/modules/test_console")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in FIRST))  # stable: files stay together
