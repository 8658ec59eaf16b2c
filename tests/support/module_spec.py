"""A ModuleSpec with every default filled in, for tests of what reads one."""

from __future__ import annotations

from typing import Any

from kite_launcher.core.spec import ModuleSpec, Place


def module_spec(name: str, **keys: Any) -> ModuleSpec:
    """Return the spec of `command = ["x"]` under this name, with these fields changed."""
    values: dict[str, Any] = {
        "command": ("x",),
        "package": None,
        "program": None,
        "after": (),
        "requires": (),
        "restart": "always",
        "max_restarts": 5,
        "within_s": 60.0,
        "backoff_s": 0.5,
        "backoff_max_s": 30.0,
        "retry_slowly_s": None,
        "stop_signal": "TERM",
        "stop_timeout_s": 10.0,
        "ready": None,
        "ready_timeout_s": 30.0,
        "health_s": 15.0,
        "memory_max_bytes": None,
        "replicas": 1,
        "essential": False,
        "env": {},
        "secret_env": frozenset(),
        "inherit_env": True,
        "cwd": "/",
        "user": None,
        "umask": None,
        "nice": 0,
        "limits": {},
        "enabled": True,
        "token": "fd",
        "token_asked": False,
        "stdin": "null",
        "group": None,
        "notify_watchdog_s": None,
        "options": None,
        "stock": False,
        "place": Place(1, 1),
        **keys,
    }
    import attrs

    known = {field.name for field in attrs.fields(ModuleSpec)}
    return ModuleSpec(name=name, **{key: value for key, value in values.items() if key in known})
