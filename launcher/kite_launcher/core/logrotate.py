"""When a log file makes room for the next one, and which old ones go.

Law: the files of one log together never hold more than `files` × `max_bytes`; what is kept is the newest.

Source: spec 05 §6 `[logging]`, 50 §2; case S-26.
"""

import re
from collections.abc import Iterable

import attrs

_OLD = re.compile(r"(.+)\.log\.(\d{1,6})")


@attrs.frozen
class Policy:
    """Limits of one log. `files` includes the live one; None for `max_age_s` and `total_bytes` means no such limit."""

    max_bytes: int
    files: int
    max_age_s: float | None = None
    total_bytes: int | None = None


@attrs.frozen
class OldFile:
    """A rotated file as it stands in the folder. `changed_at` is any clock on which all of them were read."""

    name: str
    size_bytes: int
    changed_at: float


def must_rotate(policy: Policy, *, size_bytes: int, add_bytes: int, age_s: float) -> bool:
    """Whether the live file is put aside before `add_bytes` more are written. An empty file never is."""
    if size_bytes == 0:
        return False
    too_old = policy.max_age_s is not None and age_s >= policy.max_age_s
    return too_old or size_bytes + add_bytes > policy.max_bytes


def fit(data: bytes, room_bytes: int) -> int:
    """Count the bytes of whole records at the beginning of `data` that fit; at least one record, however long."""
    if len(data) <= room_bytes:
        return len(data)
    end = data.rfind(b"\n", 0, max(room_bytes, 0)) + 1
    return end or data.find(b"\n") + 1 or len(data)


def plan_rotation(
    name: str, policy: Policy, present: Iterable[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Plan what happens in the folder: (files to remove first, renames in their order).

    `present` are the file names in the folder. The plan keeps `files` − 1 old ones; a gap in the numbers is left
    as it is. Each step may be the last one before a crash: no step ever overwrites a file that is wanted.
    """
    live = f"{name}.log"
    numbers = sorted(
        int(found.group(2)) for found in map(_OLD.fullmatch, present) if found is not None and found.group(1) == name
    )
    keep = policy.files - 1
    remove = [f"{live}.{number}" for number in numbers if number >= keep]
    shift = [(f"{live}.{number}", f"{live}.{number + 1}") for number in reversed(numbers) if number < keep]
    if keep < 1:
        return (*remove, live), ()
    return tuple(remove), (*shift, (live, f"{live}.1"))


def over_total(old: Iterable[OldFile], *, live_bytes: int, total_bytes: int) -> tuple[str, ...]:
    """Name the old files that go so that all logs together stay in `total_bytes`, the longest untouched first."""
    standing = sorted((file for file in old if _OLD.fullmatch(file.name)), key=lambda file: file.changed_at)
    left = live_bytes + sum(file.size_bytes for file in standing)
    gone: list[str] = []
    for file in standing:
        if left <= total_bytes:
            break
        gone.append(file.name)
        left -= file.size_bytes
    return tuple(gone)
