"""A pm2 ecosystem (its JSON, whatever form the file had) as programs. Source: pm2's application declaration."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from kite_launcher.core.adopted import Adopted, NotAdopted, Program, literal

_INTERPRETERS: Final = {
    ".js": "node",
    ".cjs": "node",
    ".mjs": "node",
    ".ts": "bun",
    ".py": "python3",
    ".rb": "ruby",
    ".sh": "bash",
    ".pl": "perl",
    ".php": "php",
}
# Kite keeps all output by itself; these only said where and how pm2 did.
_SILENT: Final = frozenset(
    {
        "name",
        "script",
        "args",
        "cwd",
        "interpreter",
        "interpreter_args",
        "node_args",
        "exec_interpreter",
        "instances",
        "exec_mode",
        "env",
        "autorestart",
        "max_restarts",
        "min_uptime",
        "restart_delay",
        "exp_backoff_restart_delay",
        "max_memory_restart",
        "kill_timeout",
        "listen_timeout",
        "wait_ready",
        "merge_logs",
        "log_date_format",
        "error_file",
        "out_file",
        "log_file",
        "pid_file",
        "output",
        "error",
        "log",
        "time",
        "combine_logs",
        "namespace",
        "uid",
        "user",
        "source_map_support",
        "vizion",
        "force",
        "pmx",
    }
)
_NOT_ADOPTED: Final = (
    "cron_restart",
    "watch",
    "ignore_watch",
    "instance_var",
    "filter_env",
    "post_update",
    "shutdown_with_message",
)
_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_pm2(document: Any, *, cpus: int) -> Adopted | NotAdopted:
    """Read an ecosystem: `{apps: […]}`, a list of apps, or one app. `cpus` is what `instances: "max"` means here."""
    apps = document.get("apps", [document]) if isinstance(document, dict) else document
    apps = [apps] if isinstance(apps, dict) else apps
    if not isinstance(apps, list) or not apps or not all(isinstance(app, dict) for app in apps):
        return NotAdopted("no `apps` in it")
    adopted = Adopted()
    for app in apps:
        program = _program(app, cpus, adopted)
        if isinstance(program, NotAdopted):
            return program
        adopted.programs.append(program)
    return adopted


def _program(app: Mapping[str, Any], cpus: int, adopted: Adopted) -> Program | NotAdopted:
    script = app.get("script") or app.get("cmd")
    if not isinstance(script, str) or not script.strip():
        return NotAdopted(f"app {app.get('name', '?')!r} has no script")
    stem = posixpath.splitext(posixpath.basename(script))[0]
    name = str(app.get("name") or stem)
    program = Program(name, _command(app, script.strip()))
    keys: dict[str, Any] = program.keys
    if app.get("cwd"):
        keys["cwd"] = literal(str(app["cwd"]))
    if isinstance(app.get("env"), dict) and app["env"]:
        keys["env"] = {str(key): literal(_text(value)) for key, value in app["env"].items()}
    keys["restart"] = "never" if app.get("autorestart") is False else "always"
    keys["max_restarts"] = app["max_restarts"] if type(app.get("max_restarts")) is int else 16
    keys["stop_signal"] = "INT"
    keys["stop_timeout"] = _duration(app.get("kill_timeout"), "1600ms")
    delay = app.get("exp_backoff_restart_delay") or app.get("restart_delay")
    if delay:
        keys["backoff"] = _duration(delay, "100ms")
    memory = _memory(app.get("max_memory_restart"))
    if memory is not None:
        keys["memory_max"] = memory
    instances = app.get("instances", 1)
    count = (
        cpus if instances in ("max", 0, "0") else int(instances) if re.fullmatch(r"-?\d{1,4}", str(instances)) else 1
    )
    count = max(1, cpus + count) if count < 0 else count
    if count != 1:
        keys["replicas"] = count
    if app.get("user") or app.get("uid"):
        keys["user"] = literal(str(app.get("user") or app.get("uid")))
    _note(name, app, adopted)
    return program


def _command(app: Mapping[str, Any], script: str) -> list[str]:
    interpreter = app.get("interpreter") or app.get("exec_interpreter")
    if not interpreter:
        interpreter = _INTERPRETERS.get(posixpath.splitext(script)[1], "none")
    args = _words(app.get("args"))
    if interpreter == "none":
        return [*(shlex.split(script) if " " in script else [script]), *args]
    flags = _words(app.get("interpreter_args") or app.get("node_args"))
    return [str(interpreter), *flags, script, *args]


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [_text(word) for word in value]
    return shlex.split(value) if isinstance(value, str) else []


def _text(value: Any) -> str:
    return "true" if value is True else "false" if value is False else "" if value is None else str(value)


def _duration(value: Any, default: str) -> str:
    """Return pm2's milliseconds, or its "3s", as a duration."""
    if type(value) is int and value >= 0:
        return f"{value}ms"
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(ms|s|m|h)", value):
        return value
    return f"{value}ms" if isinstance(value, str) and value.isdigit() else default


def _memory(value: Any) -> str | None:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)B?", str(value).strip().upper()) if value else None
    if match is None:
        return None
    size = max(1 << 20, int(match.group(1)) * _SIZES[match.group(2)])
    return f"{size >> 20}MiB" if size % (1 << 20) == 0 else f"{size}B"


def _note(name: str, app: Mapping[str, Any], adopted: Adopted) -> None:
    for key, value in app.items():
        if key in _NOT_ADOPTED and value:
            adopted.notes.append(f"{name}: {key}")
        elif key.startswith("env_"):
            adopted.notes.append(f"{name}: {key} (choose it by an env_file)")
        elif key not in _SILENT and key not in _NOT_ADOPTED:
            adopted.notes.append(f"{name}: {key}")
    if app.get("wait_ready"):
        adopted.notes.append(f"{name}: wait_ready (a message over Node's channel); ready after 1 s instead")
    if app.get("exec_mode") in ("cluster", "cluster_mode"):
        adopted.notes.append(f"{name}: cluster mode shares one port; as replicas each needs its own or SO_REUSEPORT")
