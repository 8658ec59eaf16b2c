"""How a child begins: forked, held at a gate until its record stands, then `exec` or one clear reason why not.

Between fork and exec the child closes everything that is not meant for it before it waits, so that it never
keeps somebody else's pipe or socket alive. The gate opens with one byte; its end (the keeper died, the launcher
died or changed its mind) ends the child before anything of the program ran.

Source: spec 00 §27, §29, §31; 05 §4; cases S-36, S-45, S-60, S-82, S-83.
"""

import contextlib
import errno
import fcntl
import json
import os
import pwd
import resource
import signal
from collections.abc import Iterable
from typing import Final, NoReturn

import attrs

from kite_launcher.core.keeper_orders import SpawnFailed, SpawnOrder
from kite_launcher.keeper.pipes import Output, open_output

ARG_TEXT_MAX_BYTES: Final = 32 * 4096  # MAX_ARG_STRLEN of Linux: one argument or one variable with its value
_GATE_OPEN: Final = b"g"


@attrs.frozen
class Account:
    """Whom a child runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@attrs.define
class Embryo:
    """A forked child at its gate. `stdin` is the writing end for `stdin = "pipe"`, else −1."""

    pid: int
    gate: int
    report: int
    out: Output
    err: Output
    stdin: int
    let_go: bool = False

    def open_gate(self) -> None:
        """Let it run."""
        self.let_go = True
        with contextlib.suppress(OSError):  # it died at the gate: the report says so
            os.write(self.gate, _GATE_OPEN)
        self.close_gate()

    def close_gate(self) -> None:
        """Let it end, unless it was let through already."""
        if self.gate >= 0:
            os.close(self.gate)
        self.gate = -1


def find_account(user: str) -> Account:
    """Look a user up by name or number. Raises: KeyError."""
    entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    return Account(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def fork_child(order: SpawnOrder, base: "BaseLimits", *, large_pipes: bool) -> Embryo | SpawnFailed:
    """Make the process and its pipes; the program waits for `open_gate`. Closes nothing of `order.fds`.

    Errors: SpawnFailed when descriptors or processes have run out, or the user is unknown.
    """
    try:
        account = find_account(order.user) if order.user is not None else None
    except KeyError:
        return SpawnFailed(order.name, 0, f"there is no user {order.user!r}")
    if bad := sorted(target for target in order.fds if target < 3):
        return SpawnFailed(order.name, errno.EINVAL, f"descriptor {bad[0]} of a child belongs to the log keeper")
    mine: list[int] = []
    try:
        owner = (account.uid, account.gid) if account is not None else None
        out = open_output(large=large_pipes, owner=owner)
        mine += [out.read, out.child]
        err = open_output(large=large_pipes, owner=owner)
        mine += [err.read, err.child]
        keep, give = _open_stdin(order)
        mine += [give] if keep < 0 else [keep, give]
        gate_read, gate = os.pipe2(os.O_CLOEXEC)
        mine += [gate_read, gate]
        report, report_write = os.pipe2(os.O_CLOEXEC)
        mine += [report, report_write]
        pid = os.fork()
    except OSError as problem:
        for fd in mine:
            os.close(fd)
        return SpawnFailed(order.name, problem.errno or 0, f"no new process: {problem.strerror}")
    if pid == 0:
        _child(order, account, base, {0: give, 1: out.child, 2: err.child, **order.fds}, gate_read, report_write)
    for fd in (give, out.child, err.child, gate_read, report_write):
        os.close(fd)
    os.set_blocking(report, False)
    return Embryo(pid, gate, report, out, err, keep)


def _open_stdin(order: SpawnOrder) -> tuple[int, int]:
    """Give (our end, the child's end). The child's end of a pipe is READ-WRITE: our death is no end of file for it."""
    if order.stdin == "null":
        return -1, os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    made = open_output(large=False)
    try:
        keep = os.open(f"/proc/self/fd/{made.read}", os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(made.read)
    return keep, made.child


def read_report(raw: bytes, order: SpawnOrder) -> SpawnFailed | None:
    """Understand what the child said before exec; None when it said nothing: it runs."""
    if not raw:
        return None
    try:
        said = json.loads(raw)
        number, step = int(said["errno"]), str(said["step"])
    except (ValueError, KeyError, TypeError):
        return SpawnFailed(order.name, 0, "the child ended before its program began")
    if number == errno.E2BIG:
        return SpawnFailed(order.name, number, _too_long(order))
    what = {"exec": order.argv[0] if order.argv else "", "cwd": order.cwd, "user": order.user or ""}.get(step, "")
    return SpawnFailed(
        order.name, number, f"{step} {what}: {os.strerror(number)}" if what else f"{step}: {os.strerror(number)}"
    )


def _too_long(order: SpawnOrder) -> str:
    arguments = [len(os.fsencode(text)) + 1 for text in order.argv]
    variables = [len(os.fsencode(f"{key}={value}")) + 1 for key, value in order.env.items()]
    longest = max([*arguments, *variables], default=0)
    return (
        f"argument list too long: {sum(arguments)} bytes of arguments and {sum(variables)} bytes of environment; "
        f"the longest single one has {longest} bytes (the system takes {ARG_TEXT_MAX_BYTES} in one)"
    )


@attrs.frozen
class BaseLimits:
    """What children get where the order is silent: as the keeper itself was started, before it helped itself."""

    nofile: tuple[int, int]

    @classmethod
    def take(cls) -> "BaseLimits":
        """Remember the limits of now, then raise our own number of descriptors as far as it goes."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return cls((soft, hard))


def _child(
    order: SpawnOrder,
    account: Account | None,
    base: BaseLimits,
    fds: dict[int, int],
    gate: int,
    report: int,
) -> NoReturn:
    """Run in the child: never returns. Only exec or the report leave it; no Python exit handler may run."""
    step = "descriptors"
    try:
        gate, report = _arrange(fds, gate, report)
        _reset_signals()
        if os.read(gate, 1) != _GATE_OPEN:
            os._exit(125)
        step = "session"
        os.setsid()
        step = "limits"
        for name, pair in {"nofile": base.nofile, **order.rlimits}.items():
            step = f"limit {name}"
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), pair)
        if order.nice is not None:
            step = "nice"
            os.setpriority(os.PRIO_PROCESS, 0, order.nice)
        if order.umask is not None:
            os.umask(order.umask)
        if account is not None:
            step = "user"
            os.setgroups(account.groups)
            os.setgid(account.gid)
            os.setuid(account.uid)
        step = "cwd"
        os.chdir(order.cwd)
        step = "exec"
        os.execvpe(order.argv[0], list(order.argv), dict(order.env))
    except BaseException as problem:
        number = getattr(problem, "errno", None) or errno.EINVAL
        with contextlib.suppress(OSError):
            os.write(report, json.dumps({"errno": number, "step": step}).encode())
    os._exit(126)


def _arrange(fds: dict[int, int], gate: int, report: int) -> tuple[int, int]:
    """Put every descriptor at its number and close all others; gate and report end above the highest one."""
    above = max(fds) + 1
    lifted = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for target, fd in fds.items()}
    gate = fcntl.fcntl(gate, fcntl.F_DUPFD_CLOEXEC, above)
    report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, above)
    for target, fd in lifted.items():
        os.dup2(fd, target, inheritable=True)
    _close_all_but({*fds, gate, report})
    return gate, report


def _close_all_but(keep: Iterable[int]) -> None:
    at = 0
    for fd in sorted(keep):
        if at < fd:  # an empty range is taken as an endless one
            os.closerange(at, fd)
        at = fd + 1
    os.closerange(at, 1 << 30)  # one close_range(2); the limit may be lower than a descriptor that is open


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
