"""`upgrade`: a new launcher takes over what runs, in the same process, without a child noticing.

The new program is tried first in a process of its own: it must load, read the document and the configuration. Then
this process becomes the new one by exec; locks, port, control socket, tokens and notify sockets pass by descriptor,
everything else through memory. What goes wrong before the new one stands leads back to the old one by exec again.
Source: spec 05 §3; issue of the launcher, point 4.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio

from kite_launcher.core.launch import EXIT_NO, EXIT_OK, RefusedError
from kite_launcher.core.takeover import Takeover, dump_child
from kite_launcher.edge.attendance import Attendance
from kite_launcher.edge.control import PEER, Control
from kite_launcher.edge.instance import Instance
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.reaper import Reaper
from kite_launcher.edge.tokens import TokenTable
from kite_launcher.edge.wire import KernelWire

if TYPE_CHECKING:
    from kite_launcher.edge.launcher import Setting

TRIAL_S: Final = 30.0
QUIET_S: Final = 10.0  # starts that are under way are waited for
STANDS: Final = b"k"
ENTRY: Final = ("-P", "-m", "kite_launcher.edge.successor")


class Upgrading:
    """Hands this process over to another program."""

    def __init__(
        self,
        setting: Setting,
        instance: Instance,
        tokens: TokenTable,
        wire: KernelWire,
        file_changed: Callable[[], Awaitable[bool]],
        reaper: Reaper,
    ) -> None:
        self._setting, self._instance, self._tokens, self._wire = setting, instance, tokens, wire
        self._file_changed, self._reaper = file_changed, reaper

    async def run(self, params: dict[str, Any], attendance: Attendance, control: Control | None) -> dict[str, Any]:
        """Try the new program, then become it. Returns only when it was refused. Raises RefusedError."""
        python = params.get("python", sys.executable)
        if not isinstance(python, str) or control is None:
            raise RefusedError(EXIT_NO, "python: the path of an interpreter is needed")
        if await self._file_changed():
            raise RefusedError(EXIT_NO, "kite.toml has changed since", "`kite reload` first, then upgrade")
        if self._instance.stopping.is_set() or not self._instance.house.open:
            raise RefusedError(EXIT_NO, "the instance is starting or stopping", "try again in a moment")
        takeover = self._leave_behind(control)
        takeover.rollback = (sys.executable, *ENTRY)
        await self._try(python, takeover)
        quiet = trio.current_time() + QUIET_S
        units = self._instance.units
        await self._instance.house.changed.until(lambda: not any(unit.spawning for unit in units.values()), quiet)
        # From here to exec nothing may be awaited: what is written down stays true.
        takeover = self._leave_behind(control)
        takeover.rollback = (sys.executable, *ENTRY)
        self._instance.journal.info("upgrade: handing over", python=python)
        if attendance.terminal is not None:
            attendance.terminal.restore()
        try:
            become((python, *ENTRY), takeover)
        except OSError as error:
            raise RefusedError(EXIT_NO, f"{python}: {error.strerror}", "nothing was changed") from error

    def _leave_behind(self, control: Control) -> Takeover:
        setting, now = self._setting, trio.current_time()
        peer = PEER.get()
        state = setting.state
        return Takeover(
            config=setting.spec.path,
            state_dir=state.path,
            mark=setting.mark,
            url=self._instance.orders.listener.url,
            umask=setting.umask,
            nofile=setting.nofile,
            detached=setting.options.detached,
            restart_argv=setting.options.restart_argv,
            rollback=None,
            fds={
                "state": state.fd,
                "lock": state.lock_fd,
                "listener": self._instance.orders.listener.socket.fileno(),
                "control": control.fd,
                "tokens": self._tokens.fd,
            },
            notify={name: bound.fileno() for name, bound in self._instance.sockets.items()},
            tokens=self._tokens.dump(),
            wire=self._wire.dump(),
            units={name: dump_child(unit.child, now=now) for name, unit in self._instance.units.items()},
            answer=peer,
        )

    async def _try(self, python: str, takeover: Takeover) -> None:
        """Have the new program load itself and read everything. Raises RefusedError with its last words."""
        document, said = memory_file(takeover), b""
        command = [python, *ENTRY, "--state-fd", str(document), "--trial", "--state-dir", takeover.state_dir]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            async with self._reaper.process(command, pass_fds=(document,), **pipes) as process:
                with trio.move_on_after(TRIAL_S):
                    assert process.stdout is not None, "a pipe was asked for"
                    async for chunk in process.stdout:
                        said = (said + bytes(chunk))[-4096:]
                    await process.wait()
        except OSError as error:
            raise RefusedError(EXIT_NO, f"{python}: {error.strerror}", "nothing was changed") from error
        finally:
            os.close(document)
        if process.returncode != 0:
            words = said.decode("utf-8", "replace").strip().splitlines()
            last = words[-1] if words else f"it ended with {process.returncode} without a word"
            self._instance.journal.error("upgrade refused", why=last)
            raise RefusedError(
                EXIT_NO, f"the new launcher does not work: {last}", "the old one goes on, nothing changed"
            )


def memory_file(takeover: Takeover) -> int:
    """Return a descriptor of memory that holds the document, at its beginning; the caller closes it."""
    fd = os.memfd_create("kite-takeover", os.MFD_CLOEXEC)
    os.pwrite(fd, takeover.render(), 0)
    return fd


def become(argv: tuple[str, ...], takeover: Takeover) -> NoReturn:
    """Turn this process into another launcher. Returns never; raises OSError when exec fails (nothing changed).

    With `takeover.rollback` a guard of the old program is left beside it: when the new launcher ends before it says
    that it stands, the guard goes on in its place.
    """
    guarded = takeover.rollback is not None
    watch, word = os.pipe2(0) if guarded else (-1, -1)
    if guarded:
        takeover.fds["word"] = word
    document = memory_file(takeover)
    kept = [document, *takeover.fds.values(), *takeover.notify.values()]
    if takeover.answer is not None:
        kept.append(takeover.answer[0])
    for fd in kept:
        os.set_inheritable(fd, True)
    command = [*argv, "--state-fd", str(document), "--state-dir", takeover.state_dir]
    guard = 0
    try:
        if takeover.rollback is not None:
            old = [*takeover.rollback, "--state-fd", str(document), "--state-dir", takeover.state_dir]
            guard = os.posix_spawn(
                old[0], [*old, "--guard", str(watch), "--launcher", str(os.getpid())], dict(os.environ), setsigmask=()
            )
            os.close(watch)
        os.execve(command[0], command, dict(os.environ))
    except OSError:
        for fd in kept[1:]:
            os.set_inheritable(fd, False)
        os.close(document)
        if guarded:
            os.write(word, STANDS)  # the guard leaves
            os.close(word)
            takeover.fds.pop("word")
        if guard:
            os.waitpid(guard, 0)
        raise


def taken_over(takeover: Takeover, journal: Journal) -> None:
    """Say that the new launcher stands; whoever asked for it gets its answer."""
    journal.info("upgrade: taken over", note=takeover.note)
    word = takeover.fds.pop("word", -1)
    if word >= 0:
        with contextlib.suppress(OSError):
            os.write(word, STANDS)
        os.close(word)
    if takeover.answer is None:
        return
    fd, number = takeover.answer
    code = EXIT_NO if takeover.note else EXIT_OK
    text = takeover.note or "a new launcher has taken over; nothing was restarted"
    answer = {"jsonrpc": "2.0", "id": number, "result": {"text": text, "exit": code}}
    try:
        os.write(fd, json.dumps(answer).encode("ascii") + b"\n")
        os.close(fd)
    except OSError as error:
        journal.warning("whoever asked for the upgrade is gone", why=error.strerror)
