"""The state files that are the launcher's own: `processes.json`, `wanted.json`, `launch.json`, and the lock's line.

Reading never trusts: a file that is cut short, from a newer Kite or forged is `Damaged`, and the edge sets it aside
and goes on by the marks. Source: spec 05 §5; cases S-01 … S-03, S-77, S-78.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

import attrs

from kite_launcher.core.proc import Identity

SCHEMA: Final = 1
Role = Literal["watchdog", "module", "kernel", "logkeeper"]
# An earlier instance is ended in this order: first whoever would revive the others (spec 50 §1).
CLEANUP_ORDER: Final[tuple[Role, ...]] = ("watchdog", "module", "kernel", "logkeeper")


@attrs.frozen
class ProcessRecord:
    """One process that this instance started. `started_at` is a stamp for people."""

    name: str
    role: Role
    pid: int
    start_ticks: int
    pgid: int
    argv: tuple[str, ...]
    started_at: str

    @property
    def identity(self) -> Identity:
        """The pid together with the start ticks."""
        return Identity(self.pid, self.start_ticks)


@attrs.frozen
class Processes:
    """The whole of `processes.json`."""

    boot_id: str
    instance: str
    records: tuple[ProcessRecord, ...]


@attrs.frozen
class Damaged:
    """A state file that can't be believed, and why."""

    why: str


def render_processes(boot_id: str, instance: str, records: Iterable[ProcessRecord]) -> bytes:
    """Return the bytes of `processes.json`."""
    rows = [
        {
            "name": record.name,
            "role": record.role,
            "pid": record.pid,
            "start_ticks": record.start_ticks,
            "pgid": record.pgid,
            "argv": list(record.argv),
            "started_at": record.started_at,
        }
        for record in records
    ]
    return _dump({"schema": SCHEMA, "boot_id": boot_id, "instance": instance, "processes": rows})


def parse_processes(data: bytes) -> Processes | Damaged:
    """Read `processes.json`."""
    document = _load(data)
    if isinstance(document, Damaged):
        return document
    rows, boot_id, instance = document.get("processes"), document.get("boot_id"), document.get("instance")
    if not isinstance(rows, list) or not isinstance(boot_id, str) or not isinstance(instance, str):
        return Damaged("a member is missing or of the wrong type")
    records = []
    for row in rows:
        record = _record(row)
        if record is None:
            return Damaged("a record is not of the right form")
        records.append(record)
    return Processes(boot_id, instance, tuple(records))


def _record(row: object) -> ProcessRecord | None:
    if not isinstance(row, dict):
        return None
    numbers = [row.get("pid"), row.get("start_ticks"), row.get("pgid")]
    argv, role, name = row.get("argv"), row.get("role"), row.get("name")
    good = (
        all(type(number) is int and number > 0 for number in numbers)
        and isinstance(name, str)
        and role in get_args(Role)
        and isinstance(argv, list)
        and all(isinstance(part, str) for part in argv)
    )
    if not good:
        return None
    started_at = row.get("started_at")
    return ProcessRecord(
        name=str(name),
        role=role,  # type: ignore[arg-type]  # checked against the Literal above
        pid=int(row["pid"]),
        start_ticks=int(row["start_ticks"]),
        pgid=int(row["pgid"]),
        argv=tuple(argv or ()),
        started_at=started_at if isinstance(started_at, str) else "",
    )


def render_wanted(stopped: Iterable[str]) -> bytes:
    """Return the bytes of `wanted.json`: the modules that a person stopped."""
    return _dump({"schema": SCHEMA, "stopped": sorted(stopped)})


def parse_wanted(data: bytes) -> frozenset[str] | Damaged:
    """Read `wanted.json`."""
    document = _load(data)
    if isinstance(document, Damaged):
        return document
    stopped = document.get("stopped")
    if not isinstance(stopped, list) or not all(isinstance(name, str) for name in stopped):
        return Damaged("`stopped` is not a list of names")
    return frozenset(stopped)


@attrs.frozen
class Holder:
    """Whoever holds the instance lock."""

    pid: int
    start_ticks: int
    boot_id: str
    since: str


def render_lock(holder: Holder) -> bytes:
    """Return the line inside `instance.lock`."""
    return _dump(attrs.asdict(holder))


def parse_lock(data: bytes) -> Holder | None:
    """Read `instance.lock`; None while its holder is still writing, or when it holds something else."""
    document = _load(data, schema=False)
    if isinstance(document, Damaged) or type(document.get("pid")) is not int:
        return None
    ticks = document.get("start_ticks")
    return Holder(
        pid=int(document["pid"]),
        start_ticks=ticks if isinstance(ticks, int) else 0,
        boot_id=str(document.get("boot_id", "")),
        since=str(document.get("since", "")),
    )


def render_launch(
    *,
    argv: Sequence[str],
    cwd: str,
    env_names: Iterable[str],
    holder: Holder,
    config: str,
    state_dir: str,
) -> bytes:
    """Return the bytes of `launch.json`: how this instance was started, for the watchdog. Names only, no values."""
    launcher = {"pid": holder.pid, "start_ticks": holder.start_ticks, "boot_id": holder.boot_id}
    return _dump(
        {
            "schema": SCHEMA,
            "argv": list(argv),
            "cwd": cwd,
            "env_names": sorted(env_names),
            "launcher": launcher,
            "config": config,
            "state_dir": state_dir,
            "since": holder.since,
        }
    )


def _dump(document: dict[str, Any]) -> bytes:
    # ASCII: a path that is no UTF-8 stands as a lone surrogate's escape and comes back as the same bytes.
    return (json.dumps(document, ensure_ascii=True, separators=(",", ":")) + "\n").encode("ascii")


def _load(data: bytes, *, schema: bool = True) -> dict[str, Any] | Damaged:
    if not data.strip():
        return Damaged("it is empty")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return Damaged("it is not JSON")
    if not isinstance(document, dict):
        return Damaged("it is not an object")
    if schema and document.get("schema") != SCHEMA:
        return Damaged(f"its schema is {document.get('schema')!r}, not {SCHEMA}")
    return document
