"""The watchdog's options as a checked value. The launcher writes them; wrong ones are refused by name.

`health` intervals, `debounce_s`, `launcher_grace_s` and `shutdown_s` come already scaled; `within_s` is not scaled at
all; `scale` multiplies what is the watchdog's own: 5 s, 2 s, the 5 s an answer is due in, and its back-offs.
Source: spec 05 §6, 60.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import attrs
import msgspec

HEALTH_S: Final = 15.0  # seconds; spec 60 §1
OPTIONS_BYTES_MAX: Final = 4_194_304  # bytes; ten thousand modules fit many times


class OptionsError(ValueError):
    """The options can't be used; the text names the member. The launcher's fault, never retried."""


@attrs.frozen
class Options:
    """What the watchdog is told. A module that `health` does not name is asked every `health_s` if it declares it."""

    restarts: int = 5
    within_s: float = 600.0
    scale: float = 1.0
    health: Mapping[str, float | None] = attrs.field(factory=dict)  # None = no health RPC
    debounce_s: float = 5.0
    launcher_grace_s: float = 35.0
    shutdown_s: float = 10.0
    log_format: Literal["console", "json"] = "console"

    def interval_of(self, module_id: str) -> float | None:
        """Seconds between two health calls of a module while it is healthy; replicas `NAME@2` go by NAME."""
        for name in (module_id, module_id.partition("@")[0]):
            if name in self.health:
                return self.health[name]
        return HEALTH_S * self.scale

    def knows(self, module_id: str) -> bool:
        """Say whether the launcher runs a module of this name."""
        return module_id in self.health or module_id.partition("@")[0] in self.health


def _number(value: dict[str, Any], name: str, default: float, *, low: float = 0.0) -> float:
    given = value.get(name, default)
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < low:
        raise OptionsError(f"{name} must be a number from {low:g} on")
    return float(given)


def decode_options(raw: bytes) -> Options:
    """Read the options; b"" gives the defaults. Unknown members are left to newer watchdogs. Raises: OptionsError."""
    try:
        value: Any = msgspec.json.decode(raw) if raw.strip() else {}
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise OptionsError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise OptionsError("no object")
    restarts = value.get("restarts", 5)
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise OptionsError("restarts must be an integer from 0 on")
    scale = _number(value, "scale", 1.0, low=0.001)
    given = value.get("health", {})
    if not isinstance(given, dict):
        raise OptionsError("health must be an object")
    health: dict[str, float | None] = {}
    for name, interval in given.items():
        if interval is True or interval is None:
            health[name] = HEALTH_S * scale
        elif interval is False:
            health[name] = None
        else:
            health[name] = _number({name: interval}, name, 0.0, low=0.001)
    style = value.get("log_format", "console")
    if style not in ("console", "json"):
        raise OptionsError("log_format must be console or json")
    return Options(
        restarts=restarts,
        within_s=_number(value, "within_s", 600.0),
        scale=scale,
        health=health,
        debounce_s=_number(value, "debounce_s", 5.0 * scale),
        launcher_grace_s=_number(value, "launcher_grace_s", 35.0 * scale),
        shutdown_s=_number(value, "shutdown_s", 10.0 * scale),
        log_format=cast(Literal["console", "json"], style),
    )
