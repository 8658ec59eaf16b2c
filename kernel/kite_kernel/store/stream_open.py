"""Opening a stream's log: what stands is proven, what no fsync had covered is cut and said, anything else is damage.

Source: spec 40-streams §2 (Durable), cases F-23, F-29, F-30.
"""

import json

from kite_kernel.store.files import Files
from kite_kernel.store.stream_index import SegmentIndex, decode_index, encode_index
from kite_kernel.store.stream_log import SCHEMA, Recovery, Retention, StreamLog
from kite_kernel.store.stream_segment import HEAD, LogDamaged, Scan, decode_head, scan_segment, segment_name


def open_log(files: Files, folder: str, *, fresh_epoch: str, retention: Retention) -> StreamLog:
    """Open a stream's log, or begin it with `fresh_epoch`; cut a torn tail and say so in `recovery`.

    Errors: LogDamaged (nothing was touched); OSError.
    """
    files.make_dir(folder)
    meta = _read_meta(files, folder)
    if meta is None:
        files.sync_dir(folder.rpartition("/")[0])
    epoch, floor = meta or (None, 0)
    firsts, head_epoch, cut_bytes = _drop_headless(files, folder, _segments_in(files, folder), floor)
    if epoch is not None and head_epoch not in (None, epoch):
        raise LogDamaged(f"{folder}: its segments are of another epoch than its meta.json")
    if floor and (not firsts or firsts[-1] < floor):
        raise LogDamaged(f"{folder}: the segment that begins with {floor} is missing")
    sealed, active, rebuilt = _read_segments(files, folder, firsts)
    log = StreamLog(files, folder, epoch or head_epoch or fresh_epoch, retention, sealed, active)
    if active is not None:
        cut_bytes += _cut_tail(files, folder, active)
    log.recovery = Recovery(cut_bytes, log.last_seq + 1, rebuilt)
    newest = firsts[-1] if firsts else 0
    if meta is None or floor < newest:
        log.write_meta(newest)
    return log


def _segments_in(files: Files, folder: str) -> list[int]:
    names = (name.removesuffix(".log") for name in files.names(folder) if name.endswith(".log"))
    return sorted(int(name) for name in names if name.isdigit())


def _read_segments(files: Files, folder: str, firsts: list[int]) -> tuple[list[SegmentIndex], Scan | None, int]:
    """Read what stands: the sealed ones by their index, the newest from end to end; all numbers must follow on."""
    sealed: list[SegmentIndex] = []
    active: Scan | None = None
    rebuilt = 0
    for first in firsts:
        if sealed and first != sealed[-1].last + 1:
            raise LogDamaged(f"{folder}: messages {sealed[-1].last + 1} to {first - 1} are missing")
        if first == firsts[-1]:
            active = scan_segment(files, f"{folder}/{segment_name(first)}", first)
        else:
            index, was_rebuilt = _open_sealed(files, folder, first)
            rebuilt += was_rebuilt
            sealed.append(index)
    return sealed, active, rebuilt


def _cut_tail(files: Files, folder: str, active: Scan) -> int:
    """Cut what stands behind the last proven record, for good, before anything is appended. Returns its bytes."""
    cut_bytes, active.cut_bytes = active.cut_bytes, 0
    if cut_bytes:
        file = files.open_append(f"{folder}/{segment_name(active.first)}")
        try:
            file.truncate(active.end)
            file.sync()
        finally:
            file.close()
    return cut_bytes


def _read_meta(files: Files, folder: str) -> tuple[str, int] | None:
    path = f"{folder}/meta.json"
    try:
        raw = bytes(files.view(path))
    except FileNotFoundError:
        return None
    try:
        meta = json.loads(raw)
        schema, epoch, floor = meta["schema"], str(meta["epoch"]), int(meta["floor"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{path} can't be read") from error
    if schema != SCHEMA:
        raise LogDamaged(f"{path}: written as version {schema}, this program reads version {SCHEMA}")
    return epoch, floor


def _drop_headless(files: Files, folder: str, firsts: list[int], floor: int) -> tuple[list[int], str | None, int]:
    """Check the heads; a last segment whose head was never safe is no segment yet. Returns what stands."""
    epoch: str | None = None
    cut = 0
    standing = list(firsts)
    for first in firsts:
        path = f"{folder}/{segment_name(first)}"
        head = decode_head(files.read(path, 0, HEAD.size))
        if head is not None and head[1] == first and epoch in (None, head[0]):
            epoch = head[0]
            continue
        if first != firsts[-1] or first <= floor:
            raise LogDamaged(f"{path}: its head is broken")
        cut += files.size_bytes(path)
        files.remove(path)
        files.sync_dir(folder)
        standing.remove(first)
    return standing, epoch, cut


def _open_sealed(files: Files, folder: str, first: int) -> tuple[SegmentIndex, int]:
    """Open a sealed segment by its index, or read it again when that doesn't fit."""
    path = f"{folder}/{segment_name(first)}"
    try:
        index = decode_index(files.view(path.removesuffix(".log") + ".idx"))
    except FileNotFoundError:
        index = None
    if index is not None and index.first == first and index.size_bytes == files.size_bytes(path):
        return index, 0
    scan = scan_segment(files, path, first)
    if scan.cut_bytes or scan.last < first:
        raise LogDamaged(f"{path}: sealed, and its end is broken")
    fresh = scan.index()
    files.write_whole(path.removesuffix(".log") + ".idx", encode_index(fresh))
    return fresh, 1
