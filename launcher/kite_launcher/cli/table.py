"""Draws what `status` knows as a table: columns as wide as their text, colours only where a person looks.

Pure but for the widths of characters. A line never wraps: the last column gives way first.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

# state -> (sign, colour). The sign tells the same as the colour, for those who see none.
_SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    "ready": ("●", "32"),
    "running": ("◐", "33"),
    "starting": ("◐", "33"),
    "waiting": ("○", "33"),
    "stopping": ("◑", "33"),
    "backoff": ("↻", "33"),
    "degraded": ("◐", "33"),
    "stopped": ("○", "2"),
    "done": ("✓", "32"),
    "failed": ("✗", "31"),
    "ok": ("●", "32"),
}
_HEAD: Final = ("", "NAME", "STATE", "PID", "UP", "RESTARTS", "GRADE", "WHY")
_WHY_MIN: Final = 16


def render(status: Mapping[str, Any], *, width: int, colour: bool, now: datetime) -> list[str]:
    """Return the lines of the table: a verdict, the kernel and the watchdog, then every module.

    `status` is the object of `status --json`; members that are missing or null are left blank.
    """
    paint = _Paint(colour)
    rows = [_own("kernel", status.get("kernel"), now), _own("watchdog", status.get("watchdog"), now)]
    rows += [_row(module, now) for module in status.get("modules") or ()]
    rows = [row for row in rows if row]
    cells = [list(_HEAD), *([*row] for row in rows)]
    # A column that nobody fills is not shown.
    shown = [index for index in range(len(_HEAD)) if index < 3 or any(row[index] for row in cells[1:])]
    wide = {index: max(text_width(row[index]) for row in cells) for index in shown}
    last = shown[-1]
    lines = [_verdict(status, paint, now)]
    for number, row in enumerate(cells):
        parts: list[str] = []
        for index in shown:
            text = row[index]
            if index == last:
                used = sum(wide[other] + 2 for other in shown[:-1])
                text = clip(text, max(_WHY_MIN, width - used)) if index == 7 else text
                parts.append(text)
            elif index in (3, 5):
                parts.append(" " * (wide[index] - text_width(text)) + text)
            else:
                parts.append(text + " " * (wide[index] - text_width(text)))
        line = "  ".join(parts).rstrip()
        state = row[2]
        lines.append(paint(line, "2") if number == 0 else paint.sign(line, row[0], state))
    return lines


class _Paint:
    """Puts colours around text, or does not."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour and code else text

    def sign(self, line: str, sign: str, state: str) -> str:
        if not self._colour or not sign:
            return line
        return self(sign, _SIGNS.get(state, ("", ""))[1]) + line[len(sign) :]


def _verdict(status: Mapping[str, Any], paint: _Paint, now: datetime) -> str:
    state = str(status.get("state", "stopped"))
    sign, code = _SIGNS.get(state, ("○", "2"))
    words = {"ok": "everything as wanted", "degraded": "not everything as wanted", "failed": "something failed"}
    otherwise = "no launcher is running" if status.get("leftovers") else "nothing is running"
    parts = [f"{plain(status.get('instance'))}: {words.get(state, otherwise)}"]
    if status.get("url"):
        parts.append(plain(status["url"]))
    launcher = status.get("launcher") or {}
    if launcher.get("pid"):
        parts.append(f"launcher {launcher['pid']}, up {age(launcher.get('since'), now)}")
    if status.get("why"):
        parts.append(plain(status["why"]))
    return f"{paint(sign, code)} {' · '.join(parts)}"


def _own(name: str, part: Any, now: datetime) -> list[str]:
    return _row({"name": name, **part}, now) if isinstance(part, dict) and part.get("state") else []


def _row(module: Mapping[str, Any], now: datetime) -> list[str]:
    state = plain(module.get("state"))
    if state == "running" and module.get("ready", True):
        state = "ready"
    up = age(module.get("since"), now) if module.get("pid") else ""
    restarts = module.get("restarts")
    return [
        _SIGNS.get(state, ("?", ""))[0],
        plain(module.get("name")),
        state,
        plain(module.get("pid")),
        up,
        plain(restarts) if restarts else "",
        plain(module.get("grade")) if module.get("pid") else "",
        plain(module.get("why")),
    ]


def plain(value: Any) -> str:
    """Return a value as one line of printable text; nothing that a terminal would obey."""
    if value is None:
        return ""
    return "".join(char if char.isprintable() else " " for char in str(value))


def age(since: Any, now: datetime) -> str:
    """Return how long ago an ISO 8601 stamp was, in its two largest units: 3d 4h, 5m 12s, 8s."""
    try:
        seen = datetime.fromisoformat(str(since))
    except ValueError:
        return ""
    seen = seen if seen.tzinfo is not None else seen.replace(tzinfo=UTC)
    left = max(0, int((now - seen).total_seconds()))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def text_width(text: str) -> int:
    """Return how many columns a terminal gives to `text`: two for wide characters, none for marks."""
    if text.isascii():
        return len(text)
    wide = sum(1 for char in text if unicodedata.east_asian_width(char) in "WF")
    marks = sum(1 for char in text if unicodedata.category(char) in ("Mn", "Me", "Cf"))
    return len(text) + wide - marks


def clip(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with an ellipsis where something is left out."""
    if text_width(text) <= width:
        return text
    kept: list[str] = []
    used = 0
    for char in text:
        step = text_width(char)
        if used + step > width - 1:
            break
        kept.append(char)
        used += step
    return "".join(kept) + "…"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines, two blanks between columns."""
    if not rows:
        return []
    wide = [max(text_width(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(text + " " * (wide[index] - text_width(text)) for index, text in enumerate(row)).rstrip()
        for row in rows
    ]
