"""Makes what a child is started with: environment, descriptors, its own directory and files.

Descriptors of a module: 0 (/dev/null), 1, 2, its token's, its lock's, nothing else. The lock is held by the tree and
by nobody else, so that it is free exactly when nothing of the last run is left.
Source: spec 05 §4, §5; spec 00 §7, §12, §31; cases S-60, S-83, S-84, S-87.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import resource
from collections.abc import Mapping
from typing import Any, Final

from kite_launcher.core.child import SIGNALS
from kite_launcher.core.child_env import Handed, child_env
from kite_launcher.core.keeper_orders import SpawnOrder
from kite_launcher.core.launch import EXIT_UNAVAILABLE, RefusedError
from kite_launcher.core.spec import InstanceSpec, ModuleSpec
from kite_launcher.core.unit_spec import UnitSpec
from kite_launcher.edge.house import Prepared
from kite_launcher.edge.listen import Listener
from kite_launcher.edge.notify import NotifyRoom
from kite_launcher.edge.statedir import StateDir
from kite_launcher.edge.tokens import TokenTable, token_pipe

FIRST_FD: Final = 3
WATCHDOG: Final = "watchdog"
# LISTEN_PID must be the kernel's own pid, which nobody knows before it exists: it says so itself.
_KERNEL: Final = (
    "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); from kite_kernel.main import main; sys.exit(main())"
)


class OrderMaker:
    """Prepares the starts of one instance; `spec`, `listener` and `python` may change over a reload."""

    def __init__(
        self,
        *,
        spec: InstanceSpec,
        state: StateDir,
        mark: str,
        tokens: TokenTable,
        listener: Listener,
        notify: NotifyRoom,
        environ: Mapping[str, str],
        python: str,
        umask: int,
        nofile: tuple[int, int],
    ) -> None:
        self.spec, self.listener, self.python = spec, listener, python
        self._state, self._mark, self._tokens, self._notify = state, mark, tokens, notify
        self._environ, self._umask, self._nofile = dict(environ), umask, nofile
        self.notify_paths: dict[str, str] = {}

    def prepare(self, unit: UnitSpec) -> Prepared:
        """Return what starts this unit; the caller closes it in every case. Raises RefusedError, OSError."""
        fds: list[int] = []
        try:
            folder = self._folder(unit.name)
            if unit.role == "kernel":
                return self._kernel(unit, folder, fds)
            if unit.role == "watchdog":
                return self._watchdog(unit, folder, fds)
            assert unit.module is not None, "a unit of role module is made from one"
            return self._module(unit, unit.module, folder, fds)
        except BaseException:
            _close(fds)
            raise

    # -- the three kinds -------------------------------------------------------------------------------------

    def _module(self, unit: UnitSpec, module: ModuleSpec, folder: str, fds: list[int]) -> Prepared:
        owner = pwd.getpwnam(module.user) if module.user is not None else None
        if owner is not None and os.geteuid() == 0:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        options = self._write_options(unit.name, module.options, owner)
        targets: dict[int, int] = {}
        token_file = None
        if unit.speaks_kite:
            token = self._tokens.token(unit.name, "module")
            if module.token == "file":
                token_file = self._write_token(unit.name, token, owner)
            else:
                fds.append(token_pipe(token))
                targets[FIRST_FD] = fds[-1]
        token_fd = FIRST_FD if targets else None
        fds.append(self._lock(unit.name))
        targets[FIRST_FD + len(targets)] = fds[-1]
        handed = Handed(
            module_id=unit.name,
            instance=self._mark,
            state_dir=folder,
            url=self.listener.url,
            token_fd=token_fd,
            token_file=token_file,
            options_file=options,
            notify_socket=self.notify_paths.get(unit.name),
            watchdog_s=module.notify_watchdog_s,
            replica=unit.replica,
        )
        order = SpawnOrder(
            name=unit.name,
            argv=module.argv(self.python),
            env=child_env(self._environ, module.env, handed, inherit=module.inherit_env),
            cwd=module.cwd,
            role="module",
            fds=targets,
            stdin=module.stdin,
            umask=module.umask if module.umask is not None else self._umask,
            nice=module.nice or None,
            rlimits=self._limits(module.limits),
            user=module.user,
            ready_log=str(module.ready.value) if module.ready is not None and module.ready.kind == "log" else None,
            stop_signal=SIGNALS.get(module.stop_signal, 15),
            stop_timeout_s=module.stop_timeout_s,
        )
        return Prepared(order, fds, lambda: _close(fds))

    def _watchdog(self, unit: UnitSpec, folder: str, fds: list[int]) -> Prepared:
        spec = self.spec
        options = {
            "restarts": spec.watchdog.restarts,
            "within_s": spec.watchdog.within_s,
            "scale": spec.timing.scale,
            "debounce_s": spec.timing.debounce_s,
            "launcher_grace_s": spec.timing.launcher_grace_s,
            "shutdown_s": spec.timing.shutdown_s,
            "call_s": spec.timing.call_s,
            "health": {
                name: module.health_s if module.health_s is not None else False
                for module in spec.modules.values()
                for name in module.instances()
            },
        }
        file = self._write_options(unit.name, options, None)
        fds += [token_pipe(self._tokens.token(WATCHDOG, "watchdog")), self._lock(unit.name)]
        handed = Handed(WATCHDOG, self._mark, folder, self.listener.url, token_fd=FIRST_FD, options_file=file)
        argv = (self.python, "-P", "-m", "kite_watchdog", "--state-dir", self._state.path)
        return self._own(unit, argv, handed, {FIRST_FD: fds[0], FIRST_FD + 1: fds[1]}, fds)

    def _kernel(self, unit: UnitSpec, folder: str, fds: list[int]) -> Prepared:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        fds += [writer, self._lock(unit.name)]
        self._tokens.write()
        targets = {
            FIRST_FD: self.listener.socket.fileno(),
            FIRST_FD + 1: self._tokens.fd,
            FIRST_FD + 2: writer,
            FIRST_FD + 3: fds[1],
        }
        argv = (
            *(self.python, "-P", "-X", "faulthandler", "-c", _KERNEL),
            *("--config", self.spec.path, "--state-dir", self._state.path),
            *("--tokens-fd", str(FIRST_FD + 1), "--ready-fd", str(FIRST_FD + 2)),
            *("--log-format", self.spec.logging.format),
        )
        handed = Handed("kernel", self._mark, folder, self.listener.url)
        try:
            prepared = self._own(unit, argv, handed, targets, fds, {"LISTEN_FDS": "1"})
        except BaseException:
            os.close(reader)
            raise
        prepared.kernel_ready = reader
        return prepared

    def _own(
        self,
        unit: UnitSpec,
        argv: tuple[str, ...],
        handed: Handed,
        targets: dict[int, int],
        fds: list[int],
        more: Mapping[str, str] | None = None,
    ) -> Prepared:
        order = SpawnOrder(
            name=unit.name,
            argv=argv,
            env={**child_env(self._environ, {}, handed, inherit=True), **(more or {})},
            cwd=self.spec.folder,
            role=unit.role,
            fds=targets,
            umask=0o077,
            stop_timeout_s=unit.stop_timeout_s,
        )
        return Prepared(order, fds, lambda: _close(fds))

    # -- small things ----------------------------------------------------------------------------------------

    def uids(self, unit: UnitSpec) -> frozenset[int]:
        """Return the users whose word on the unit's notify socket counts."""
        found = {os.geteuid(), 0}
        if unit.module is not None and unit.module.user is not None:
            with contextlib.suppress(KeyError):
                found.add(pwd.getpwnam(unit.module.user).pw_uid)
        return frozenset(found)

    def _folder(self, name: str) -> str:
        with contextlib.suppress(FileExistsError):
            try:
                self._state.make_dir(f"modules/{name}")
            except OSError as error:
                # A directory that stands already serves on a read-only disk, too.
                if error.errno != errno.EROFS or not os.path.isdir(self._state.near(f"modules/{name}")):
                    raise
        return f"{self._state.path}/modules/{name}"

    def _write_options(
        self, name: str, options: Mapping[str, Any] | None, owner: pwd.struct_passwd | None
    ) -> str | None:
        if options is None:
            return None
        file = f"modules/{name}/options.json"
        self._write(file, json.dumps(options, ensure_ascii=True, default=str).encode("ascii"), owner)
        return f"{self._state.path}/{file}"

    def _write_token(self, name: str, token: str, owner: pwd.struct_passwd | None) -> str:
        self._state.make_dir("tokens")
        self._write(f"tokens/{name}", token.encode("ascii"), owner)
        return f"{self._state.path}/tokens/{name}"

    def _write(self, file: str, data: bytes, owner: pwd.struct_passwd | None) -> None:
        if self._state.read(file) != data:
            self._state.write(file, data, sync=False)
        if owner is not None and os.geteuid() == 0:
            os.chown(file, owner.pw_uid, owner.pw_gid, dir_fd=self._state.fd, follow_symlinks=False)

    def _lock(self, name: str) -> int:
        """Take the module's lock for the child to inherit. Raises RefusedError while somebody holds it."""
        file = f"modules/{name}/lock"
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=self._state.fd)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            fd = os.open(file, os.O_RDONLY | flags, dir_fd=self._state.fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            holders = ", ".join(str(pid) for pid in self.lock_holders(name)) or "unknown"
            text = f"a process of an earlier {name} still holds its lock (pid {holders})"
            raise RefusedError(EXIT_UNAVAILABLE, text, "end it, then start again") from error
        return fd

    def lock_holders(self, name: str) -> tuple[int, ...]:
        """Return who has the module's lock open, nobody when the lock is free."""
        file = f"modules/{name}/lock"
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._state.fd)
        except OSError:
            return ()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _open_by(os.fstat(fd))
        else:
            return ()
        finally:
            os.close(fd)

    def _limits(self, limits: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        # The launcher raised its own limit for all the descriptors it holds; children get what the caller had.
        found = {name: (value, value) for name, value in limits.items()}
        if self._nofile != resource.getrlimit(resource.RLIMIT_NOFILE):
            found.setdefault("nofile", self._nofile)
        return found


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _open_by(file: os.stat_result) -> tuple[int, ...]:
    """Return the pids that have this file open, as far as they can be seen; never our own."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        folder = f"/proc/{entry}/fd"
        try:
            for name in os.listdir(folder):
                other = os.stat(f"{folder}/{name}")
                if (other.st_ino, other.st_dev) == (file.st_ino, file.st_dev):
                    found.append(int(entry))
                    break
        except OSError:
            continue
    return tuple(found)
