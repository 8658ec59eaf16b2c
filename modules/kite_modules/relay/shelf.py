"""The console's files, read once at the start and served from memory, compressed. No path reaches the disk.

Source: spec 80 §2, case X-34.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import attrs

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "webmanifest": "application/manifest+json",
}
SMALL_BYTES: Final = 512  # below it compression saves nothing


@attrs.frozen
class Page:
    """One file: its type, its bytes, both ways, and a tag that changes with them."""

    type: str
    body: bytes
    packed: bytes | None
    tag: str


def load() -> dict[str, Page]:
    """Return URL path → page of everything that is served."""
    pages: dict[str, Page] = {}
    _add(files("kite_modules.relay").joinpath("static"), "/static", pages)
    pages["/"] = pages["/static/index.html"]
    return pages


def _add(folder: Traversable, path: str, pages: dict[str, Page]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _add(entry, f"{path}/{entry.name}", pages)
            continue
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is None or entry.name.endswith(".d.ts"):
            continue
        body = entry.read_bytes()
        packed = gzip.compress(body, 9, mtime=0) if len(body) >= SMALL_BYTES else None
        pages[f"{path}/{entry.name}"] = Page(kind, body, packed, f'"{hashlib.sha256(body).hexdigest()[:24]}"')
