"""The log of one durable stream: segments in one folder, appended in groups, each group safe before anyone hears of it.

    <state-dir>/streams/<name>/meta.json                   epoch, and the first seq of the newest segment that was safe
    <state-dir>/streams/<name>/00000000000000000001.log    a segment: head, records
    <state-dir>/streams/<name>/00000000000000000001.idx    what is known of a sealed one (a cache)

Laws
- A message is safe when `append` returns: written, fdatasync'ed, and its file's name synced.
- Recovery cuts only what no fsync had covered. Anything else that is broken is LogDamaged, and nothing is touched.
- After a failed fsync nothing is appended before the file was opened again, cut to what is safe, and proven.
- Whole segments are let go, the oldest first; numbers and epoch go on even when all are gone.

Every call blocks: a worker thread's. One thread appends at a time; `read` and `find` may run beside it.
Opening and recovery are `stream_open`.

Source: spec 40-streams §2 (Durable), 00-decisions §23 and §26, cases F-26, F-27, F-29.
"""

import json
from collections.abc import Sequence
from typing import Final

import attrs

from kite_kernel.store.files import AppendFile, Files, reason_of
from kite_kernel.store.stream_index import SegmentIndex, decode_index, encode_index, hash_id
from kite_kernel.store.stream_reading import id_at, place_of, read_messages
from kite_kernel.store.stream_record import encode_record
from kite_kernel.store.stream_segment import (
    LogDamaged,
    Scan,
    encode_head,
    new_scan,
    note_record,
    scan_segment,
    segment_name,
)

SCHEMA: Final = 1
SEGMENT_MAX_BYTES: Final = 67_108_864
"""Read whole at a start after a crash: about half a second."""

SEGMENT_MIN_BYTES: Final = 1024
SEGMENTS_KEPT: Final = 16
"""Retention lets whole segments go, so that a sixteenth of what is kept is the error."""


class LogFailed(Exception):
    """The group isn't safe. `reason` as in −32008; `outcome` is `not_sent` when nothing of it can ever come back."""

    def __init__(self, reason: str, outcome: str, why: str) -> None:
        """Keep what a publisher is told."""
        super().__init__(why)
        self.reason = reason
        self.outcome = outcome
        self.why = why


@attrs.frozen
class Retention:
    """How much is kept: bytes always, messages and age where given."""

    bytes: int
    messages: int | None = None
    age_ms: int | None = None


@attrs.frozen
class Entry:
    """One message to append. `seq` follows the one before it."""

    seq: int
    data: bytes
    message_id: bytes | None = None


@attrs.frozen
class Recovery:
    """What an opening found: how many bytes and segments without proof were cut from the end."""

    cut_bytes: int = 0
    cut_at_seq: int = 0
    rebuilt: int = 0


class StreamLog:
    """One durable stream on disk. Made by `stream_open.open_log`."""

    def __init__(
        self,
        files: Files,
        folder: str,
        epoch: str,
        retention: Retention,
        sealed: Sequence[SegmentIndex],
        active: Scan | None,
    ) -> None:
        """Take over what was read. `active` None: the next append begins a segment after the last sealed one."""
        self._files = files
        self._folder = folder
        self.epoch = epoch
        self._retention = retention
        self._sealed: tuple[SegmentIndex, ...] = tuple(sealed)
        self._active = active
        self._file: AppendFile | None = None
        self._suspect = False
        self._head_safe = 0
        self.recovery = Recovery()

    # ---- what is known

    @property
    def last_seq(self) -> int:
        """The last number that is safe; 0 when there was never any."""
        if self._active is not None:
            return self._active.last
        return self._sealed[-1].last if self._sealed else 0

    @property
    def first_seq(self) -> int:
        """The oldest number that is kept; `last_seq + 1` when none is."""
        sealed = self._sealed
        oldest = sealed[0].first if sealed else self._active.first if self._active else 1
        kept = self._retention.messages
        return oldest if kept is None else max(oldest, self.last_seq - kept + 1)

    @property
    def disk_bytes(self) -> int:
        """What the segments take on disk."""
        return sum(index.size_bytes for index in self._sealed) + (self._active.end if self._active else 0)

    @property
    def oldest_ms(self) -> int:
        """Wall clock time of the oldest kept segment's first message; 0 when nothing is kept."""
        if self._sealed:
            return self._sealed[0].oldest_ms
        return self._active.oldest_ms if self._active else 0

    def _path(self, first: int) -> str:
        return f"{self._folder}/{segment_name(first)}"

    # ---- writing

    def append(self, group: Sequence[Entry], *, now_ms: int) -> None:
        """Write the group and return once it is safe.

        Errors: LogFailed; nothing of the group is then in the log (`not_sent`), or its fate is unknown until the log
        has proven itself, which the next append does first.
        """
        if not group:
            return
        active, file = self._ready_to_append(now_ms)
        safe = self.last_seq
        records = [
            encode_record(seq=e.seq, time_ms=now_ms, safe_seq=safe, message_id=e.message_id, data=e.data) for e in group
        ]
        try:
            file.write(b"".join(records))
        except OSError as error:
            raise LogFailed(reason_of(error), self._take_back(file, active.end), str(error)) from error
        try:
            file.sync()
        except OSError as error:
            self._suspect = True
            raise LogFailed(reason_of(error), "unknown", str(error)) from error
        offset = active.end
        for entry, record in zip(group, records, strict=True):
            note_record(active, offset, entry.seq, now_ms, entry.message_id, len(record))
            offset += len(record)

    def _take_back(self, file: AppendFile, end: int) -> str:
        """Cut what a failed write left behind; return the outcome that is true then."""
        try:
            file.truncate(end)
            file.sync()
        except OSError:
            self._suspect = True
            return "unknown"
        return "not_sent"

    def _ready_to_append(self, now_ms: int) -> tuple[Scan, AppendFile]:
        """Return the segment to append to: proven after a failure, rolled when it is full."""
        try:
            if self._suspect:
                self._prove_again()
            if self._active is not None and self._is_full(self._active, now_ms):
                self.seal()
            if self._active is None:
                self._begin(self.last_seq + 1)
            if self._file is None:
                assert self._active is not None
                self._file = self._files.open_append(self._path(self._active.first))
        except OSError as error:
            raise LogFailed(reason_of(error), "not_sent", str(error)) from error
        assert self._active is not None
        return self._active, self._file

    @property
    def segment_bytes(self) -> int:
        """How large a segment may grow before the next begins; no group should be larger."""
        return max(SEGMENT_MIN_BYTES, min(SEGMENT_MAX_BYTES, self._retention.bytes // SEGMENTS_KEPT))

    def _is_full(self, active: Scan, now_ms: int) -> bool:
        kept = self._retention
        count = active.last - active.first + 1
        if count <= 0:
            return False
        if kept.messages is not None and count >= max(64, kept.messages // SEGMENTS_KEPT):
            return True
        if kept.age_ms is not None and now_ms - active.oldest_ms >= kept.age_ms // SEGMENTS_KEPT:
            return True
        return active.end >= self.segment_bytes

    def _begin(self, first: int) -> None:
        """Begin a segment, its head and its name safe. Errors: OSError, after which nothing has changed."""
        path = self._path(first)
        head = encode_head(self.epoch, first)
        file = self._files.open_append(path)
        try:
            if self._head_safe != first:  # else an earlier try came this far, and meta.json may count on it
                file.truncate(0)
                file.write(head)
                file.sync()
                self._files.sync_dir(self._folder)
                self._head_safe = first
            self.write_meta(first)
        except OSError:
            file.close()
            raise
        self._file, self._active = file, new_scan(first)

    def write_meta(self, floor: int) -> None:
        """Note that the segment which begins with `floor` is safe. Errors: OSError."""
        meta = {"schema": SCHEMA, "epoch": self.epoch, "floor": floor}
        self._files.write_whole(f"{self._folder}/meta.json", json.dumps(meta).encode())

    def seal(self) -> None:
        """End the active segment; the next append begins another. Its index is a cache, so its loss is no error."""
        active = self._active
        if active is None or active.last < active.first:
            return
        index = active.index()
        self._sealed = (*self._sealed, self._with_index_file(index))
        self._active = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _with_index_file(self, index: SegmentIndex) -> SegmentIndex:
        """Write the index beside its segment and use it from there, so that its ids needn't live in memory."""
        path = self._path(index.first).removesuffix(".log") + ".idx"
        try:
            self._files.write_whole(path, encode_index(index))
            return decode_index(self._files.view(path)) or index
        except OSError:
            return index

    def _prove_again(self) -> None:
        """After a failed fsync: a fresh descriptor, cut to what is safe, read from end to end, and sealed.

        Errors: OSError or LogFailed, and the log stays suspect.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._active is not None:
            path = self._path(self._active.first)
            file = self._files.open_append(path)
            try:
                file.truncate(self._active.end)
                file.sync()
            finally:
                file.close()
            try:
                proven = scan_segment(self._files, path, self._active.first)
            except LogDamaged as damage:
                raise LogFailed("damaged", "not_sent", str(damage)) from damage
            if proven.last != self._active.last:
                raise LogFailed("damaged", "not_sent", f"{path}: ends at {proven.last}, not {self._active.last}")
            self.seal()  # fresh pages for what comes; an empty one goes on with its head, which was safe
        self._suspect = False

    def distrust(self) -> None:
        """Let the next append prove the log first."""
        self._suspect = True

    # ---- retention

    def retain(self, *, now_ms: int) -> int:
        """Let the oldest segments go that retention no longer wants. Returns how many. Errors: OSError."""
        kept = self._retention
        age_limit = None if kept.age_ms is None else now_ms - kept.age_ms
        active = self._active
        if (
            active is not None
            and age_limit is not None
            and active.first <= active.last
            and active.newest_ms < age_limit
        ):
            self.seal()
            self._begin(self.last_seq + 1)
        gone = 0
        total = self.disk_bytes
        for at, index in enumerate(self._sealed):
            newer = self.last_seq - index.last
            is_last = at == len(self._sealed) - 1 and self._active is None
            if is_last or not (
                total > kept.bytes
                or (kept.messages is not None and newer >= kept.messages)
                or (age_limit is not None and index.newest_ms < age_limit)
            ):
                break
            total -= index.size_bytes
            gone += 1
        leaving, self._sealed = self._sealed[:gone], self._sealed[gone:]
        for index in leaving:
            path = self._path(index.first)
            self._files.remove(path)
            self._files.remove(path.removesuffix(".log") + ".idx")
        return gone

    # ---- reading

    def read(self, after: int, *, upto: int, bytes_max: int) -> list[tuple[int, bytes]] | None:
        """Read the messages after number `after`, up to `upto`, about `bytes_max` of them and at least one.

        Returns None when the next one is no longer kept. Errors: OSError; LogDamaged.
        """
        if after >= upto:
            return []
        if after + 1 < self.first_seq:
            return None
        active = self._active  # first: what is sealed meanwhile is then found in either
        place = place_of(self._sealed, active, after + 1)
        if place is None:
            return None
        return read_messages(self._files, self._path(place.first), place, after, upto=upto, bytes_max=bytes_max)

    def find(self, message_id: bytes) -> int | None:
        """Return the number under which `message_id` is kept, or None. Errors: OSError."""
        active = self._active
        if active is not None and (seq := active.ids.get(message_id)) is not None:
            return seq
        hashed = hash_id(message_id)
        for index in reversed(self._sealed):
            for seq in index.seqs_of(hashed):
                if id_at(self._files, self._path(index.first), index, seq) == message_id:
                    return seq
        return None

    def probe(self) -> None:
        """Find out whether the disk takes anything. Errors: OSError."""
        path = f"{self._folder}/probe"
        try:
            self._files.write_whole(path, bytes(4096))
        finally:
            self._files.remove(path)
            self._files.remove(path + ".new")

    def close(self) -> None:
        """Let go of the file. Everything acknowledged is safe already."""
        if self._file is not None:
            self._file.close()
            self._file = None
