"""`python -m kite_modules.audit`: writes who asked for what, and every alarm, into the trail; answers about it.

Source: spec 80 §1 and §3, cases X-31, X-35.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections import deque
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from kite_modules.audit.chain import OWN_EVENTS, Head
from kite_modules.audit.mask import fit
from kite_modules.audit.options import Options
from kite_modules.audit.trail import FILE, HEAD_FILE, Places, Trail, query, verify
from kite_modules.sdk import Call, Event, Kite, Module, Refused, log

BATCH_MAX: Final = 256
EVENT_CHARS_MAX: Final = 200
LIMIT_MAX: Final = 1000
RETRY_S: Final = 1.0  # a full disk is looked at again so often
APPEND_S: Final = 10.0  # how long a caller of `append` waits for the disk
module = Module("audit", options=Options)


@attrs.define(eq=False)
class _Waiting:
    row: tuple[str, str, Any]
    done: trio.Event = attrs.field(factory=trio.Event)
    head: Head | None = None


@attrs.define(eq=False)
class Writer:
    """Rows that wait for the disk, in order and bounded; one task writes them, many with one sync."""

    trail: Trail
    queue_max: int
    waiting: deque[_Waiting] = attrs.field(factory=deque)
    lost: int = 0
    fault: str = ""
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    def offer(self, event: str, source: str, data: Any) -> _Waiting | None:
        """Put a row in line; None when the line is full: it is counted, and the trail will tell the number."""
        if len(self.waiting) >= self.queue_max:
            self.lost += 1
            return None
        row = _Waiting((event, source, fit(data)))
        self.waiting.append(row)
        self._arrived.set()
        return row

    async def run(self) -> None:
        """Write until cancelled; what is in line then is still written."""
        try:
            while True:
                while not self.waiting:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                if not await self._write_some():
                    await trio.sleep(RETRY_S)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * RETRY_S):
                while self.waiting and await self._write_some():
                    pass

    async def _write_some(self) -> bool:
        batch = [self.waiting[at] for at in range(min(len(self.waiting), BATCH_MAX))]
        lost = self.lost
        rows = [one.row for one in batch]
        if lost:
            rows.append((f"{OWN_EVENTS}lost", "audit", {"rows": lost, "why": "more came than the disk took"}))
        try:
            # Shielded: a thread can't be cancelled, and its rows must not be written twice.
            with trio.CancelScope(shield=True):
                head = await trio.to_thread.run_sync(self.trail.append, rows)
        except OSError as error:
            if self.fault != str(error.strerror):
                self.fault = str(error.strerror)
                log.say(logging.ERROR, f"the trail can't be written: {error.strerror}; rows wait for it")
            return False
        self.fault = ""
        self.lost -= lost
        for one in batch:
            self.waiting.popleft()
            one.head = head
            one.done.set()
        return True


desks: list[tuple[Writer, Places]] = []


def desk() -> tuple[Writer, Places]:
    if not desks:
        raise Refused("the trail is not open yet", code=-1)
    return desks[0]


@module.method
async def append(event: str, data: Any = None, *, call: Call) -> dict[str, int]:
    """Add a row; it is on stable storage when this answers, with the number of a row at or after it."""
    if not event or len(event) > EVENT_CHARS_MAX or event.startswith(OWN_EVENTS):
        raise Refused(f"event must be a name of 1 to {EVENT_CHARS_MAX} characters outside {OWN_EVENTS}*", code=-2)
    row = desk()[0].offer(event, call.caller, data)
    if row is None:
        raise Refused("too many rows wait for the disk", code=-3)
    with trio.move_on_after(APPEND_S):
        await row.done.wait()
    if row.head is None:
        raise Refused("the disk takes no rows just now; this one waits in line", code=-4)
    return {"seq": row.head.seq}


@module.method(name="query")
async def query_rows(
    event: str = "", source: str = "", text: str = "", since: str = "", before: int | None = None, limit: int = 100
) -> dict[str, Any]:
    """Return the newest rows, oldest first: of an event (or all that begin with it), a source, holding a text."""
    if not 1 <= limit <= LIMIT_MAX:
        raise Refused(f"limit must be 1 to {LIMIT_MAX}", code=-2)

    def wants(row: dict[str, Any]) -> bool:
        return (
            str(row["event"]).startswith(event)
            and (not source or row["source"] == source)
            and str(row["at"]) >= since
            and (not text or text in msgspec.json.encode(row["data"]).decode())
        )

    _, places = desk()
    rows = await trio.to_thread.run_sync(
        lambda: query(places.rows, wants=wants, limit=limit, before=before), abandon_on_cancel=True
    )
    return {"rows": rows}


@module.method(name="verify")
async def verify_trail() -> dict[str, Any]:
    """Judge the whole trail against its chain and the head kept elsewhere."""
    _, places = desk()
    found = await trio.to_thread.run_sync(verify, places, abandon_on_cancel=True)
    return {"ok": found.whole, "rows": found.rows, "row": found.row, "why": found.why, "head": found.head.hash}


@module.health
async def health() -> dict[str, Any]:
    """Degraded while rows wait for a disk that takes none, and once the trail was found damaged."""
    if not desks:
        return {"status": "degraded", "why": "the trail is not open yet"}
    writer = desks[0][0]
    damage = writer.trail.damage
    if not damage.whole:
        return {"status": "degraded", "why": f"the trail is damaged at row {damage.row}: kite audit verify"}
    if writer.fault:
        return {"status": "degraded", "why": f"the trail can't be written: {writer.fault}"}
    return {"status": "ok", "details": {"rows": writer.trail.head.seq, "waiting": len(writer.waiting)}}


def stamp() -> str:
    """Return the wall clock as rows tell it."""
    return datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def places_of(own: Path) -> Places:
    """Return where the trail of this module stands: its head two folders up, beside the instance's own files."""
    inside = own.parent.name == "modules"
    return Places(own / FILE, (own.parent.parent if inside else own) / HEAD_FILE)


def data_of(event: Event) -> Any:
    """Return an event's data; what no reader can hold is a row, too."""
    try:
        return event.data
    except (msgspec.DecodeError, RecursionError):
        return {"unreadable": True}


async def main(kite: Kite) -> None:
    """Open the trail and write what is heard."""
    options: Options = kite.options
    places = places_of(Path(os.environ.get("KITE_STATE_DIR") or "."))
    trail = await trio.to_thread.run_sync(lambda: Trail(places, stamp=stamp))
    writer = Writer(trail, options.queue)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            desks[:] = [(writer, places)]
            if not trail.damage.whole:
                found = {"row": trail.damage.row, "why": trail.damage.why}
                log.say(logging.ERROR, f"the trail is damaged at row {found['row']}: {found['why']}")
                kite.publish_nowait("audit.alarm", found)
            writer.offer(f"{OWN_EVENTS}begun", "audit", {"module_id": kite.module_id})
            async with kite.subscribe(*options.events, queue_max=options.queue) as events:
                async for event in events:
                    if event.lost:
                        writer.offer(f"{OWN_EVENTS}gap", "audit", {"events": event.lost, "why": "came too fast"})
                    writer.offer(event.name, event.source, data_of(event))
    finally:
        desks.clear()
        trail.close()


if __name__ == "__main__":
    module.run(main)
