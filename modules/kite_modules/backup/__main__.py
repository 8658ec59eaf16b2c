"""`python -m kite_modules.backup`: a snapshot so often, each verified by restoring it, old ones removed.

Source: spec 80 §3.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
from pathlib import Path
from typing import Any, Final

import trio

from kite_modules.backup.check import prove
from kite_modules.backup.options import Options
from kite_modules.backup.snapshot import DEFAULT_FOLDER, BackupError, Snapshot, alone, listed, prune, take
from kite_modules.sdk import CallError, Kite, Module, Refused, log

TOLD: Final = "backup.json"
"""Tells the command where this instance's snapshots are."""
COPY_S: Final = 300.0
AGAIN_S: Final = 60.0  # after one that failed, at the earliest
module = Module("backup", options=Options)


class Desk:
    """The one who takes snapshots; one at a time."""

    def __init__(self, kite: Kite, state_dir: Path, root: Path) -> None:
        self.kite = kite
        self.options: Options = kite.options
        self.state_dir = state_dir
        self.root = root
        self.why = ""  # the last one failed
        self._lock = trio.Lock()

    async def snapshot(self) -> dict[str, Any]:
        """Take one, prove it, remove old ones. Raises: BackupError, CallError."""
        async with self._lock:
            try:
                told = await self._snapshot()
            except (BackupError, CallError) as error:
                self.why = str(error)
                log.say(logging.ERROR, f"no snapshot: {error}")
                self.kite.publish_nowait("backup.failed", {"why": str(error)})
                raise
            self.why = ""
            log.say(logging.INFO, f"snapshot {told['name']} taken and verified")
            self.kite.publish_nowait("backup.taken", told)
            return told

    async def _snapshot(self) -> dict[str, Any]:
        now = datetime.datetime.now(tz=datetime.UTC)
        name = name_of(now)
        copied = await self.kite.call("fact.backup", {"name": name}, timeout=COPY_S)

        def work() -> dict[str, Any]:
            with alone(self.root):
                made = take(self.state_dir, self.root, name=name, made_at=iso(now), facts=Path(copied["path"]))
                found = prove(made, now=iso(datetime.datetime.now(tz=datetime.UTC)))
                if found:
                    raise BackupError(f"{name} could not be verified: {found[0]}")
                gone = prune(self.root, self.options.keep)
                return {**listed_one(self.root, name).told(), "removed": gone}

        return await trio.to_thread.run_sync(work)

    async def keep_on(self) -> None:
        """Take one whenever it is due: so long after the last one that stands there."""
        while True:
            await trio.sleep(self._due_in_s())
            try:
                await self.snapshot()
            except (BackupError, CallError):
                await trio.sleep(min(AGAIN_S, self.options.every))

    def _due_in_s(self) -> float:
        found = [snapshot for snapshot in listed(self.root) if snapshot.verified_at is not None]
        if not found:
            return 0.0
        try:
            made = datetime.datetime.fromisoformat(found[-1].made_at)
        except ValueError:
            return 0.0
        age_s = (datetime.datetime.now(tz=datetime.UTC) - made).total_seconds()
        # a wall clock that was put back must not stop the snapshots
        return min(self.options.every, max(0.0, self.options.every - age_s))


def listed_one(root: Path, name: str) -> Snapshot:
    """Return a snapshot of that name. Raises: BackupError."""
    for snapshot in listed(root):
        if snapshot.name == name:
            return snapshot
    raise BackupError(f"there is no snapshot {name} in {root}")


def name_of(now: datetime.datetime) -> str:
    """Return the name of a snapshot made now: names sort as their times do."""
    return now.strftime("%Y%m%dT%H%M%S-%fZ")


def iso(now: datetime.datetime) -> str:
    """Return a stamp as the manifest tells it."""
    return now.isoformat(timespec="milliseconds")


desks: list[Desk] = []


def desk() -> Desk:
    if not desks:
        raise Refused("the module is not ready yet", code=-1)
    return desks[0]


@module.method
async def new() -> dict[str, Any]:
    """Take a snapshot now; returns it once it was verified by restoring it."""
    try:
        return await desk().snapshot()
    except BackupError as error:
        raise Refused(str(error), code=-2) from None


@module.method(name="list")
async def list_snapshots() -> dict[str, Any]:
    """Return the snapshots, the oldest first."""
    found = await trio.to_thread.run_sync(listed, desk().root)
    return {"snapshots": [snapshot.told() for snapshot in found]}


@module.method
async def verify(name: str) -> dict[str, Any]:
    """Restore a snapshot into a scratch folder and open everything there."""
    root = desk().root

    def work() -> list[str]:
        with alone(root):
            return prove(listed_one(root, name), now=iso(datetime.datetime.now(tz=datetime.UTC)))

    try:
        found = await trio.to_thread.run_sync(work)
    except BackupError as error:
        raise Refused(str(error), code=-2) from None
    return {"name": name, "ok": not found, "faults": found}


@module.health
async def health() -> dict[str, Any]:
    """Degraded while the last try to take a snapshot failed."""
    if desks and desks[0].why:
        return {"status": "degraded", "why": f"no snapshot: {desks[0].why}"}
    return {"status": "ok"}


def prepare(own: Path, chosen: str) -> tuple[Path, Path]:
    """Return the instance's state directory and the folder of its snapshots, and tell the command of it."""
    own = own.absolute()
    state_dir = own.parent.parent if own.parent.name == "modules" else own
    root = state_dir / (chosen or DEFAULT_FOLDER)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    (own / TOLD).write_text(json.dumps({"schema": 1, "dir": str(root)}), "utf-8")
    return state_dir, root


async def main(kite: Kite) -> None:
    """Take snapshots until told to end."""
    options: Options = kite.options
    own = Path(os.environ.get("KITE_STATE_DIR") or ".")
    state_dir, root = await trio.to_thread.run_sync(prepare, own, options.dir)
    desks[:] = [Desk(kite, state_dir, root)]
    try:
        await desks[0].keep_on()
    finally:
        desks.clear()


if __name__ == "__main__":
    module.run(main)
