"""For authors of modules: `from kite_modules.sdk import Module`.

Names are loaded at their first use, so that importing one part costs only that part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kite_modules.sdk.call import Call as Call
    from kite_modules.sdk.client import Kite as Kite
    from kite_modules.sdk.errors import CallError as CallError
    from kite_modules.sdk.errors import NotConnected as NotConnected
    from kite_modules.sdk.errors import Refused as Refused
    from kite_modules.sdk.errors import SettingsError as SettingsError
    from kite_modules.sdk.events import Event as Event
    from kite_modules.sdk.module import Module as Module
    from kite_modules.sdk.settings import Settings as Settings

_PLACES = {
    "Call": "call",
    "CallError": "errors",
    "Event": "events",
    "Kite": "client",
    "Module": "module",
    "NotConnected": "errors",
    "Refused": "errors",
    "Settings": "settings",
    "SettingsError": "errors",
}
__all__ = ["Call", "CallError", "Event", "Kite", "Module", "NotConnected", "Refused", "Settings", "SettingsError"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
