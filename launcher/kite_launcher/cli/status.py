"""`status`: what runs and how it is, as a table or as JSON; true also when no launcher answers.

Exit codes: 0 everything as wanted, 1 starting, back-off, degraded or a silent launcher, 2 something failed, 3 nothing
runs. Source: spec 05 §3; cases S-47, S-53, S-59, S-70, S-72.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

from kite_launcher.cli import leftovers, table
from kite_launcher.cli.ask import NotThere, Silent, ask
from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import FAILED, NO, NOTHING, OK, say
from kite_launcher.cli.instance import Instance, judge_state_dir

_CODES: Final = {"ok": OK, "degraded": NO, "failed": FAILED, "stopped": NOTHING}
WATCH_INTERVAL_S: Final = 1.0


def run(line: Line, instance: Instance) -> int:
    """Show the instance once, or with `--watch` until Ctrl+C."""
    if line.args.watch and not line.as_json:
        return _watch(instance)
    status = gather(instance)
    if line.as_json:
        say(json.dumps(status, ensure_ascii=False))
    else:
        for text in lines(status):
            say(text)
    return code_of(status)


def gather(instance: Instance) -> dict[str, Any]:
    """Return the object of `status --json`, from the launcher or, where none answers, from what can be seen."""
    if not judge_state_dir(instance.state_dir):
        return _stopped(instance, [])
    try:
        status = ask(instance.state_dir, "status")
    except Silent:
        return _silent(instance)
    except NotThere:
        if leftovers.launcher_alive(instance.state_dir) is not None:
            return _silent(instance)
        return _stopped(instance, leftovers.find(instance.state_dir))
    return status if isinstance(status, dict) else {}


def code_of(status: dict[str, Any]) -> int:
    """Return the exit code that belongs to a status."""
    return _CODES.get(str(status.get("state")), NO)


def lines(status: dict[str, Any]) -> list[str]:
    """Return the status as lines for a person, coloured on a terminal."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    colour = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if terminal else 4096
    return table.render(status, width=width, colour=colour, now=datetime.now(UTC))


def _stopped(instance: Instance, left: list[leftovers.Left]) -> dict[str, Any]:
    status: dict[str, Any] = {
        "schema": 1,
        "instance": _name(instance),
        "state": "stopped",
        "url": None,
        "launcher": {"pid": None, "since": None},
        "kernel": {"pid": None, "state": "stopped", "restarts": 0, "epoch": None},
        "watchdog": {"pid": None, "state": "stopped", "restarts": 0},
        "modules": [],
    }
    if left:
        status["leftovers"] = [{"name": item.name, "role": item.role, "pid": item.pid} for item in left]
        names = ", ".join(f"{item.name} (pid {item.pid})" for item in left)
        helped = "; the watchdog starts a fresh one" if any(item.role == "watchdog" for item in left) else ""
        status["why"] = f"an earlier one left running: {names}{helped}; `kite down` cleans up"
    return status


def _silent(instance: Instance) -> dict[str, Any]:
    """Return what can be seen of an instance whose launcher lives but does not answer: pids, no judgement."""
    pid, since = leftovers.launcher_alive(instance.state_dir) or (None, None)
    status = _stopped(instance, [])
    status["state"] = "degraded"
    status["launcher"] = {"pid": pid or None, "since": since or None}
    status["why"] = "the launcher is silent: it lives but does not answer (starting, stopped by a signal, or hanging)"
    for item in leftovers.find(instance.state_dir):
        row: dict[str, Any] = {"name": item.name, "role": item.role, "state": "starting", "ready": False}
        row.update(pid=item.pid, restarts=0, since=item.started_at, grade=None)
        row["why"] = "not known while the launcher is silent"
        if item.role in ("kernel", "watchdog"):
            status[item.role] = {**status[item.role], "pid": item.pid, "state": "running"}
        elif item.role == "module":
            status["modules"].append(row)
    return status


def _name(instance: Instance) -> str:
    from kite_launcher.cli.instance import instance_name

    if instance.config is not None:
        return instance_name(instance.config)
    return os.path.basename(instance.state_dir)


def _watch(instance: Instance) -> int:
    """Redraw in place until Ctrl+C; without a terminal a changed table is printed again."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    last: list[str] = []
    status: dict[str, Any] = {}
    try:
        while True:
            status = gather(instance)
            now = lines(status)
            if terminal:
                say("\033[H\033[J" + "\n".join(now))
            elif now != last:
                say("\n".join(now))
            last = now
            time.sleep(WATCH_INTERVAL_S)
    except KeyboardInterrupt:
        return code_of(status)
