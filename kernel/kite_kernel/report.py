"""The report of a bug that ended the kernel: where it was raised, without any value that might hold a secret.

Source: spec 05-surface §3 (exit 70), case X-36.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_report(error: BaseException, folder: Path | None, version: str) -> Path | None:
    """Write kinds and places of `error` into a new file, 0600, in `folder` or else where temporary files go.

    Returns: its path, None where nothing can be written. Exception texts are left out: they may quote a payload.
    """
    lines = [f"kite-kernel {version}, Python {platform.python_version()}, {platform.platform()}", *_lines(error, "")]
    name = f"kernel-bug-{secrets.token_hex(4)}.txt"
    for place in (folder, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            if place is None or not place.is_dir():
                continue
            path = place / name
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
            return path
    return None


def _lines(error: BaseException, indent: str) -> Iterator[str]:
    yield f"{indent}{type(error).__name__}"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"{indent}  {frame.filename}:{frame.lineno} in {frame.name}"
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__, error.__context__):
        if inner is not None:
            yield from _lines(inner, indent + "  ")
