"""`kite chaos`: hurts an instance on purpose and checks what must hold.

With `--scratch` an instance of its own is made in a temporary folder, with quick times; without, the instance that is
meant is hurt, so it asks for `--yes`. The same seed gives the same faults. Exit 0: every invariant held; 1: one did
not. Source: spec 60-watchdog; 05-surface §3.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kite_modules.cli.fail import NO, NOTHING, OK, USAGE, Failure, say, say_json

if TYPE_CHECKING:
    from kite_modules.chaos.look import Instance
    from kite_modules.chaos.run import Options, Report

# What a user's own instance is spared unless it is named: it costs all its modules a restart, or other people's disk.
RUDE: Final = ("kill launcher", "fill disk", "step clock")
QUICK: Final = 'launcher_grace = "12s"'  # of a scratch instance, before scaling: more faults in the same time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long faults come (60)")
    parser.add_argument("--seed", type=int, help="the same seed, the same faults; without: a fresh one, printed")
    parser.add_argument("--faults", metavar="LIST", help="comma-separated: `kill module,cut wire`; `?` lists them")
    parser.add_argument("--scratch", action="store_true", help="make an instance of its own in a temporary folder")
    parser.add_argument("--scale", type=float, default=0.1, help="[timing] scale of the scratch instance (0.1)")
    parser.add_argument("--launcher-kills", type=int, metavar="N", help="kill the launcher N times, in random phases")
    parser.add_argument("--timelines", metavar="NAMES", help="measure timelines of the specification, as ABCDEF")
    parser.add_argument("--full", action="store_true", help="all timelines at full length, then chaos")
    parser.add_argument("--keep", action="store_true", help="leave the scratch folder behind")
    parser.add_argument("--yes", action="store_true", help="really hurt the instance that is meant")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    from kite_modules.chaos.plan import CLASSES

    if args.faults == "?":
        for name in CLASSES:
            say(name)
        return OK
    if args.seconds < 0 or args.scale <= 0:
        raise Failure(USAGE, "--seconds and --scale must be positive")
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(4), "big")
    classes = _classes(args.faults)
    if args.scratch or args.full or args.timelines or args.launcher_kills:
        return _run_scratch(args, seed, classes)
    return _run_own(args, seed, classes)


def _classes(given: str | None) -> tuple[str, ...] | None:
    from kite_modules.chaos.plan import CLASSES

    if given is None:
        return None
    names = tuple(word.strip() for word in given.split(",") if word.strip())
    unknown = [name for name in names if name not in CLASSES]
    if unknown or not names:
        raise Failure(USAGE, f"no fault {unknown[0]!r}" if unknown else "no fault is named", "`--faults ?` lists them")
    return names


def _run_own(args: argparse.Namespace, seed: int, classes: tuple[str, ...] | None) -> int:
    from kite_modules.chaos.look import Instance, whole
    from kite_modules.chaos.plan import CLASSES
    from kite_modules.chaos.run import Options
    from kite_modules.cli.connection import target_of

    target = target_of(args)
    if target.state_dir is None:
        raise Failure(USAGE, "an instance's state directory is needed", "name it with --state-dir or --config")
    if not args.yes:
        raise Failure(
            USAGE,
            "this kills processes of a running instance on purpose",
            "say --yes to do it, or --scratch for an instance of its own",
        )
    instance = Instance(Path(target.state_dir))
    status = instance.status()
    if status is None or not whole(status):
        raise Failure(NOTHING, "the instance does not run, or is not well already", "see `kite status`")
    options = Options(
        seed=seed,
        seconds=args.seconds,
        scale=_scale_of(instance),
        classes=classes or tuple(name for name in CLASSES if name not in RUDE),
        modules=tuple(row["name"] for row in status["modules"] if row["state"] == "running"),
    )
    report = _chaos(instance, options, show=_shown(args), clock_file=None)
    report.unchecked["nothing left after the stop"] = "not stopped"
    return _verdict(args, report, [])


def _run_scratch(args: argparse.Namespace, seed: int, classes: tuple[str, ...] | None) -> int:
    from kite_modules.chaos.plan import CLASSES
    from kite_modules.chaos.run import Options
    from kite_modules.chaos.scratch import scratch

    # A TERM ends it as Ctrl+C does: the instance of its own is stopped and its folder removed.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    measured: list[Any] = []
    names = "ABCDEF" if args.full else (args.timelines or "").upper()
    if unknown := [name for name in names if name not in "ABCDEF"]:
        raise Failure(USAGE, f"no timeline {unknown[0]!r}", "there are A, B, C, D, E and F")
    if names:
        measured = _timelines(args, 1.0 if args.full else args.scale, names)
        if args.timelines and not args.full:
            return _verdict(args, None, measured)
    kills = args.launcher_kills
    chosen = ("kill launcher",) if kills else classes or CLASSES
    with scratch(
        scale=args.scale, timing=QUICK, small_disk="fill disk" in chosen, clock="step clock" in chosen, keep=args.keep
    ) as made:
        possible = [
            name
            for name in chosen
            if (name != "fill disk" or made.has_small_disk) and (name != "step clock" or made.clock_file)
        ]
        if args.keep:
            _shown(args)(f"folder {made.folder}")
        if trouble := made.up():
            raise Failure(NO, f"the scratch instance does not come up: {trouble}")
        options = Options(
            seed=seed,
            seconds=args.seconds,
            scale=args.scale,
            classes=possible,
            modules=("alpha", "beta", "plain"),
            durable=True,
            grace_s=12.0,
            free=("launcher", "alpha", "beta", "plain"),
            count=kills,
            early=bool(kills),
        )
        report = _chaos(
            made.instance,
            options,
            show=_shown(args),
            clock_file=made.clock_file,
            revive=made.up,
            judge_end=made.down,
        )
        report.notes += [f"not possible here: {name}" for name in chosen if name not in possible]
    return _verdict(args, report, measured)


def _timelines(args: argparse.Namespace, scale: float, names: str) -> list[Any]:
    from kite_modules.chaos.scratch import scratch
    from kite_modules.chaos.timelines import run_all

    with scratch(scale=scale, keep=args.keep) as made:
        if trouble := made.up():
            raise Failure(NO, f"the scratch instance does not come up: {trouble}")
        logging.getLogger("kite").setLevel(logging.CRITICAL)
        measured: list[Any] = _to_its_end(partial(run_all, made, scale, names, _shown(args)))
        return measured


def _to_its_end(function: Callable[[], Any]) -> Any:
    """Run it; Ctrl+C comes out as itself, in whatever group of errors it was wrapped."""
    import trio

    try:
        return trio.run(function)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise


def _shown(args: argparse.Namespace) -> Callable[[str], None]:
    """Where lines on the way go: with --json stdout is one document and nothing else."""
    return (lambda _: None) if args.json else say


def _chaos(
    instance: Instance,
    options: Options,
    *,
    show: Callable[[str], None],
    clock_file: Path | None,
    revive: Any = None,
    judge_end: Any = None,
) -> Report:
    from kite_modules.chaos.deeds import Hand
    from kite_modules.chaos.run import Chaos

    logging.getLogger("kite").setLevel(logging.CRITICAL)  # the witnesses' own ups and downs are no news here
    show(f"seed {options.seed}: {', '.join(options.classes)}")
    chaos = Chaos(instance, options, say=show, hand=partial(Hand, clock_file=clock_file), revive=revive)
    report: Report = _to_its_end(chaos.run)
    if judge_end is not None:
        trouble = judge_end()
        chaos.judge_end(instance.marked(), trouble)
    return report


def _scale_of(instance: Instance) -> float:
    """Read [timing] scale of a running instance from the kite.toml that launch.json names; 1 where it can't be read."""
    import json

    try:
        config = json.loads((instance.dir / "launch.json").read_bytes())["config"]
        scale = tomllib.loads(Path(config).read_text("utf-8")).get("timing", {}).get("scale", 1.0)
        return float(scale)
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0


def _verdict(args: argparse.Namespace, report: Report | None, measured: list[Any]) -> int:
    held = (report is None or report.held) and all(line.held for line in measured)
    if args.json:
        say_json({"held": held, **_as_json(report, measured)})
    elif report is not None:
        done = [row for row in report.faults if not row[2]]
        say(f"\n{len(done)} faults, seed {report.seed}")
        for note in report.notes:
            say(f"  {note}")
        for name, what in report.table():
            say(f"  {name:<30} {what}")
        for breach in report.breaches:
            say(f"  BROKEN after fault {breach.fault}: {breach.invariant}: {breach.evidence}")
    return OK if held else NO


def _as_json(report: Report | None, measured: list[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if measured:
        out["timelines"] = [
            {
                "name": line.name,
                "held": line.held,
                "measures": [
                    {"what": m.what, "promised_s": m.promised_s, "measured_s": m.measured_s, "held": m.held}
                    for m in line.measures
                ],
                "faults": line.faults,
            }
            for line in measured
        ]
    if report is not None:
        out |= {
            "seed": report.seed,
            "faults": [
                {"number": f.number, "what": f.what, "target": f.target, "whole_after_s": round(s, 3), "skipped": why}
                for f, s, why in report.faults
            ],
            "invariants": dict(report.table()),
            "breaches": [{"invariant": b.invariant, "evidence": b.evidence, "fault": b.fault} for b in report.breaches],
            "notes": report.notes,
        }
    return out
