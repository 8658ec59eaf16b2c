"""Coverage-guided fuzzing of what strangers can reach first; not run by the suite, its corpus is.

    pip install atheris
    python -m tests.kernel.fuzz websocket SEEDS_DIR [-max_total_time=300]
    python -m tests.kernel.fuzz keep SEEDS_DIR tests/kernel/corpus/websocket/found.hex

A finding is an exception that a target raises: the codec disagrees with the obvious reader, or anything escapes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 300
FRAGMENTS = 6
KEPT_BYTES = 600  # a longer finding teaches the suite nothing that a shorter one does not


def fuzz_websocket(data: bytes) -> None:
    """Compare the codec, fed in pieces that the first two bytes choose, with the obvious reader."""
    from tests.support.reference_codec import read_stream

    from kite_kernel.core.websocket import Codec, Fault

    step, data = (data[0] + 1 if data else 1), data[1:]
    codec = Codec(max_message_bytes=LIMIT, max_fragments=FRAGMENTS)
    events = [event for at in range(0, len(data), step) for event in codec.feed(data[at : at + step])]
    plain = [Fault(event.code, "") if isinstance(event, Fault) else event for event in events]
    if plain != read_stream(data, limit=LIMIT, max_fragments=FRAGMENTS):
        raise AssertionError(data.hex())


def fuzz_http(data: bytes) -> None:
    """Read any head; judge what came of it."""
    from kite_kernel.core.http import Head, Refusal, bearer_token, judge_upgrade, parse_head, refusal_response

    parsed = parse_head(data)
    if isinstance(parsed, Head):
        bearer_token(parsed)
        judge_upgrade(parsed)
    elif isinstance(parsed, Refusal):
        refusal_response(parsed)


def fuzz_frame(data: bytes) -> None:
    """Read any text as a frame: what passes must be JSON for a second reader too."""
    import json

    from kite_kernel.core.frame import BadFrame, parse

    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return  # the codec lets none of it through
    if not isinstance(parse(data), BadFrame):
        json.loads(data, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise AssertionError(name)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "websocket": fuzz_websocket,
    "http": fuzz_http,
    "frame": fuzz_frame,
}


def keep(source: Path, target: Path) -> None:
    """Write the seeds of a directory as one line of hex each, shortest first."""
    seeds = sorted(
        {path.read_bytes()[1:] for path in source.iterdir() if path.is_file()}, key=lambda raw: (len(raw), raw)
    )
    lines = [raw.hex() for raw in seeds if 0 < len(raw) <= KEPT_BYTES]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", "ascii")


def main() -> None:
    name, *rest = sys.argv[1:]
    if name == "keep":
        keep(Path(rest[0]), Path(rest[1]))
        return
    import atheris

    with atheris.instrument_imports(include=["kite_kernel.core"]):
        import kite_kernel.core.frame
        import kite_kernel.core.http
        import kite_kernel.core.websocket  # noqa: F401
    atheris.Setup([sys.argv[0], *rest], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
