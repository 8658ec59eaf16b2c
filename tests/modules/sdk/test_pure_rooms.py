"""The deciding rooms of the SDK import no clock, no chance, no loop, no I/O. Source: the house's rule for cores."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SDK = Path(__file__).resolve().parents[3] / "modules" / "kite_modules" / "sdk"
PURE = ("reconnect", "session", "resume", "exchange", "pending", "frames", "errors", "spread", "schema")
FORBIDDEN = {
    "trio",
    "trio_websocket",
    "time",
    "random",
    "secrets",
    "socket",
    "os",
    "subprocess",
    "threading",
    "asyncio",
}


@pytest.mark.parametrize("room", PURE)
def test_a_deciding_room_is_pure(room: str) -> None:
    tree = ast.parse((SDK / f"{room}.py").read_text("utf-8"))
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported = {name.partition(".")[0] for name in plain}
    imported |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & FORBIDDEN
