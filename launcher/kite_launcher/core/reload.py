"""What a changed kite.toml means for what runs: a plan that names each change and its keys, nothing done yet.

Two specs are compared, not two texts: comments, the order of keys and two spellings of one duration are no change.
Keys that only the launcher reads are applied in place; what a process was started with needs a new process.
Source: spec 05 §3 (`reload --dry-run --json`); spec 50 §4; cases S-61 … S-65.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from kite_launcher._contract import CONFIG
from kite_launcher.core.spec import InstanceSpec, ModuleSpec
from kite_launcher.core.units import parse_duration

Action = Literal["start", "stop", "restart", "keep", "apply"]

# ModuleSpec field -> its key in kite.toml where the two differ.
_KEYS: Final[Mapping[str, str]] = {
    "package": "module",
    "script": "module",
    "program": "command",
    "within_s": "within",
    "backoff_s": "backoff",
    "backoff_max_s": "backoff_max",
    "retry_slowly_s": "retry_slowly",
    "stop_timeout_s": "stop_timeout",
    "ready_timeout_s": "ready_timeout",
    "health_s": "health",
    "memory_max_bytes": "memory_max",
    "notify_watchdog_s": "notify_watchdog",
    "token_asked": "token",
    "total_bytes": "total",
    "max_age_s": "max_age",
    "limit_within_s": "limit",
}
# Read by the launcher alone, at the moment they matter: the running process does not know them.
_LIVE: Final = frozenset(
    {
        "after",
        "requires",
        "restart",
        "max_restarts",
        "within",
        "backoff",
        "backoff_max",
        "retry_slowly",
        "stop_signal",
        "stop_timeout",
        "ready_timeout",
        "health",
        "memory_max",
        "essential",
        "secret_env",
        "group",
    }
)
# Not compared: `enabled` and `replicas` become starts and stops, a name is the same by being compared.
_OUTSIDE: Final = frozenset({"name", "enabled", "replicas", "place", "stock"})
# A child was told the kernel's address; after one of these it would knock at the wrong door.
_ADDRESS: Final = frozenset({"kernel.host", "kernel.port", "kernel.tls"})
# The watchdog's clocks; it got them at its start.
_WATCHDOG_TIMING: Final = frozenset(
    {"timing.scale", "timing.debounce", "timing.launcher_grace", "timing.shutdown", "timing.call"}
)


@attrs.frozen
class Change:
    """One row of a plan: a module's process (NAME or NAME@n), `kernel`, `watchdog` or `launcher`."""

    name: str
    action: Action
    keys: tuple[str, ...] = ()


@attrs.frozen
class Plan:
    """All rows: `kernel`, `watchdog`, `launcher` only when they change, then every module in the new file's order."""

    changes: tuple[Change, ...]

    @property
    def empty(self) -> bool:
        """True when everything is kept."""
        return all(change.action == "keep" for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `reload --dry-run --json`."""
        rows = [{"name": row.name, "action": row.action, "keys": list(row.keys)} for row in self.changes]
        return {"schema": 1, "changes": rows}


def plan_reload(old: InstanceSpec, new: InstanceSpec) -> Plan:
    """Return what to do so that what runs under `old` becomes what `new` asks for."""
    kernel_keys, kernel_restart = _kernel(old, new)
    address = tuple(key for key in kernel_keys if key in _ADDRESS)
    rows: list[Change] = []
    if kernel_keys:
        rows.append(Change("kernel", "restart" if kernel_restart else "apply", kernel_keys))
    rows.extend(_watchdog(old, new, kernel_keys, address))
    if (launcher_keys := _launcher(old, new)) != ():
        rows.append(Change("launcher", "apply", launcher_keys))
    for name, module in new.modules.items():
        rows.extend(_module(old.modules.get(name), module, old, new, address))
    for name, module in old.modules.items():
        if name not in new.modules and module.enabled:
            rows.extend(Change(instance, "stop") for instance in module.instances())
    return Plan(tuple(rows))


def _kernel(old: InstanceSpec, new: InstanceSpec) -> tuple[tuple[str, ...], bool]:
    """Return the changed keys of the kernel's own sections and whether one of them needs a new kernel."""
    keys: list[str] = []
    restart = False
    for section in _ordered(new.kernel_sections, old.kernel_sections):
        before, after = old.kernel_sections.get(section, {}), new.kernel_sections.get(section, {})
        rows = CONFIG.get(section) or CONFIG.get(f"{section.partition('.')[0]}.*", {})
        if (section in old.kernel_sections) != (section in new.kernel_sections):
            keys.append(section)
            restart = restart or not all(row.get("live", False) for row in rows.values())
            continue
        for key in (key for key in after if before.get(key) != after[key]):
            keys.append(f"{section}.{key}")
            restart = restart or not rows[key].get("live", False)
    if old.logging.format != new.logging.format:
        keys.append("logging.format")
        restart = True
    return tuple(keys), restart


def _watchdog(
    old: InstanceSpec, new: InstanceSpec, kernel_keys: Iterable[str], address: tuple[str, ...]
) -> Iterable[Change]:
    if old.watchdog.enabled != new.watchdog.enabled:
        yield Change("watchdog", "start" if new.watchdog.enabled else "stop", ("watchdog.enabled",))
        return
    if not new.watchdog.enabled:
        return
    keys = [f"watchdog.{_key(name)}" for name in _different(old.watchdog, new.watchdog)]
    keys += [key for key in kernel_keys if key in _WATCHDOG_TIMING]
    names = _ordered(new.modules, old.modules)
    keys += [f"module.{name}.health" for name in names if _asks(old, name) != _asks(new, name)]
    keys += address
    if keys:
        yield Change("watchdog", "restart", tuple(keys))


def _asks(spec: InstanceSpec, name: str) -> float | str | None:
    """Return what the watchdog must be told of a module's health; the default needs no telling."""
    module = spec.modules.get(name)
    default_s = parse_duration(CONFIG["module.*"]["health"]["default"])
    if module is None or not module.enabled:
        return "default"
    if module.health_s is None:
        return None
    own_s = module.health_s / spec.timing.scale
    return "default" if default_s is not None and math.isclose(own_s, default_s) else own_s


def _launcher(old: InstanceSpec, new: InstanceSpec) -> tuple[str, ...]:
    keys = ["instance.name"] if old.name != new.name else []
    keys += [f"logging.{_key(name)}" for name in _different(old.logging, new.logging) if name != "format"]
    keys += [f"notify.{_key(name)}" for name in _different(old.notify, new.notify)]
    groups = _ordered(new.groups, old.groups)
    keys += [f"group.{name}" for name in groups if old.groups.get(name) != new.groups.get(name)]
    return tuple(dict.fromkeys(keys))


def _module(
    old: ModuleSpec | None, new: ModuleSpec, old_spec: InstanceSpec, new_spec: InstanceSpec, address: tuple[str, ...]
) -> Iterable[Change]:
    before = old.instances() if old is not None and old.enabled else ()
    after = new.instances() if new.enabled else ()
    keys = _module_keys(old, new, old_spec.timing.scale, new_spec.timing.scale) if old is not None else ()
    action: Action = "keep"
    if keys:
        action = "apply" if all(key in _LIVE for key in keys) else "restart"
    if address and new.speaks_kite:
        keys, action = (*keys, *address), "restart"
    count: tuple[str, ...] = ("replicas",) if before and after else ()
    if old is not None and old.enabled != new.enabled:
        count = ("enabled",)
    for name in after:
        if name in before:
            yield Change(name, action, keys)
        else:
            yield Change(name, "start", count)
    for name in before:
        if name not in after:
            yield Change(name, "stop", count)


def _module_keys(old: ModuleSpec, new: ModuleSpec, old_scale: float, new_scale: float) -> tuple[str, ...]:
    keys: list[str] = []
    for field in attrs.fields(ModuleSpec):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name in _OUTSIDE or before == after:
            continue
        key = _key(field.name)
        if field.name == "health_s" and None not in (before, after):
            if math.isclose(before / old_scale, after / new_scale):
                continue
        elif field.name in ("env", "limits", "options") and before is not None and after is not None:
            names = _ordered(after, before)
            keys += [f"{key}.{name}" for name in names if before.get(name, _ABSENT) != after.get(name, _ABSENT)]
            continue
        keys.append(key)
    return tuple(dict.fromkeys(keys))


_ABSENT: Final = object()


def _key(field: str) -> str:
    return _KEYS.get(field, field)


def _different(old: Any, new: Any) -> list[str]:
    fields = attrs.fields(type(new))
    return [field.name for field in fields if getattr(old, field.name) != getattr(new, field.name)]


def _ordered(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*first, *second)))
