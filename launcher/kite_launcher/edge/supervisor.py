"""The entry of `up`: takes the locks, ends what is left, opens the port, runs the instance, and leaves nothing.

`run` returns the exit code of 05 §3. Everything that a start needs is had before the first child exists, so that a
refusal leaves no half instance. Source: spec 50 §1, §3; 05 §3, §5.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

import trio

from kite_launcher.core.launch import (
    EXIT_NO,
    EXIT_OK,
    EXIT_PERMISSION,
    EXIT_RUNNING,
    EXIT_UNAVAILABLE,
    LaunchOptions,
    RefusedError,
)
from kite_launcher.core.proc import Proc, ancestors
from kite_launcher.core.records import Holder, render_launch
from kite_launcher.core.spec import InstanceSpec
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.leftovers import clean_up as end_leftovers
from kite_launcher.edge.listen import Listener, open_listener
from kite_launcher.edge.processes import ProcFs, own_identity
from kite_launcher.edge.statedir import StateDir

HOLDER_WAIT_S: Final = 1.0  # another launcher may be about to write who it is
FDS_BASE: Final = 96
FDS_PER_UNIT: Final = 8  # pidfd, notify socket, pipes held with the keeper, and a start's own three


def run(spec: InstanceSpec, options: LaunchOptions) -> int:
    """Run the instance until it ends. Returns the exit code; a refusal is already told on stderr."""
    umask = os.umask(0o077)
    terminal = not options.detached and sys.stderr is not None
    journal = Journal(form=spec.logging.format, terminal=terminal)
    try:
        nofile = _raise_nofile(spec)
        state = StateDir.open(options.state_dir)
    except RefusedError as refused:
        return _tell(refused)
    try:
        return trio.run(_main, spec, options, state, journal, umask, nofile)
    except RefusedError as refused:
        return _tell(refused)
    except BaseExceptionGroup as group:
        ours, rest = group.split(RefusedError)
        if ours is None or rest is not None:
            raise
        return _tell(_first(ours))
    finally:
        state.close()


def clean_up(state_dir: str) -> dict[str, Any]:
    """End what a dead launcher left (`down` without a launcher). Returns `{text, exit}`."""
    os.umask(0o077)
    state = StateDir.open(state_dir)
    try:
        return trio.run(_clean_only, state)
    finally:
        state.close()


async def _clean_only(state: StateDir) -> dict[str, Any]:
    if not state.lock_directory():
        raise RefusedError(EXIT_RUNNING, "a launcher is starting", "try again in a moment")
    journal = Journal(terminal=False)
    processes = ProcFs(state.instance_mark())
    refused = await end_leftovers(state, processes, journal, spare=_spare(processes))
    _remove_traces(state)
    if refused:
        return {"text": "refuses to die: " + ", ".join(refused), "exit": EXIT_NO}
    return {"text": "ended what was left", "exit": EXIT_OK}


async def _main(
    spec: InstanceSpec, options: LaunchOptions, state: StateDir, journal: Journal, umask: int, nofile: tuple[int, int]
) -> int:
    from kite_launcher.edge.launcher import Launcher, Setting

    _lock(state)
    listener, refused = _try_listen(spec)
    try:
        holder = _hold(state)
        mark = state.instance_mark()
        state.sweep()
    except OSError as error:
        raise _unwritable(state, error) from error
    processes = ProcFs(mark)
    left = await end_leftovers(state, processes, journal, spare=_spare(processes))
    if left:
        raise RefusedError(EXIT_NO, "an earlier instance refuses to die: " + ", ".join(left), "end that first")
    if listener is None:
        # The port may have been held by what was just ended.
        listener, refused = _try_listen(spec)
    if listener is None:
        assert refused is not None, "no listener means a refusal"
        raise refused
    try:
        _remove_traces(state)
        state.write("launch.json", _launch(spec, options, holder))
    except OSError as error:
        raise _unwritable(state, error) from error
    setting = Setting(
        spec=spec,
        options=options,
        state=state,
        journal=journal,
        processes=processes,
        listener=listener,
        mark=mark,
        holder=holder,
        umask=umask,
        nofile=nofile,
    )
    return await Launcher(setting).run()


def _lock(state: StateDir) -> None:
    """Take the directory's lock, or say who has it. Raises RefusedError 75."""
    if state.lock_directory():
        return
    raise _running(state)


def _running(state: StateDir) -> RefusedError:
    deadline = time.monotonic() + HOLDER_WAIT_S
    holder = None
    while holder is None and time.monotonic() < deadline:
        try:
            holder = state.read_holder()
        except OSError:
            break
        if holder is None:
            time.sleep(0.02)
    who = f"pid {holder.pid}, since {holder.since}" if holder is not None else "its lock file was removed"
    return RefusedError(EXIT_RUNNING, f"already running ({who})", "`kite status` shows it, `kite down` stops it")


def _hold(state: StateDir) -> Holder:
    """Take `instance.lock`. Raises RefusedError 75, OSError."""
    me = own_identity()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    holder = Holder(me.pid, me.start_ticks, boot_id, datetime.now(UTC).isoformat(timespec="milliseconds"))
    if not state.lock_instance(holder):
        raise _running(state)
    return holder


def _try_listen(spec: InstanceSpec) -> tuple[Listener | None, RefusedError | None]:
    try:
        return open_listener(spec.kernel, os.environ), None
    except RefusedError as refused:
        return None, refused


def _spare(processes: ProcFs) -> set[int]:
    """Return whom a clean-up never touches: ourselves and our ancestors, unless they are of this instance.

    The watchdog that started us is one of ours: it is the first to go.
    """
    snapshot = processes.look()
    return {pid for pid in ancestors(snapshot, os.getpid()) if pid == os.getpid() or not _is_marked(snapshot.get(pid))}


def _is_marked(row: Proc | None) -> bool:
    return row is not None and row.module is not None


def _launch(spec: InstanceSpec, options: LaunchOptions, holder: Holder) -> bytes:
    return render_launch(
        argv=options.restart_argv,
        cwd=spec.folder,
        env_names=os.environ,
        holder=holder,
        config=spec.path,
        state_dir=options.state_dir,
    )


def _remove_traces(state: StateDir) -> None:
    """Remove what only a living instance has: sockets and token files."""
    state.remove("launcher.sock")
    try:
        names = os.listdir(state.near("tokens"))
    except OSError:
        return
    for name in names:
        state.remove(f"tokens/{name}")


def _raise_nofile(spec: InstanceSpec) -> tuple[int, int]:
    """Allow ourselves the descriptors that this instance needs; returns the caller's limits. Raises RefusedError 69."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    units = sum(len(module.instances()) for module in spec.modules.values() if module.enabled)
    need = FDS_BASE + FDS_PER_UNIT * units
    if hard != resource.RLIM_INFINITY and hard < need:
        raise RefusedError(
            EXIT_UNAVAILABLE,
            f"{units} modules need {need} descriptors, the limit is {hard} (ulimit -Hn)",
            "raise the limit or split the instance",
        )
    wanted = max(soft, min(65536, hard) if hard != resource.RLIM_INFINITY else 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, hard


def _unwritable(state: StateDir, error: OSError) -> RefusedError:
    where = f"{state.path}/{error.filename}" if error.filename else state.path
    return RefusedError(
        EXIT_PERMISSION, f"{where}: {error.strerror} (errno {error.errno})", "choose another with --state-dir"
    )


def _tell(refused: RefusedError) -> int:
    for line in refused.refusal.lines or (refused.refusal.line(),):
        print_line(line)
    return refused.refusal.exit


def print_line(line: str) -> None:
    """Write one line to stderr; nobody there is no fault."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"kite-launch: {line}\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _first(group: BaseExceptionGroup[RefusedError]) -> RefusedError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("a group is never empty")
