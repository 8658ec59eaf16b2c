"""scripts/bench: Kite and yardstick hubs side by side in one run, one core for the server, one load client for all.

    scripts/bench [rpc|fanout|connect|idle|beside|slow|facts|streams|all ...] [--quick] [--rounds N] [--seconds S]

Ratios are medians over the rounds, taken in turn so that a slow minute of the machine meets every hub alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys

import suites
from servers import split_cores

HUBS = ("kite", "websockets", "picows")


def make_tokens() -> dict[str, str]:
    """One token for every name that a load uses."""
    names = ["bench-caller", "bench-callee", "bench-pub", "bench-deaf", "bench-wide"]
    names += [f"bench-sub-{n}" for n in range(100)]
    names += [f"conn-{n}" for n in range(suites.CONNECT_NAMES)]
    names += [f"idle-{n}" for n in range(suites.IDLE_MODULES)]
    return {name: secrets.token_hex(16) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("suites", nargs="*", default=["all"], metavar="SUITE", help=", ".join((*suites.ALL, "all")))
    parser.add_argument("--quick", action="store_true", help="short rounds; figures vary more")
    parser.add_argument("--rounds", type=int, help="rounds of each load (5; 3 with --quick)")
    parser.add_argument("--seconds", type=float, help="seconds of each round (3; 1 with --quick)")
    parser.add_argument("--hubs", default=",".join(HUBS), help="which hubs, by comma")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout; the tables go to stderr")
    asked = parser.parse_args()
    wanted = list(suites.ALL) if "all" in asked.suites else asked.suites
    hubs = asked.hubs.split(",")
    if unknown := sorted((set(wanted) - set(suites.ALL)) | (set(hubs) - set(HUBS))):
        parser.error(f"unknown: {', '.join(unknown)}")
    plan = suites.Plan(
        hubs=hubs,
        rounds=asked.rounds or (3 if asked.quick else 5),
        seconds=asked.seconds or (1.0 if asked.quick else 3.0),
        quick=asked.quick,
        tokens=make_tokens(),
    )
    server_core, load_core = split_cores()
    if server_core == load_core:
        print("only one core: server and load share it, figures say little", file=sys.stderr)
    os.sched_setaffinity(0, load_core)
    with contextlib.redirect_stdout(sys.stderr if asked.json else sys.stdout):
        rows = [row for name in wanted for row in suites.ALL[name](plan)]
    if asked.json:
        print(json.dumps({"schema": 1, "quick": asked.quick, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
