"""What a console shows of the whole instance, as rows, and what changed between two pictures. Pure.

Source: spec 80 §2, 05 §3 (status), §7 (connection stats).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Row = dict[str, Any]
OWN: Final = ("launcher", "kernel", "watchdog")
ROWS_MAX: Final = 200
_KERNEL_STATES: Final = {"ready": "running", "registered": "starting", "connected": "starting", "offline": "stopped"}


def pids_of(status: Row | None) -> set[int]:
    """Return the process numbers that a status names."""
    if status is None:
        return set()
    rows = [*(status.get(name) or {} for name in OWN), *status.get("modules", ())]
    return {row["pid"] for row in rows if isinstance(row.get("pid"), int)}


def rows_of(
    status: Row | None, stats: list[Row], used: Mapping[int, tuple[float | None, int]], *, elapsed_s: float, before: Row
) -> dict[str, Row]:
    """Return name → row: the launcher's modules where there is a launcher, else whoever is connected.

    Args: `before` holds the last stats by name, for rates over `elapsed_s`.
    """
    by_name = {row["module_id"]: row for row in stats}
    if status is None:
        wanted = [
            {"name": row["module_id"], "state": _KERNEL_STATES.get(row["state"], "running"), "since": row["since"]}
            for row in stats
        ]
    else:
        wanted = list(status.get("modules", ()))
    return {
        row["name"]: {
            **_of_launcher(row),
            **_of_process(used.get(row.get("pid") or 0)),
            **_of_kernel(by_name.get(row["name"]), before.get(row["name"]), elapsed_s),
        }
        for row in wanted
    }


def _of_launcher(row: Row) -> Row:
    wanted = ("name", "role", "state", "ready", "pid", "restarts", "since", "grade", "why")
    return {key: row.get(key) for key in wanted}


def _of_process(used: tuple[float | None, int] | None) -> Row:
    if used is None:
        return {"cpu": None, "memory": None}
    return {"cpu": used[0], "memory": used[1] >> 16 << 16}  # to 64 KiB: a row that only breathes is no news


def _of_kernel(row: Row | None, before: Row | None, elapsed_s: float) -> Row:
    if row is None:
        return {"online": None}
    ping, queue = row.get("ping") or {}, row.get("queue") or {}
    found = {
        "online": row.get("state"),
        "grade": row.get("grade"),
        "score": row.get("score"),
        "rtt": _rounded(ping.get("rtt_ms")),
        "p50": _rounded(ping.get("p50_ms")),
        "p95": _rounded(ping.get("p95_ms")),
        "jitter": _rounded(ping.get("jitter_ms")),
        "queue": queue.get("messages", 0),
        "pressure": queue.get("pressure", "normal"),
        "calls": row.get("calls_in_flight", 0),
        "reconnects": (row.get("reconnects") or {}).get("total", 0),
    }
    for name in ("frames_in", "frames_out"):
        rate = 0.0 if before is None or elapsed_s <= 0 else (row.get(name, 0) - before.get(name, 0)) / elapsed_s
        found[name.removeprefix("frames_") + "_rate"] = round(max(0.0, rate), 1)
    return found


def _rounded(value: Any) -> float | None:
    return round(value, 2) if isinstance(value, int | float) else None


def head_of(status: Row | None, used: Mapping[int, tuple[float | None, int]]) -> Row:
    """Return the verdict and Kite's own processes."""
    if status is None:
        return {"instance": None, "state": "unknown", "own": {}}
    own: Row = {}
    for name in OWN:
        row = dict(status.get(name) or {})
        cpu, memory = used.get(row.get("pid") or 0, (None, None))
        own[name] = {**row, "cpu": cpu, "memory": memory if memory is None else memory >> 16 << 16}
    return {"instance": status.get("instance"), "state": status.get("state", "unknown"), "own": own}


def changes(old: Mapping[str, Row], new: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that are new or other, and the names that are gone."""
    return [row for name, row in new.items() if old.get(name) != row], [name for name in old if name not in new]


def flows_of(now: list[Row], before: Mapping[tuple[str, str], int], elapsed_s: float) -> list[Row]:
    """Return who calls whom: calls in all, and a second since the last look."""
    rows: list[Row] = []
    for row in now:
        old = before.get((row["caller"], row["callee"]))
        rate = 0.0 if old is None else max(0, row["calls"] - old) / max(elapsed_s, 0.001)
        rows.append({"from": row["caller"], "to": row["callee"], "calls": row["calls"], "rate": round(rate, 1)})
    return sorted(rows, key=lambda row: (float(row["rate"]), int(row["calls"])), reverse=True)[:ROWS_MAX]


def traffic_of(counts: Mapping[tuple[str, str], int], elapsed_s: float) -> list[Row]:
    """Return who publishes what at which rate: (source, first word of the event) → events a second."""
    rows: list[Row] = [
        {"from": source, "topic": topic, "rate": round(count / max(elapsed_s, 0.001), 2)}
        for (source, topic), count in counts.items()
    ]
    return sorted(rows, key=lambda row: float(row["rate"]), reverse=True)[:ROWS_MAX]
