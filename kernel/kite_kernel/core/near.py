"""The nearest existing names to one that does not exist. Source: spec 10-wire §6."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST: Final = 3
_LONGEST: Final = 256  # characters of a name that is compared at all; the comparison is quadratic
_COMPARED: Final = 1000


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three existing names, the nearest first; where none is near, the first in order."""
    known = sorted(names)
    if len(name) > _LONGEST:
        return known[:_MOST]
    return difflib.get_close_matches(name, known[:_COMPARED], _MOST, 0.4) or known[:_MOST]
