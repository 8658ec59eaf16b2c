"""What a request for the stream plane asks for: path and query, judged before anything is allocated.

Knows names, `last`, `epoch`, `ack` and `ids`; not who asks (that is the token's matter) and not which streams exist.
Source: spec 40-streams §1, 05-surface §9, cases W-60 (8), X-21.
"""

import re
from collections.abc import Iterable
from typing import Final

import attrs
import msgspec

from kite_kernel._contract import STREAM_ID_BYTES

STREAM_DEFAULT: Final = "default"
"""The stream of the paths without a name."""

MAX_EPOCH_CHARS: Final = 128
"""An epoch is a short string; a longer one was never given out."""

LAST_MAX: Final = 2**63 - 1
"""The largest number that a log can hold; beyond it no reader in any language keeps its digits."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
_PLANES: Final = ("pub", "sub", "stats")


@attrs.frozen
class PubRequest:
    """A publisher: `ack` it wants an answer a frame, `ids` its frames may be tagged."""

    stream: str
    ack: bool = False
    ids: bool = False


@attrs.frozen
class SubRequest:
    """A subscriber that goes on after `last` of `epoch`; None where it didn't say."""

    stream: str
    last: int | None = None
    epoch: str | None = None


@attrs.frozen
class StatsRequest:
    """Someone who wants the numbers."""

    stream: str


@attrs.frozen
class BadRequest:
    """A request that is refused before 101, with the HTTP status and the words for a person."""

    status: int
    why: str


def is_stream_name(name: str) -> bool:
    """Tell whether `name` may name a stream, and so a folder: `[a-z0-9][a-z0-9._-]{0,127}` without `..`."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def is_stream_path(path: str) -> bool:
    """Tell whether `path` belongs to the stream plane at all."""
    return path.split("/", 2)[1:2] != [] and path.split("/", 2)[1] in _PLANES and path.startswith("/")


def read_request(path: str, query: Iterable[tuple[str, str]]) -> PubRequest | SubRequest | StatsRequest | BadRequest:
    """Read `/pub|sub|stats[/<stream>]` and its query. Unknown fields of the query are left alone.

    Args: `path` as sent (nothing is percent-decoded: no name needs it), `query` decoded pairs.
    """
    parts = path.split("/")
    if len(parts) > 3:
        return BadRequest(404, "no such path: a stream's name holds no /")
    name = parts[2] if len(parts) == 3 else STREAM_DEFAULT
    if not is_stream_name(name):
        return BadRequest(400, "a stream's name is a-z, 0-9, '.', '_', '-', at most 128, and starts with a-z or 0-9")
    fields: dict[str, str] = {}
    for key, value in query:
        if key in fields and key in ("last", "epoch", "ack", "ids"):
            return BadRequest(400, f"{key} is given twice")
        fields[key] = value
    match parts[1]:
        case "pub":
            return _read_pub(name, fields)
        case "sub":
            return _read_sub(name, fields)
        case _:
            return StatsRequest(name)


def _read_pub(name: str, fields: dict[str, str]) -> PubRequest | BadRequest:
    for key in ("ack", "ids"):
        if fields.get(key, "0") not in ("0", "1"):
            return BadRequest(400, f"{key} is 0 or 1")
    return PubRequest(name, fields.get("ack") == "1", fields.get("ids") == "1")


def _read_sub(name: str, fields: dict[str, str]) -> SubRequest | BadRequest:
    epoch = fields.get("epoch")
    if epoch is not None and len(epoch) > MAX_EPOCH_CHARS:
        return BadRequest(400, f"epoch has more than {MAX_EPOCH_CHARS} characters")
    text = fields.get("last")
    if text is None:
        return SubRequest(name, None, epoch)
    if not _WHOLE.fullmatch(text) or int(text) > LAST_MAX:
        return BadRequest(400, "last is a whole number from 0 to 2^63-1")
    return SubRequest(name, int(text), epoch)


class _Tagged(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    data: str


_decode_tagged = msgspec.json.Decoder(_Tagged).decode


def read_tagged(frame: bytes) -> tuple[str | None, str]:
    """Split a frame of `/pub?ids=1` into (id, data); a frame that isn't exactly tagged is (None, the whole of it).

    Tagged is a JSON object with exactly the text members `id` (at most 128 bytes) and `data`, each once.
    Source: 05-surface §9.
    """
    try:
        tagged = _decode_tagged(frame)
    except (msgspec.MsgspecError, RecursionError):
        return None, frame.decode()
    if len(tagged.id.encode()) > STREAM_ID_BYTES or _has_twins(frame):
        return None, frame.decode()
    return tagged.id, tagged.data


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')


def _has_twins(frame: bytes) -> bool:
    """Tell whether a tagged frame repeats a member: four strings are two members."""
    return len(_TOKEN.findall(frame)) != 4
