"""One stream of one process, from its pipe to its log: a turn at a time, so that all streams get theirs.

A turn looks at what stands in the pipe, stores what is ready and takes exactly that (see `journal`). What is
not ready, an unfinished line, stays in the pipe: the keeper holds no byte that its death could lose.

Source: spec 00 §28, 50 §2; cases S-21 to S-25.
"""

import fcntl
import os
import re
import select
import sys
import termios
from collections import deque
from typing import Final

import attrs

from kite_launcher.core.logline import PART_BYTES, Cut, cut, escape, format_cut, incomplete_tail
from kite_launcher.keeper.journal import Journal
from kite_launcher.keeper.pipes import PEEK_BYTES, Peeker, capacity
from kite_launcher.keeper.store import LogFile, LogStore, utc_stamp

PAUSE_S: Final = 1.0  # an unfinished line that rests so long is shown: a prompt waits for somebody
CHARACTER_S: Final = 5.0  # an unfinished character that rests so long is none
LOOK_AGAIN_S: Final = 0.1  # old kernels (5.5 to 5.13) don't always wake us when a pipe was not empty
TAIL_LINES: Final = 20
TAIL_CLIP_BYTES: Final = 1024
WATCH_CLIP_BYTES: Final = 4096


class RunTail:
    """What a run said last, in memory, and the line that somebody waits for."""

    def __init__(self, ready: str | None = None) -> None:
        self.lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.matches: dict[str, str] = {}
        self._watched: dict[str, re.Pattern[str]] = {}
        self._held = {"out": b"", "err": b""}  # the unfinished line, as far as a watcher may see it
        if ready is not None:
            self.watch(ready)

    def watch(self, regex: str) -> bool:
        """Wait for a line that holds this; lines that stand here already count. Raises: re.error.

        True when it is new and not here: earlier lines (`look_at_stored`) may hold it.
        """
        if regex in self.matches or regex in self._watched:
            return False
        self._watched[regex] = re.compile(regex)
        for line in list(self.lines):
            self._match(line)
        return regex in self._watched

    def look_at_stored(self, lines: list[bytes]) -> None:
        """Take lines of this run from its log, oldest first: what was said before this keeper lived."""
        for line in lines:
            self._match(line)
        if not self.lines:
            self.lines.extend(line[:TAIL_CLIP_BYTES] for line in lines[-TAIL_LINES:])

    def forget(self, regex: str) -> None:
        """Stop waiting for it."""
        self._watched.pop(regex, None)

    def saw(self, stream: str, piece: Cut) -> bool:
        """Take note of what was just stored. True when something that was waited for came."""
        text = self._held[stream] + piece.lines + b"".join(part for part, _ in piece.parts)
        whole = text.split(b"\n")
        finished, open_line = whole[:-1], whole[-1]
        if piece.parts and piece.parts[-1][1] == "n":
            finished, open_line = whole, b""
        self._held[stream] = open_line[-WATCH_CLIP_BYTES:]
        self.lines.extend(line[:TAIL_CLIP_BYTES] for line in finished[-TAIL_LINES:])
        if not self._watched:
            return False
        before = len(self.matches)
        for line in finished:
            self._match(line)
        if open_line:
            self._match(open_line)
        return len(self.matches) > before

    def last(self, n: int) -> list[str]:
        """Give the last lines, escaped; an unfinished one counts."""
        open_lines = [held[:TAIL_CLIP_BYTES] for held in self._held.values() if held]
        return [escape(line)[0] for line in [*self.lines, *open_lines][-n:]] if n > 0 else []

    def _match(self, line: bytes) -> None:
        text = line[:WATCH_CLIP_BYTES].decode("utf-8", "replace")
        for regex, pattern in list(self._watched.items()):
            if pattern.search(text):
                self.matches[regex] = text
                del self._watched[regex]


@attrs.define
class Turn:
    """What one turn did: how many bytes it took, whether it should have another at once, whether the stream is over."""

    taken: int = 0
    again: bool = False
    closed: bool = False
    matched: bool = False


def hung_up(fd: int) -> bool:
    """Whether no writer is left."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def waiting_bytes(fd: int) -> int:
    """Ask how many bytes stand in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def _smallest(data: bytes, piece: Cut, part_bytes: int) -> Cut:
    """Choose the least that can be stored of a piece: one line, or one part of a long one."""
    end = data.find(b"\n", 0, part_bytes + 1) + 1
    if end:
        return Cut(end, data[:end])
    if len(data) <= part_bytes:
        return piece
    part = data[:part_bytes]
    part = part[: len(part) - incomplete_tail(part)]
    return Cut(len(part), b"", ((part, "c"),))


class Reader:
    """The keeper's end of one pipe."""

    def __init__(self, fd: int, *, log: LogFile, stream: str, run: int, tail: RunTail) -> None:
        self.fd = fd
        self.log = log
        self.stream = stream
        self.run = run
        self.tail = tail
        self.inode = os.fstat(fd).st_ino
        self.look_at: float | None = None  # monotonic; when an unfinished line deserves another look
        self.look_armed = False
        self._open_part = False  # the last record of this stream said that its line goes on
        self._waiting_since = 0.0
        self._waiting = b""
        self._capacity = capacity(fd)

    def resume(self) -> None:
        """Learn from the log whether the line was cut in the middle when a former keeper died."""
        for line in self.log.last_lines():
            if line.run == self.run and line.stream == self.stream and not line.own:
                self._open_part = line.cont or line.pause
                return

    def turn(self, peeker: Peeker, journal: Journal, store: LogStore, *, now: float, flush: bool = False) -> Turn:
        """Store what is ready, at most 64 KiB; with `flush` an unfinished line, too. Never blocks.

        Raises: OSError only for a descriptor that is no pipe."""
        data = peeker.peek(self.fd)
        if data is None:
            self.look_at = None
            return Turn()
        part_bytes = min(PART_BYTES, self.log.policy.max_bytes // 5, self._capacity // 2)
        if data and b"\n" not in data and len(data) <= part_bytes and hung_up(self.fd):
            data = peeker.peek(self.fd) or b""  # its last words may have come between the two looks
            piece, closed = cut(data, closed=len(data) == waiting_bytes(self.fd), part_bytes=part_bytes), False
        else:
            piece, closed = self._ready_part(data, part_bytes, now, flush)
        if not piece.consume and not closed:
            return Turn()
        done = Turn(taken=piece.consume, again=piece.consume < len(data) or len(data) == PEEK_BYTES, closed=closed)
        if piece.consume or piece.parts:
            taken = self._store(data, piece, journal, part_bytes=part_bytes, now=now)
            done.taken = taken.consume
            done.again = done.again or taken.consume < piece.consume
            done.matched = self.tail.saw(self.stream, taken)
            store.lines += taken.lines.count(b"\n")
            store.bytes += taken.consume
        return done

    def _ready_part(self, data: bytes, part_bytes: int, now: float, flush: bool) -> tuple[Cut, bool]:
        """Decide what is stored now, and whether this was the end of the stream."""
        if not data:
            closing = ((b"", "n"),) if self._open_part else ()
            return Cut(0, b"", closing), True
        piece = cut(data, part_bytes=part_bytes)
        if piece.consume:
            self.look_at = None
            return piece, False
        if data != self._waiting:
            self._waiting, self._waiting_since = data, now
        rests_s = now - self._waiting_since
        if rests_s >= CHARACTER_S:
            piece = Cut(len(data), b"", ((data, "p"),))
        elif flush or rests_s >= PAUSE_S:
            piece = cut(data, pause=True, part_bytes=part_bytes)
        self.look_at = None if piece.consume else now + LOOK_AGAIN_S
        return piece, False

    def _store(self, data: bytes, piece: Cut, journal: Journal, *, part_bytes: int, now: float) -> Cut:
        """Store a piece, or as much of it as one file takes, and take exactly that from the pipe."""
        log = self.log
        if not log.ready(now=now):
            return self._drop(piece)
        chosen = self._shrink(data, piece, log.room_bytes, part_bytes)
        if chosen is None:
            if not log.make_room(log.room_bytes + 1, now=now):
                return self._drop(piece)
            chosen = self._shrink(data, piece, log.room_bytes, part_bytes)
        elif not log.make_room(len(chosen[1]), now=now):
            return self._drop(piece)
        if chosen is None:
            piece = _smallest(data, piece, part_bytes)
            chosen = piece, self._format(piece, part_bytes)
        piece, stored = chosen
        taken = data[: piece.consume]
        if taken:
            journal.promise(taken, log_name=log.name, log_inode=log.inode, size_before=log.size_bytes)
        log.append(stored, lines=piece.lines.count(b"\n"), raw_bytes=len(taken), now=now)
        if taken:
            os.readv(self.fd, journal.landing(len(taken)))
            journal.fulfil()
        self._note_end(piece)
        return piece

    def _shrink(self, data: bytes, piece: Cut, room: int, part_bytes: int) -> tuple[Cut, bytes] | None:
        """Choose as many records as fit into `room`, with their stored form; None when not one whole line does."""
        stored = self._format(piece, part_bytes)
        while len(stored) > room:
            if not piece.lines:
                if len(piece.parts) < 2:
                    return None
                piece = _smallest(data, piece, part_bytes)
            else:
                aim = len(piece.lines) if piece.parts else len(piece.lines) * room // len(stored)
                end = data.rfind(b"\n", 0, aim) + 1
                if end == 0 or end >= piece.consume:
                    return None
                piece = Cut(end, data[:end])
            stored = self._format(piece, part_bytes)
        return piece, stored

    def _format(self, piece: Cut, part_bytes: int) -> bytes:
        return format_cut(piece, time=utc_stamp(), stream=self.stream, run=self.run, part_bytes=part_bytes)

    def _drop(self, piece: Cut) -> Cut:
        """Take a piece that finds no place and count it."""
        if piece.consume:
            dropped = os.read(self.fd, piece.consume)
            self.log.count_lost(dropped.count(b"\n"), len(dropped))
        self._note_end(piece)
        return piece

    def _note_end(self, piece: Cut) -> None:
        if piece.parts:
            self._open_part = piece.parts[-1][1] in "cp"
        elif piece.lines:
            self._open_part = False
        self._waiting = b""

    def close(self) -> None:
        """Let go of the pipe."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
