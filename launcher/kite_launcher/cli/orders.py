"""The commands that are one question to the launcher: start, stop, restart, down, reload, wait, token, upgrade.

The launcher bounds every order itself and says meanwhile what it waits for; this side shows that on stderr, in place
on a terminal. Source: spec 05 §3; cases S-12 … S-17, S-47, S-48, S-58, S-62.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from kite_launcher.cli import leftovers
from kite_launcher.cli.ask import NotThere, Silent, ask
from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import NO, NOTHING, OK, Failure, complain, say
from kite_launcher.cli.instance import Instance, judge_state_dir
from kite_launcher.cli.table import clip, columns, plain

# What `wait` grants the launcher beyond its own bound before it is called silent.
_GRACE_S: Final = 5.0


def run(line: Line, instance: Instance) -> int:
    """Give the order and show what became of it."""
    if not judge_state_dir(instance.state_dir):
        raise nothing_runs(instance)
    args = line.args
    match line.command:
        case "start" | "stop" | "restart":
            result = _order(instance, line.command, {"names": args.names})
        case "down":
            return _down(line, instance)
        case "reload":
            result = _order(instance, "reload", {"dry_run": args.dry_run})
            if not line.as_json:
                return _show_plan(result, dry_run=args.dry_run)
        case "wait":
            params = {"names": args.names, "state": args.state, "timeout_s": args.timeout}
            result = _order(instance, "wait", params, timeout_s=args.timeout + _GRACE_S)
        case "token":
            result = _order(instance, "token", {"name": args.name})
            if not line.as_json:
                say(str(result.get("token", "")))
                return OK
        case _:  # upgrade: this program's own interpreter, with the Kite that is installed for it, takes over
            result = _order(instance, line.command, {"python": sys.executable})
    return _show(result, line)


def nothing_runs(instance: Instance) -> Failure:
    """Return the refusal of an order that needs a launcher; leftovers of an earlier one are named."""
    left = leftovers.find(instance.state_dir)
    if left:
        names = ", ".join(f"{item.name} (pid {item.pid})" for item in left)
        return Failure(NOTHING, f"no launcher runs; left over: {names}", "`kite down` cleans up, `kite up` starts anew")
    return Failure(NOTHING, f"nothing is running in {instance.state_dir}", "start it with `kite up -d`")


def _order(instance: Instance, method: str, params: dict[str, Any], *, timeout_s: float | None = None) -> Any:
    progress = Progress()
    try:
        result = ask(instance.state_dir, method, params, timeout_s=timeout_s, progress=progress.show)
    except NotThere:
        if leftovers.launcher_alive(instance.state_dir) is not None:
            raise Failure(NO, "the launcher is starting and takes no orders yet", "try again in a moment") from None
        raise nothing_runs(instance) from None
    except Silent:
        raise Failure(NO, "the launcher is silent: it lives but does not answer", "see `kite doctor`") from None
    finally:
        progress.end()
    return result if isinstance(result, dict) else {}


class Progress:
    """Shows what an order waits for: one line each on stderr, in place when that is a terminal."""

    def __init__(self) -> None:
        self._in_place = sys.stderr is not None and sys.stderr.isatty()
        self._open = False

    def show(self, params: dict[str, Any]) -> None:
        """Show one progress notification."""
        text = plain(params.get("text"))
        if not self._in_place:
            complain(text)
            return
        import shutil

        sys.stderr.write(f"\r\033[K{clip(text, shutil.get_terminal_size().columns - 1)}")
        sys.stderr.flush()
        self._open = True

    def end(self) -> None:
        """Leave a clean line."""
        if self._open:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._open = False


def _down(line: Line, instance: Instance) -> int:
    params = {} if line.args.timeout is None else {"timeout_s": line.args.timeout}
    try:
        result = _order(instance, "down", params)
    except Failure as failure:
        if failure.code != NOTHING or not leftovers.find(instance.state_dir):
            raise
        return _clean_up(line, instance)
    return _show(result, line)


def _clean_up(line: Line, instance: Instance) -> int:
    """End what a dead launcher left; the supervisor's own clean-up does it, under the instance's lock."""
    from kite_launcher.core.launch import RefusedError
    from kite_launcher.edge import supervisor

    try:
        result = supervisor.clean_up(instance.state_dir)
    except RefusedError as refused:
        it = refused.refusal
        raise Failure(it.exit, it.text, it.hint, lines=it.lines) from refused
    return _show(result, line)


def _show(result: dict[str, Any], line: Line) -> int:
    """Print a result: the launcher's own text, else a line for each module; its `exit` is the exit code."""
    code = result.get("exit", OK)
    if line.as_json:
        say(
            json.dumps(
                {"schema": 1, **{key: value for key, value in result.items() if key != "exit"}}, ensure_ascii=False
            )
        )
        return int(code)
    for note in result.get("notes") or ():
        complain(plain(note))
    if result.get("text"):
        for text in str(result["text"]).splitlines():
            say(plain(text))
    rows = [row for row in result.get("modules") or () if isinstance(row, dict)]
    for text in columns([[plain(row.get("name")), _state(row), plain(row.get("why"))] for row in rows]):
        say(text)
    return int(code)


def _state(row: dict[str, Any]) -> str:
    return "ready" if row.get("ready") else plain(row.get("state"))


def _show_plan(result: dict[str, Any], *, dry_run: bool) -> int:
    changes = [row for row in result.get("changes") or () if isinstance(row, dict)]
    real = [row for row in changes if row.get("action") != "keep"]
    kept = len(changes) - len(real)
    if not real:
        say(f"no change: all {kept} kept" if kept else "no change")
        return int(result.get("exit", OK))
    rows = [
        [plain(row.get("action")), plain(row.get("name")), ", ".join(map(plain, row.get("keys") or ()))] for row in real
    ]
    for text in columns(rows):
        say(text)
    say(f"{kept} kept" + ("; nothing was done (--dry-run)" if dry_run else ""))
    for text in str(result.get("text") or "").splitlines():
        say(plain(text))
    return int(result.get("exit", OK))
