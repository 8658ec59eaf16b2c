"""A process-compose file as programs. Source: process-compose's schema (processes, probes, availability)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kite_launcher.core.adopted import Adopted, NotAdopted, Program, command_of, literal

_RESTART: Final = {
    "always": "always",
    "on_failure": "on-failure",
    "exit_on_failure": "on-failure",
    "no": "never",
    False: "never",  # YAML reads a bare `no` as false
}
_SIGNALS: Final = {1: "HUP", 2: "INT", 3: "QUIT", 9: "KILL", 10: "USR1", 12: "USR2", 15: "TERM"}
# process-compose without max_restarts never gives up.
_NEVER_GIVES_UP: Final = 1_000_000
_KNOWN: Final = frozenset(
    {
        "command",
        "entrypoint",
        "working_dir",
        "environment",
        "env_file",
        "depends_on",
        "availability",
        "readiness_probe",
        "ready_log_line",
        "shutdown",
        "replicas",
        "disabled",
        "description",
        "namespace",
        "log_location",
        "log_configuration",
        "disable_ansi_colors",
        "is_tty",
        "is_foreground",
        "is_elevated",
        "is_dotenv_disabled",
        "vars",
    }
)


def read_compose(text: str) -> Adopted | NotAdopted:
    """Read a process-compose.yaml."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return NotAdopted(f"not YAML: {' '.join(str(error).split())[:200]}")
    processes = document.get("processes") if isinstance(document, dict) else None
    if not isinstance(processes, dict) or not processes:
        return NotAdopted("no `processes` in it")
    shell = document.get("shell")
    command = shell.get("shell_command", "bash") if isinstance(shell, dict) else "bash"
    adopted = Adopted()
    common = _environment(document.get("environment"))
    for name, process in processes.items():
        if not isinstance(process, dict):
            return NotAdopted(f"process {name!r} is no mapping")
        program = _program(str(name), process, str(command), common, adopted)
        if isinstance(program, NotAdopted):
            return program
        adopted.programs.append(program)
    _depend(processes, adopted)
    return adopted


def _program(
    name: str, process: Mapping[str, Any], shell: str, common: Mapping[str, str], adopted: Adopted
) -> Program | NotAdopted:
    entry, line = process.get("entrypoint"), process.get("command")
    if isinstance(entry, list) and entry:
        command = [str(word) for word in entry]
    elif isinstance(line, str) and line.strip():
        command = command_of(line.strip(), shell)
    else:
        return NotAdopted(f"process {name!r} has no command")
    program = Program(name, command)
    keys = program.keys
    if process.get("working_dir"):
        keys["cwd"] = literal(str(process["working_dir"]))
    environment = {**common, **_environment(process.get("environment"))}
    if environment:
        keys["env"] = environment
    env_file = process.get("env_file")
    if isinstance(env_file, list):
        adopted.notes.extend(f"{name}: env_file {file}, Kite reads one" for file in env_file[1:])
        env_file = env_file[0] if env_file else None
    if env_file:
        keys["env_file"] = literal(str(env_file))
    _availability(process.get("availability"), keys)
    _readiness(name, process, keys, adopted)
    _shutdown(name, process.get("shutdown"), keys, adopted)
    if isinstance(process.get("replicas"), int) and process["replicas"] != 1:
        keys["replicas"] = process["replicas"]
    if process.get("disabled") is True:
        keys["enabled"] = False
    adopted.notes.extend(f"{name}: {key}" for key in process if key not in _KNOWN)
    return program


def _environment(value: Any) -> dict[str, str]:
    """Return variables of a list of KEY=value or of a mapping."""
    if isinstance(value, dict):
        return {str(name): literal("" if item is None else str(item)) for name, item in value.items()}
    pairs = (str(item).partition("=") for item in value) if isinstance(value, list) else ()
    return {name: literal(item) for name, _, item in pairs}


def _availability(value: Any, keys: dict[str, Any]) -> None:
    value = value if isinstance(value, dict) else {}
    # Without `restart` process-compose runs a process once.
    restart = value.get("restart", "no")
    keys["restart"] = _RESTART.get(restart, "never") if isinstance(restart, str | bool) else "never"
    if restart == "exit_on_failure" or value.get("exit_on_end") is True or value.get("exit_on_skipped") is True:
        keys["essential"] = True
    if keys["restart"] != "never":
        most = value.get("max_restarts", 0)
        keys["max_restarts"] = most if isinstance(most, int) and most > 0 else _NEVER_GIVES_UP
        backoff = value.get("backoff_seconds", 1)
        keys["backoff"] = f"{backoff}s" if isinstance(backoff, int) and backoff >= 0 else "1s"


def _readiness(name: str, process: Mapping[str, Any], keys: dict[str, Any], adopted: Adopted) -> None:
    probe = process.get("readiness_probe")
    if process.get("ready_log_line"):
        import re

        keys["ready"] = {"log": re.escape(str(process["ready_log_line"]))}
    elif isinstance(probe, dict) and isinstance(probe.get("http_get"), dict):
        get = probe["http_get"]
        host = get.get("host", "127.0.0.1")
        url = f"{get.get('scheme') or 'http'}://{host}:{get.get('port', 80)}{get.get('path') or '/'}"
        keys["ready"] = {"http": literal(url)}
    elif isinstance(probe, dict):
        adopted.notes.append(f"{name}: readiness_probe by a command; ready after 1 s instead")


def _shutdown(name: str, value: Any, keys: dict[str, Any], adopted: Adopted) -> None:
    if not isinstance(value, dict):
        return
    if value.get("signal") in _SIGNALS:
        keys["stop_signal"] = _SIGNALS[value["signal"]]
    if isinstance(value.get("timeout_seconds"), int):
        keys["stop_timeout"] = f"{value['timeout_seconds']}s"
    if value.get("command"):
        adopted.notes.append(f"{name}: shutdown.command; the stop signal is sent instead")


def _depend(processes: Mapping[Any, Any], adopted: Adopted) -> None:
    """Carry `depends_on` over: success of the other one ties fates, everything else is order."""
    programs = {program.name: program for program in adopted.programs}
    for name, process in processes.items():
        wants = process.get("depends_on")
        for other, how in wants.items() if isinstance(wants, dict) else ():
            if str(other) not in programs:
                adopted.notes.append(f"{name}: depends_on {other}, which is not there")
                continue
            condition = how.get("condition") if isinstance(how, dict) else None
            key = "requires" if condition in ("process_completed_successfully", "process_healthy") else "after"
            programs[str(name)].keys.setdefault(key, []).append(str(other))
            if condition in ("process_completed", "process_completed_successfully"):
                programs[str(other)].keys["ready"] = {"exit": 0}
