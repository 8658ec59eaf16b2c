"""`kite backup new|ls|verify|restore`: snapshots of an instance's state. Source: spec 80 §3, 05-surface §3.

Works on the files themselves; only the facts of a running kernel are asked of it.
"""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kite_modules.cli.fail import NO, NOTHING, OK, USAGE, Failure, complain, say, say_json
from kite_modules.cli.instance import find_state_dir, judge, read_json
from kite_modules.cli.ownership import table

if TYPE_CHECKING:
    from kite_modules.backup.snapshot import Snapshot

ALREADY_RUNNING: Final = 75
COPY_S: Final = 300.0
ACTIONS: Final = ("new", "ls", "list", "verify", "restore")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    says = "new: take one and verify it; ls: list them; verify: restore into a scratch folder; restore: put one back"
    parser.add_argument("what", choices=ACTIONS, metavar="new|ls|verify|restore", help=says)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a snapshot; the newest one without")
    parser.add_argument("--dir", metavar="DIR", help="where the snapshots are (backups/ in the state directory)")


def run(args: argparse.Namespace) -> int:
    """Do one thing. 0 done · 1 it did not work, or a snapshot is not whole · 75 restore: the instance runs."""
    from kite_modules.backup.restore import Running
    from kite_modules.backup.snapshot import BackupError

    state = Path(find_state_dir(args.state_dir, args.config, os.environ, os.getcwd()))
    judge(str(state))
    told = read_json(str(state / "modules" / "backup" / "backup.json")) or {}
    root = Path(args.dir).absolute() if args.dir else Path(str(told.get("dir") or state / "backups"))
    try:
        if args.what == "new":
            return _new(args, state, root)
        if args.what in ("ls", "list"):
            return _list(args, root)
        return _verify(args, root) if args.what == "verify" else _restore(args, state, root)
    except Running as error:
        raise Failure(ALREADY_RUNNING, f"{error}; nothing was touched", "stop it first: `kite down`") from None
    except BackupError as error:
        raise Failure(NO, str(error)) from None


def _new(args: argparse.Namespace, state: Path, root: Path) -> int:
    from kite_modules.backup.restore import Running, stopped
    from kite_modules.backup.snapshot import alone, take

    if args.name:
        raise Failure(USAGE, "backup new: a snapshot is named by its time", "see `kite backup --help`")
    if not (state / "instance.id").exists() and not (state / "facts.db").exists():
        raise Failure(NOTHING, f"there is no state in {state} yet", "start it with `kite up -d`")
    now = datetime.datetime.now(tz=datetime.UTC)
    name, made_at = now.strftime("%Y%m%dT%H%M%S-%fZ"), now.isoformat(timespec="milliseconds")
    with alone(root):
        try:
            with stopped(state):
                made = take(state, root, name=name, made_at=made_at, facts=None)
        except Running:
            made = take(state, root, name=name, made_at=made_at, facts=_copy_of_facts(args, name))
        found = _prove(made)
    if found:
        raise Failure(NO, f"{name} was taken, but could not be verified: {found[0]}", f"it stands in {made.folder}")
    return _tell(args, made, "taken and verified")


def _copy_of_facts(args: argparse.Namespace, name: str) -> Path:
    from kite_modules.cli.connection import run_connected
    from kite_modules.sdk.client import Kite

    paths: list[str] = []

    async def command(kite: Kite) -> int:
        paths.append((await kite.call("fact.backup", {"name": name}, timeout=COPY_S))["path"])
        return OK

    run_connected(args, command)
    return Path(paths[0])


def _prove(snapshot: Snapshot) -> list[str]:
    from kite_modules.backup.check import prove

    return prove(snapshot, now=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds"))


def _list(args: argparse.Namespace, root: Path) -> int:
    from kite_modules.backup.snapshot import listed

    rows = [snapshot.told() for snapshot in listed(root)]
    if args.json:
        say_json({"snapshots": rows})
        return OK
    heads = ("SNAPSHOT", "MADE", "BYTES", "FILES", "VERIFIED")
    shown = [
        (row["name"], row["made_at"][:19], str(row["bytes"]), str(row["files"]), (row["verified_at"] or "no")[:19])
        for row in rows
    ]
    say("\n".join(table(heads, shown)))
    return OK


def _chosen(args: argparse.Namespace, root: Path) -> Snapshot:
    from kite_modules.backup.snapshot import listed, read

    found = listed(root)
    if args.name:
        if os.sep in args.name or args.name.startswith("."):
            raise Failure(USAGE, f"{args.name!r} is no snapshot's name", "see `kite backup ls`")
        if not (root / args.name).is_dir():
            raise Failure(USAGE, f"there is no snapshot {args.name!r} in {root}", "see `kite backup ls`")
        return read(root / args.name)
    if not found:
        raise Failure(NOTHING, f"there is no snapshot in {root}", "take one: `kite backup new`")
    return found[-1]


def _verify(args: argparse.Namespace, root: Path) -> int:
    from kite_modules.backup.snapshot import alone

    snapshot = _chosen(args, root)
    with alone(root):
        found = _prove(snapshot)
    if args.json:
        say_json({"name": snapshot.name, "ok": not found, "faults": found})
    elif not found:
        say(f"{snapshot.name}: whole; it was restored into a scratch folder and opened there")
    for fault in found if not args.json else ():
        complain(f"kite: {snapshot.name}: {fault}")
    return NO if found else OK


def _restore(args: argparse.Namespace, state: Path, root: Path) -> int:
    from kite_modules.backup.restore import restore

    snapshot = _chosen(args, root)
    stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%dT%H%M%S-%fZ")
    aside = restore(snapshot, state, stamp=stamp)
    if args.json:
        say_json({"name": snapshot.name, "restored_to": str(state), "before": str(aside)})
    else:
        say(f"{snapshot.name} is back in {state}; what stood there is in {aside.name}")
    return OK


def _tell(args: argparse.Namespace, snapshot: Snapshot, what: str) -> int:
    from kite_modules.backup.snapshot import read

    shown: dict[str, Any] = read(snapshot.folder).told()
    if args.json:
        say_json(shown)
    else:
        say(f"{shown['name']} {what}: {shown['files']} files, {shown['bytes']} bytes, in {shown['path']}")
    return OK
