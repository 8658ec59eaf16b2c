r"""How one line of output stands in a log file, so that every byte can be told back.

A stored line is `TIME STREAM RUN FLAGS TEXT` and a newline, in UTF-8:

    2026-11-30T09:12:13.123456Z out 1 - listening on 7390
    2026-11-30T09:12:13.204417Z err 1 e \x1b[31mred

STREAM is `out` or `err`. FLAGS is `-` or letters: `e` escaped (bytes that are no UTF-8 and control characters
stand as `\xNN`, a backslash is doubled), `c` cut by length: the line goes on in the next record of its stream,
`p` the same after a pause (readers join it again), `n` the stream ended without a newline, `k` a word of the
keeper itself. Laws: no byte is lost or made up; no control character but the tab gets into a file; a record is
never split over two files.

Source: spec 05 §3 (`logs --json`), 50 §2; cases S-23, S-24, S-25.
"""

import re
from typing import Final, Literal

import attrs

Stream = Literal["out", "err"]

PART_BYTES: Final = 16 * 1024  # a longer line is kept in parts: memory stays bounded, and 16 KiB is what others use
TAIL_BYTES: Final = 4  # the longest UTF-8 character

_CONTROL: Final = bytes([*range(9), *range(11, 32), 127])  # all but tab and newline
_C1: Final = re.compile("[\x80-\x9f]")  # an 8-bit CSI is a control character, too
_UNSAFE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\udc80-\udcff\\\\]")
_ESCAPED: Final = re.compile(rb"\\(\\|x[0-9a-fA-F]{2})")
_LINE: Final = re.compile(rb"(\S{20,40}) (out|err) (\d{1,18}) (-|[ecpnk]{1,5}) ?(.*)", re.DOTALL)


@attrs.frozen
class StoredLine:
    """One record as it stands in a file. `text` is the stored form, escaped where `esc`."""

    time: str
    stream: Stream
    run: int
    text: str
    esc: bool = False
    cont: bool = False
    pause: bool = False
    nonl: bool = False
    own: bool = False

    @property
    def data(self) -> bytes:
        """Give the bytes that the program wrote, without the newline."""
        return unescape(self.text) if self.esc else self.text.encode()


@attrs.frozen
class Cut:
    """What of the bytes at hand is ready to be stored.

    `consume` bytes are taken: first `lines` (whole lines with their newlines), then each of `parts` with its
    flag letter. The rest waits for more.
    """

    consume: int
    lines: bytes
    parts: tuple[tuple[bytes, str], ...] = ()


def escape(data: bytes) -> tuple[str, bool]:
    r"""Make text that is safe to show: (text, whether it was escaped).

    Text without a need stays as it is, with single backslashes; else control characters (tab aside) and bytes
    that are no UTF-8 become `\xNN` and each backslash is doubled.
    """
    text = data.decode("utf-8", "surrogateescape")
    if not any(found.group() != "\\" for found in _UNSAFE.finditer(text)):
        return text, False
    return _UNSAFE.sub(_escape_one, text), True


def _escape_one(found: re.Match[str]) -> str:
    char = found.group()
    if char == "\\":
        return "\\\\"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def unescape(text: str) -> bytes:
    """Tell the bytes back from an escaped text."""
    return _ESCAPED.sub(_unescape_one, text.encode())


def _unescape_one(found: re.Match[bytes]) -> bytes:
    what = found.group(1)
    return b"\\" if what == b"\\" else bytes([int(what[1:], 16)])


def incomplete_tail(data: bytes) -> int:
    """Count the bytes at the end that begin a UTF-8 character and don't finish it (0 to 3)."""
    for back in range(1, min(TAIL_BYTES, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 0
            return back if back < need else 0
    return 0


def cut(data: bytes, *, closed: bool = False, pause: bool = False, part_bytes: int = PART_BYTES) -> Cut:
    """Decide what of `data` can be stored now.

    Whole lines always; of the rest, parts of `part_bytes` while it is longer than that; with `closed` (no writer
    is left) everything, marked `n`; with `pause` (nothing came for a while) everything but an unfinished
    character, marked `p`. A character of UTF-8 is never cut in two.
    """
    ready = data.rfind(b"\n") + 1
    at = ready
    parts: list[tuple[bytes, str]] = []
    while len(data) - at > part_bytes:
        piece = data[at : at + part_bytes]
        piece = piece[: len(piece) - incomplete_tail(piece)]
        parts.append((piece, "c"))
        at += len(piece)
    rest = data[at:]
    if rest and closed:
        parts.append((rest, "n"))
        at = len(data)
    elif rest and pause:
        rest = rest[: len(rest) - incomplete_tail(rest)]
        if rest:
            parts.append((rest, "p"))
            at += len(rest)
    return Cut(at, data[:ready], tuple(parts))


def _is_plain(lines: bytes, part_bytes: int) -> bool:
    """Whether whole lines can be stored as they are: no line too long, nothing to escape."""
    if len(lines.translate(None, _CONTROL)) != len(lines):
        return False
    at = 0
    while len(lines) - at > part_bytes + 1:
        newline = lines.rfind(b"\n", at, at + part_bytes + 1)
        if newline < 0:
            return False
        at = newline + 1
    if lines.isascii():
        return True
    try:
        return _C1.search(lines.decode()) is None
    except UnicodeDecodeError:
        return False


def format_record(data: bytes, flag: str, *, time: str, stream: str, run: int) -> bytes:
    """Give one stored line, with its newline. `flag` is "" or letters of the file docstring but `e`."""
    text, esc = escape(data)
    flags = ("e" if esc else "") + flag
    return f"{time} {stream} {run} {flags or '-'} {text}\n".encode()


def format_cut(piece: Cut, *, time: str, stream: str, run: int, part_bytes: int = PART_BYTES) -> bytes:
    """Give all stored lines of a cut. Costs some 2 ns a byte where nothing has to be escaped or split."""
    out: list[bytes] = []
    lines = piece.lines
    if lines and _is_plain(lines, part_bytes):
        prefix = f"{time} {stream} {run} - ".encode()
        out += [prefix, lines[:-1].replace(b"\n", b"\n" + prefix), b"\n"]
    elif lines:
        for line in lines[:-1].split(b"\n"):
            split = cut(line, part_bytes=part_bytes)
            out += [format_record(part, flag, time=time, stream=stream, run=run) for part, flag in split.parts]
            out.append(format_record(line[split.consume :], "", time=time, stream=stream, run=run))
    out += [format_record(part, flag, time=time, stream=stream, run=run) for part, flag in piece.parts]
    return b"".join(out)


def parse_line(raw: bytes) -> StoredLine | None:
    """Read one line of a file, with or without its newline; None for what is no record (a torn or foreign line)."""
    found = _LINE.fullmatch(raw.removesuffix(b"\n"))
    if found is None:
        return None
    time, stream, run, flags, text = found.groups()
    return StoredLine(
        time=time.decode("ascii", "replace"),
        stream="out" if stream == b"out" else "err",
        run=int(run),
        text=text.decode("utf-8", "replace"),
        esc=b"e" in flags,
        cont=b"c" in flags,
        pause=b"p" in flags,
        nonl=b"n" in flags,
        own=b"k" in flags,
    )
