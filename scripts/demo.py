#!/usr/bin/env python3
"""Starts the demo instance in front, waits until all is ready, says what runs and what to try, stops it at the end."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "modules" / "examples" / "kite.toml"
BIN = ROOT / ".venv" / "bin"
READY_S = 90.0  # a cold start on a slow machine; the usual one takes about two seconds
STOP_S = 60.0


def status() -> dict[str, Any] | None:
    """Return `status --json` of the demo, or None while there is none."""
    done = subprocess.run(
        [BIN / "kite-launch", "status", "--json", "--config", CONFIG],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=30,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return None
    return answer if answer.get("state") != "stopped" else None


def everything_ready(answer: dict[str, Any] | None) -> bool:
    return answer is not None and answer["state"] == "ok" and all(m["ready"] for m in answer["modules"])


def commands() -> list[tuple[str, str]]:
    """Return what to try next, as (command, what it shows); each works when pasted into any shell here."""
    here = Path.cwd()
    kite = shlex.quote(os.path.relpath(BIN / "kite", here))
    config = shlex.quote(os.path.relpath(CONFIG, here))
    return [
        (
            f"""{kite} --config {config} call greeter.greet name=Ada""",
            "one module answers by asking the other",
        ),
        (f"{kite} --config {config} stream sub ticks --count 5", "a live stream, resumable after any cut"),
        (f"{kite} --config {config} sub 'ticker.>' --count 3", "events as they happen"),
    ]


def screen(answer: dict[str, Any]) -> str:
    """Return the one screen that a new user sees."""
    rows = [
        ("launcher", "running", answer["launcher"]["pid"]),
        ("kernel", answer["kernel"]["state"], answer["kernel"]["pid"]),
        ("watchdog", answer["watchdog"].get("state", "running"), answer["watchdog"]["pid"]),
        *((m["name"], "ready" if m["ready"] else m["state"], m["pid"]) for m in answer["modules"]),
    ]
    width = max(len(name) for name, _, _ in rows)
    cells = [f"{name:<{width}}  {state:<7}  pid {pid:<8}" for name, state, pid in rows]
    half = (len(cells) + 1) // 2
    columns = zip_longest(cells[:half], cells[half:], fillvalue="")
    out = ["", f"Kite is up: {answer['url']}", ""]
    out += [f"  {left}  {right}".rstrip() for left, right in columns]
    out += ["", "Try, in another terminal:"]
    for command, why in commands():
        out += [f"  {command}", f"      {why}"]
    victim = next((m for m in answer["modules"] if m["name"] == "ticker"), answer["modules"][0])
    out += ["", f"Or kill a process (kill -9 {victim['pid']} is the {victim['name']}) and watch it come back."]
    kite = commands()[0][0].partition(" call ")[0]
    out += [f"The console for a browser: {kite} relay url  (first: … relay user add NAME)", "Ctrl+C stops all."]
    return "\n".join(out)


def wait_ready(launcher: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    until = time.monotonic() + READY_S
    answer = None
    while time.monotonic() < until and launcher.poll() is None:
        answer = status()
        if everything_ready(answer):
            return answer
        time.sleep(0.2)
    return answer


def stop(launcher: subprocess.Popen[bytes]) -> int:
    if launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
    try:
        return launcher.wait(STOP_S)
    except subprocess.TimeoutExpired:
        print("The launcher did not stop; it is killed.", file=sys.stderr)
        launcher.kill()
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__)
    parser.add_argument("--demo-seconds", type=float, metavar="N", help="stop after N seconds; exit 0 if all was ready")
    options = parser.parse_args()
    if status() is not None:
        print(f"The demo runs already. Stop it first: {BIN / 'kite'} down --config {CONFIG}", file=sys.stderr)
        return 75
    launcher = subprocess.Popen(
        [BIN / "kite-launch", "up", "--config", CONFIG],
        stdin=subprocess.DEVNULL if options.demo_seconds is not None else None,
    )
    # The terminal's Ctrl+C reaches the launcher, too: it stops, and this script ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: launcher.send_signal(signal.SIGTERM))
    answer = wait_ready(launcher)
    ready = everything_ready(answer)
    if ready and answer is not None:
        print(screen(answer), flush=True)
    elif launcher.poll() is None:
        print(
            f"Not everything is ready after {READY_S:.0f} s; ask: {BIN / 'kite'} status --config {CONFIG}",
            file=sys.stderr,
        )
    if options.demo_seconds is None:
        code = launcher.wait()
        if code < 0:
            print("The launcher was killed; the watchdog starts a fresh instance after 35 s.", file=sys.stderr)
        return code if code >= 0 else 1
    try:
        launcher.wait(options.demo_seconds)
    except subprocess.TimeoutExpired:
        ready = everything_ready(status()) and ready
    else:
        ready = False
    code = stop(launcher)
    return code if ready or code else 1


if __name__ == "__main__":
    sys.exit(main())
