"""`why NAME`: how a module came to be as it is, as a timeline with causes.

Source: spec 05 §3; cases S-31, S-35, S-55.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import OK, say
from kite_launcher.cli.instance import Instance, judge_state_dir
from kite_launcher.cli.orders import _order, nothing_runs
from kite_launcher.cli.table import columns, plain


def run(line: Line, instance: Instance) -> int:
    """Ask the launcher for one module's story and show it."""
    if not judge_state_dir(instance.state_dir):
        raise nothing_runs(instance)
    story = _order(instance, "why", {"name": line.args.name})
    if line.as_json:
        say(json.dumps({"schema": 1, **story}, ensure_ascii=False))
        return OK
    for text in tell(story):
        say(text)
    return OK


def tell(story: dict[str, Any]) -> list[str]:
    """Return the story as lines: state and rule, what is left of the budget, the next try, then the timeline."""
    lines = [f"{plain(story.get('name'))}: {plain(story.get('state'))}"]
    if story.get("why"):
        lines.append(f"  {plain(story['why'])}")
    if story.get("rule"):
        lines.append(f"  rule: {plain(story['rule'])}")
    budget = story.get("budget")
    if isinstance(budget, dict):
        left, of, within_s = budget.get("left"), budget.get("of"), budget.get("within_s")
        name = plain(story.get("name"))
        resets = "" if name in ("kernel", "watchdog", "logkeeper") else f" (`kite start {name}` resets)"
        lines.append(f"  restarts left: {left} of {of} in {within_s:g} s{resets}")
    if isinstance(story.get("next_try_s"), int | float):
        lines.append(f"  next try in {story['next_try_s']:.1f} s")
    rows = [row for row in story.get("timeline") or () if isinstance(row, dict)]
    if rows:
        lines.append("")
        lines += columns([[_clock(row.get("at")), plain(row.get("event")), _cause(row)] for row in rows])
    return lines


def _clock(at: Any) -> str:
    """Return a stamp in this machine's own time zone, to the millisecond."""
    try:
        return datetime.fromisoformat(str(at)).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except ValueError:
        return plain(at)


def _cause(row: dict[str, Any]) -> str:
    cause, detail = plain(row.get("cause")), row.get("detail")
    if isinstance(detail, dict):
        detail = ", ".join(f"{key} {value}" for key, value in detail.items())
    elif isinstance(detail, list):
        detail = " | ".join(map(str, detail))
    return f"{cause} ({plain(detail)})" if detail and cause else cause or plain(detail)
