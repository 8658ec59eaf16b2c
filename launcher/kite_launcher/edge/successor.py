"""The program that an upgrade turns the launcher into: `python -P -m kite_launcher.edge.successor --state-fd N`.

With `--trial` it only proves that it could: loads everything, reads the document and the configuration, exits 0.
Without, it goes on as the launcher of the running instance; when it can't, it turns back into the old program.
With `--guard` it is that old program, waiting beside the new one: it leaves when the new one stands, and takes its
place when that ended or did not stand in time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
from datetime import UTC, datetime
from typing import Final, NoReturn

import trio

from kite_launcher.core.launch import EXIT_BUG, EXIT_CONFIG, LaunchOptions, RefusedError
from kite_launcher.core.records import Holder, render_launch, render_lock
from kite_launcher.core.spec import InstanceSpec, Loaded, Mistake, Place
from kite_launcher.core.takeover import Takeover, parse_takeover
from kite_launcher.edge.config_file import Unreadable, load_file
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.launcher import Launcher, Setting
from kite_launcher.edge.listen import listener_of
from kite_launcher.edge.notify import ServiceManager
from kite_launcher.edge.processes import ProcFs, own_identity
from kite_launcher.edge.statedir import StateDir
from kite_launcher.edge.upgrading import STANDS, become

DOCUMENT_MAX_BYTES: Final = 64 << 20
STAND_S: Final = 30.0  # loading a new version on a busy machine; far below what a kernel waits for its launcher


def main() -> int:
    """Try, or take over. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="kite-launch (successor)")
    parser.add_argument("--state-fd", type=int, required=True)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--guard", type=int)
    parser.add_argument("--launcher", type=int, default=0)
    args = parser.parse_args()
    note = ""
    if args.guard is not None:
        found = _guard(args.state_fd, args.guard, args.launcher)
        if found is None:
            return 0
        note = found
    data = os.pread(args.state_fd, DOCUMENT_MAX_BYTES, 0)
    os.close(args.state_fd)
    try:
        takeover = parse_takeover(data)
        if note:
            takeover.note, takeover.rollback = note, None
            takeover.fds.pop("word", None)
        spec = _load(takeover.config)
    except (ValueError, RefusedError) as error:
        if args.trial:
            sys.stdout.write(f"{error}\n")
            return EXIT_CONFIG
        _turn_back(data, str(error))
    if args.trial:
        sys.stdout.write("ok\n")
        return 0
    return _go_on(spec, takeover, data)


def _guard(document: int, watch: int, launcher: int) -> str | None:
    """Wait for the word that the new launcher stands; None: it does. Else it is gone, and why is returned."""
    try:
        process = os.pidfd_open(launcher)
    except ProcessLookupError:
        process = -1  # it ended before we were loaded
    # Our own copy of the writing end would keep the pipe from ever ending.
    os.close(parse_takeover(os.pread(document, DOCUMENT_MAX_BYTES, 0)).fds["word"])
    ready, _, _ = select.select([watch], [], [], STAND_S)
    if ready and os.read(watch, 1) == STANDS:
        return None
    why = "the new launcher ended before it stood"
    if process >= 0:
        if not ready:
            why = f"the new launcher did not stand within {STAND_S:g} s"
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], STAND_S)
        os.close(process)
    return f"rolled back, the old launcher goes on: {why}"


def _load(config: str) -> InstanceSpec:
    loaded = _load_again(config)
    if loaded.spec is None:
        raise RefusedError(EXIT_CONFIG, loaded.mistakes[0].line(config))
    return loaded.spec


def _load_again(config: str) -> Loaded:
    found = load_file(config)
    if isinstance(found, Unreadable):
        return Loaded(None, (Mistake(Place(1, 1), found.why),))
    return found


def _go_on(spec: InstanceSpec, takeover: Takeover, data: bytes) -> int:
    try:
        setting = _setting(spec, takeover)
    except Exception as error:
        _turn_back(data, f"{type(error).__name__}: {error}")

    async def live() -> int:
        return await Launcher(setting).run()

    try:
        return trio.run(live)
    finally:
        setting.state.close()


def _setting(spec: InstanceSpec, takeover: Takeover) -> Setting:
    state = StateDir(takeover.state_dir, takeover.fds["state"])
    for name in ("state", "lock", "listener", "control"):
        os.set_inheritable(takeover.fds[name], False)
    holder = state.read_holder()
    if holder is None:
        raise ValueError("instance.lock can't be read")
    processes = ProcFs(takeover.mark)
    me = own_identity()
    if holder.pid != me.pid:
        holder = Holder(me.pid, me.start_ticks, processes.boot_id, datetime.now(UTC).isoformat(timespec="milliseconds"))
    state.adopt_locks(takeover.fds["lock"], holder)
    _sign(state, spec, takeover, holder)
    return Setting(
        spec=spec,
        options=LaunchOptions(
            state_dir=takeover.state_dir,
            load=lambda: _load_again(takeover.config),
            restart_argv=takeover.restart_argv,
            detached=takeover.detached,
        ),
        state=state,
        journal=Journal(form=spec.logging.format, terminal=not takeover.detached),
        processes=processes,
        listener=listener_of(takeover.fds["listener"], spec.kernel),
        mark=takeover.mark,
        holder=holder,
        umask=takeover.umask,
        nofile=takeover.nofile,
        takeover=takeover,
    )


def _sign(state: StateDir, spec: InstanceSpec, takeover: Takeover, holder: Holder) -> None:
    """Write who the launcher is now, where others look for it."""
    line = render_lock(holder)
    os.pwrite(takeover.fds["lock"], line, 0)
    os.ftruncate(takeover.fds["lock"], len(line))
    launch = render_launch(
        argv=takeover.restart_argv,
        cwd=spec.folder,
        env_names=os.environ,
        holder=holder,
        config=spec.path,
        state_dir=takeover.state_dir,
    )
    state.write("launch.json", launch)
    ServiceManager(os.environ.get("NOTIFY_SOCKET"), None).say(f"MAINPID={holder.pid}")


def _turn_back(data: bytes, why: str) -> NoReturn:
    """Become the old launcher again: it knows the document, since it wrote it."""
    takeover = parse_takeover(data)
    if takeover.rollback is None:
        sys.stderr.write(f"kite-launch: neither the new launcher nor the old one can go on: {why}\n")
        raise SystemExit(EXIT_BUG)
    argv, takeover.rollback = takeover.rollback, None
    takeover.note = f"rolled back, the old launcher goes on: {why}"
    become(argv, takeover)


if __name__ == "__main__":
    sys.exit(main())
