"""`kite audit verify`: is the audit trail whole; `kite audit show`: its newest rows. Source: spec 80 §3, case X-35.

Reads the files alone, so that it works whether anything runs or not.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kite_modules.cli.fail import NO, NOTHING, OK, PERMISSION, Failure, complain, say, say_json
from kite_modules.cli.instance import find_state_dir, judge

if TYPE_CHECKING:
    from kite_modules.audit.trail import Places

LINES = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", choices=("verify", "show"), help="verify: find what was changed; show: newest rows")
    parser.add_argument("-n", type=int, default=LINES, metavar="N", dest="lines", help=f"show: so many rows ({LINES})")
    parser.add_argument("--event", default="", metavar="EVENT", help="show: only rows of events that begin with this")


def run(args: argparse.Namespace) -> int:
    """Judge or show the trail. 0 whole · 1 not whole · 3 there is none."""
    from kite_modules.audit.trail import Places

    state = find_state_dir(args.state_dir, args.config, os.environ, os.getcwd())
    judge(state)
    places = Places.of_instance(Path(state))
    if not places.rows.exists() and not places.head.exists():
        raise Failure(NOTHING, f"no audit trail in {state}", "an [audit] section in kite.toml begins one")
    try:
        return _verify(args, places) if args.what == "verify" else _show(args, places)
    except OSError as error:
        where = error.filename or places.rows
        raise Failure(PERMISSION, f"can't read {where}: {(error.strerror or '').lower()}") from None


def _verify(args: argparse.Namespace, places: Places) -> int:
    from kite_modules.audit.trail import verify

    found = verify(places)
    if args.json:
        shown: dict[str, Any] = {"ok": found.whole, "rows": found.rows, "head": found.head.hash}
        say_json({**shown, "row": found.row, "why": found.why, "file": str(places.rows)})
        return OK if found.whole else NO
    if not found.whole:
        complain(f"kite: the audit trail is not whole: row {found.row}: {found.why}")
        complain(f"rows before it are as they were written; the trail: {places.rows}")
        return NO
    say(f"{found.rows} rows, whole; the last one's hash is {found.head.hash}")
    if found.torn_bytes:
        say(f"behind them stand {found.torn_bytes} bytes of a row that was being written")
    return OK


def _show(args: argparse.Namespace, places: Places) -> int:
    from kite_modules.audit.trail import query

    rows = query(
        places.rows, wants=lambda row: str(row["event"]).startswith(args.event), limit=max(1, min(args.lines, 100_000))
    )
    if args.json:
        say_json({"rows": rows})
        return OK
    for row in rows:
        data = json.dumps(row["data"], ensure_ascii=False)
        say(f"{row['seq']:>6} {row['at'][:19].replace('T', ' ')} {row['event']} by {row['source']} {data}")
    return OK
