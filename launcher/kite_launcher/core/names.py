"""Which names a module, a stream or an environment variable may have, and which valid name a wrong one meant."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

# Kite's own processes and the token that `kite` uses; a module of such a name could be taken for them.
RESERVED: Final = ("kernel", "launcher", "watchdog", "logkeeper", "operator")
STOCK: Final = ("relay", "logs", "audit", "backup", "chat", "model")
# A name becomes a file name with `.log` and a rotation number behind it; 63 bytes leave room in every file system.
NAME_MAX_BYTES: Final = 63

_STREAM: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def module_name_fault(name: str) -> str | None:
    """Return what is wrong with a module's name, or None when it is a good one.

    Good: letters of any script with their marks, digits, `_`, `-`; NFC; 1 to 63 bytes of UTF-8; not reserved.
    Source: spec 05 §6.
    """
    if not name:
        return "expected a name, not an empty one"
    if not all(_may_stand(char, first=index == 0) for index, char in enumerate(name)):
        return "expected a name of letters, digits, _ and -"
    if unicodedata.normalize("NFC", name) != name:
        return "expected the name in Unicode's composed form (NFC)"
    if len(name.encode()) > NAME_MAX_BYTES:
        return f"expected a name of at most {NAME_MAX_BYTES} bytes, not {len(name.encode())}"
    if name.casefold() in RESERVED:
        return f"expected another name: {name.casefold()!r} is Kite's own"
    return None


def _may_stand(char: str, *, first: bool) -> bool:
    if char in "_-":
        return True
    category = unicodedata.category(char)
    # Marks belong to letters (Thai, Devanagari, …); one at the beginning would belong to nothing.
    return category[0] == "L" or category == "Nd" or (category[0] == "M" and not first)


def same_name(name: str) -> str:
    """Return the form in which two names that differ only by case are equal."""
    return unicodedata.normalize("NFC", name.casefold())


def stream_name_fault(name: str) -> str | None:
    """Return what is wrong with a stream's name, or None. Source: spec 05 §9."""
    if _STREAM.fullmatch(name) is None or ".." in name:
        return "expected a stream's name: lower-case letters, digits, . _ -, at most 128, no '..'"
    return None


def pattern_fault(pattern: str) -> str | None:
    """Return what is wrong with a pattern of [permissions.NAME], or None. Source: spec 10 §7."""
    segments = pattern.split(".")
    for index, segment in enumerate(segments):
        if segment == "*" or (segment == ">" and index == len(segments) - 1):
            continue
        if not segment or "*" in segment or ">" in segment or " " in segment or not segment.isprintable():
            return 'expected a pattern such as "model.*" or "backup.>": * is one segment, a last > the rest'
    return None


def nearest(wrong: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that `wrong` most likely meant, or None when nothing is near enough to help."""
    import difflib  # only a mistake needs it, and `status` must start fast

    folded = {same_name(name): name for name in valid}
    found = difflib.get_close_matches(same_name(wrong), list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None
