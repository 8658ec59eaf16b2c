"""Joins the rooms of one running launcher, runs it, and takes it apart again in the opposite order.

The only place where the parts meet: keeper, wire, units, control socket, signals, terminal. Everything lives in one
nursery; when `Launcher.run` returns nothing of the instance is left, or what refused is named.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
from collections.abc import Collection
from typing import Any, Final

import attrs
import trio

from kite_launcher.core.keeper_orders import KeeperSettings
from kite_launcher.core.launch import EXIT_NO, EXIT_OK, EXIT_PERMISSION, LaunchOptions, RefusedError
from kite_launcher.core.proc import ancestors, descendants
from kite_launcher.core.records import Damaged, Holder, parse_processes, parse_wanted, render_wanted
from kite_launcher.core.report import Facts, status
from kite_launcher.core.spec import InstanceSpec
from kite_launcher.core.takeover import Takeover
from kite_launcher.edge.alarms import Alarms
from kite_launcher.edge.attendance import SIGNALS, Attendance
from kite_launcher.edge.commands import Commands
from kite_launcher.edge.control import Control, open_control
from kite_launcher.edge.guard import keep
from kite_launcher.edge.house import House
from kite_launcher.edge.instance import Instance
from kite_launcher.edge.journal import Journal
from kite_launcher.edge.keeper import KeeperHouse
from kite_launcher.edge.kernel_room import KernelRoom
from kite_launcher.edge.listen import Listener
from kite_launcher.edge.memory import watch_trees
from kite_launcher.edge.notify import NotifyRoom
from kite_launcher.edge.orders import OrderMaker
from kite_launcher.edge.processes import ProcFs
from kite_launcher.edge.reaper import Reaper, become_subreaper
from kite_launcher.edge.record_book import RecordBook
from kite_launcher.edge.reloading import Reloading
from kite_launcher.edge.statedir import StateDir
from kite_launcher.edge.tokens import OPERATOR, TokenTable
from kite_launcher.edge.upgrading import Upgrading, taken_over
from kite_launcher.edge.watchdog_room import WatchdogRoom
from kite_launcher.edge.wire import KernelWire

FILES_LOOK_S: Final = 1.0
PROOF_S: Final = 2.0


@attrs.frozen(eq=False)
class Setting:
    """What a launcher starts with. `umask` and `nofile` are the caller's, for the children.

    `takeover` is what an earlier image of this process left to it (an upgrade), None for a fresh start.
    """

    spec: InstanceSpec
    options: LaunchOptions
    state: StateDir
    journal: Journal
    processes: ProcFs
    listener: Listener
    mark: str
    holder: Holder
    umask: int
    nofile: tuple[int, int]
    takeover: Takeover | None = None


def keeper_settings(spec: InstanceSpec, mark: str) -> KeeperSettings:
    """Return what the log keeper needs to know of kite.toml."""
    return KeeperSettings(
        max_bytes=spec.logging.max_bytes,
        files=spec.logging.files,
        max_age_s=spec.logging.max_age_s,
        total_bytes=spec.logging.total_bytes,
        abandoned_s=spec.timing.launcher_grace_s + spec.timing.shutdown_s,
        mark=mark,
    )


@attrs.define
class _Down:
    """Somebody who waits for the end of the instance."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answered: trio.Event = attrs.field(factory=trio.Event)
    answer: dict[str, Any] = attrs.field(factory=dict[str, Any])


class Launcher:
    """The whole of one launcher process."""

    def __init__(self, setting: Setting) -> None:
        spec, options, state, journal = setting.spec, setting.options, setting.state, setting.journal
        processes, listener, mark = setting.processes, setting.listener, setting.mark
        self._setting, self._takeover = setting, setting.takeover
        self._options, self._state, self._journal, self._processes = options, state, journal, processes
        self._holder = setting.holder
        self._environ = dict(os.environ)
        self._tokens = TokenTable()
        self._notify = NotifyRoom(state)
        self._book = RecordBook(state, boot_id=processes.boot_id, instance=mark)
        self._keeper = KeeperHouse(
            state_dir=state.path,
            settings=keeper_settings(spec, mark),
            journal=journal,
            book=self._book,
            processes=processes,
        )
        self._wire = KernelWire(
            token=lambda: self._tokens.token("launcher", "launcher"), journal=journal, random=random.random
        )
        self._wire.url = listener.url
        self._reaper = Reaper(self._keeper.note_status)
        self._alarms = Alarms(
            spec.notify, instance=spec.name, journal=journal, publish=self._wire.publish, reaper=self._reaper
        )
        orders = OrderMaker(
            spec=spec,
            state=state,
            mark=mark,
            tokens=self._tokens,
            listener=listener,
            notify=self._notify,
            environ=self._environ,
            python=sys.executable,
            umask=setting.umask,
            nofile=setting.nofile,
        )
        self._orders = orders
        self._house = House(
            mark=mark,
            processes=processes,
            keeper=self._keeper,
            book=self._book,
            orders=orders,
            journal=journal,
            random=random.random,
            spare=self._spare,
            alarm=self._alarms.raise_,
            lock_holders=orders.lock_holders,
            wire=self._wire,
        )
        self._instance = Instance(self._house, spec, orders, self._tokens, self._notify, self._wire)
        self._room = KernelRoom(
            self._instance.kernel, self._house, state, self._wire, probe_s=spec.timing.ping_active_s
        )
        self._watch = WatchdogRoom(lambda: self._instance.watchdog, self._house, self._wire, scale=spec.timing.scale)
        self._reloading = Reloading(
            self._instance,
            self._keeper,
            self._alarms,
            load=options.load,
            keeper_settings=lambda new: keeper_settings(new, mark),
        )
        self._commands = Commands(
            self._house,
            self._instance.units,
            facts=self._facts,
            status=self._status,
            save_wanted=self._save_wanted,
            down=self._down,
            reload=self._reloading.run,
            upgrade=lambda params: self._upgrading.run(params, self._attendance, self._control),
            token=self._issue_token,
            file_changed=self._reloading.file_changed,
        )
        self._attendance = Attendance(
            self._instance,
            self._environ,
            detached=options.detached,
            reaper=self._reaper,
            reload=self._reload_by_signal,
        )
        self._upgrading = Upgrading(
            setting, self._instance, self._tokens, self._wire, self._reloading.file_changed, self._reaper
        )
        self._control: Control | None = None
        self._downs: list[_Down] = []
        self._ancestors = ancestors(processes.look(), os.getpid())

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until the instance ends; returns the exit code."""
        become_subreaper()
        self._keeper.on_exit = self._instance.heard_exit
        self._wire.methods = self._commands.methods
        self._wire.on_call = self._commands.by_wire
        self._wire.on_open = self._instance.wire_opened
        self._instance.make_modules(self._read_wanted())
        control = self._control = Control(self._begin(), self._commands.by_hand, self._journal)
        attendance = self._attendance
        with trio.open_signal_receiver(*SIGNALS) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(attendance.signals, signals, nursery)
                await nursery.start(self._keep_keeper)
                for name, task in (
                    ("control", control.run),
                    ("wire", self._wire.serve),
                    ("kernel's ready line", self._room.run),
                    ("kernel's probes", self._room.watch),
                    ("watchdog's probes", self._watch.watch),
                    ("alarms", self._alarms.run),
                    ("reaper", self._reaper.run),
                    ("files", self._watch_files),
                    ("service manager", attendance.tell_ready),
                    ("service watchdog", attendance.ping_service),
                    ("keys", attendance.keys),
                    ("trees", lambda: watch_trees(self._house, self._instance.modules)),
                ):
                    nursery.start_soon(keep, name, task, self._journal)
                if self._takeover is not None:
                    taken_over(self._takeover, self._journal)
                await self._instance.run(nursery)
                exit_code = await self._end()
                await self._answer_downs(exit_code)
                nursery.cancel_scope.cancel()
        control.close()
        return exit_code

    def _begin(self) -> socket.socket:
        """Make the files that a living instance has, or take over what an earlier image left; the control socket."""
        takeover = self._takeover
        if takeover is None:
            try:
                self._prepare_files()
                return open_control(self._state)
            except OSError as error:
                text = f"{self._state.path}/{error.filename or ''}: {error.strerror} (errno {error.errno})"
                raise RefusedError(EXIT_PERMISSION, text, "choose another with --state-dir") from error
        self._tokens.take(takeover.fds["tokens"], takeover.tokens)
        self._wire.load(takeover.wire)
        self._keeper.adopt = True
        self._instance.ears = {name: self._notify.take(name, fd) for name, fd in takeover.notify.items()}
        records = parse_processes(self._state.read("processes.json") or b"")
        for record in () if isinstance(records, Damaged) else records.records:
            self._book.put(record)
        self._instance.restore(takeover.units)
        self._room.remember_file()
        return socket.socket(fileno=takeover.fds["control"])

    async def _reload_by_signal(self) -> None:
        await self._commands.by_hand("reload", {}, lambda _name, _text: None)

    async def _keep_keeper(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        why = await self._keeper.run(task_status=task_status)
        if why is not None:
            self._alarms.raise_("logkeeper", "failed", why)
            self._instance.stop(EXIT_NO, why)

    async def _end(self) -> int:
        """Stop everything, prove it, clear the traces; returns the exit code."""
        self._attendance.service.say("STOPPING=1")
        self._wire.publish("module.exiting", {"module_id": "launcher", "reason": self._instance.cause})
        refused = await self._instance.shut()
        refused += await self._sweep_strays()
        if not await self._keeper.finish():
            refused.append("the log keeper")
        else:
            self._keeper.forget()
        await self._book.flush()
        self._clear_traces()
        if self._attendance.terminal is not None:
            self._attendance.terminal.restore()
        if refused:
            self._journal.error("refuses to die", who=", ".join(refused))
            self._instance.cause = "refuses to die: " + ", ".join(refused)
            return EXIT_NO
        return self._instance.exit

    async def _sweep_strays(self) -> list[str]:
        """Kill what left its tree and every trace of it but still descends from us; returns who refuses."""
        deadline = trio.current_time() + PROOF_S
        killed: set[int] = set()
        while True:
            snapshot = await self._processes.snapshot()
            keeper = self._keeper.identity
            spare = {*self._ancestors, *((keeper.pid,) if keeper is not None else ()), *self._reaper.owned}
            below = descendants(snapshot, [os.getpid()])
            rows = [
                row
                for row in snapshot.values()
                if row.alive and row.pid not in spare and (row.module is not None or row.pid in below)
            ]
            if not rows:
                return []
            for row in rows:
                if row.pid not in killed:
                    killed.add(row.pid)
                    handle = self._processes.open(row.identity)
                    if handle is not None:
                        self._journal.warning("killing a stray", pid=row.pid, name=row.module or "?")
                        handle.signal(signal.SIGKILL)
                        handle.close()
            if trio.current_time() >= deadline:
                return [f"pid {row.pid}" for row in rows]
            await trio.sleep(0.02)

    async def _answer_downs(self, exit_code: int) -> None:
        """Everything is gone: let go of the locks, then tell those who waited."""
        self._state.release()
        good = exit_code == EXIT_OK or self._instance.exit != EXIT_OK
        text = "stopped" if good else self._instance.cause
        for down in self._downs:
            down.answer = {"text": text, "exit": EXIT_OK if good else EXIT_NO}
            down.done.set()
        with trio.move_on_after(1.0):
            for down in self._downs:
                await down.answered.wait()
            await trio.sleep(0.02 if self._downs else 0)

    # -- files -----------------------------------------------------------------------------------------------

    def _prepare_files(self) -> None:
        for folder in ("modules", "tokens", "logs"):
            self._state.make_dir(folder)
        self._state.write("tokens/operator", self._tokens.token(OPERATOR, "operator").encode("ascii"))
        self._tokens.token("launcher", "launcher")
        self._notify.clear()

    def _clear_traces(self) -> None:
        for file in ("launcher.sock", "kernel.json"):
            self._state.remove(file)
        try:
            for name in os.listdir(self._state.near("tokens")):
                self._state.remove(f"tokens/{name}")
            self._notify.clear()
        except OSError as error:
            self._journal.warning("traces stay", why=str(error))

    def _read_wanted(self) -> frozenset[str]:
        try:
            data = self._state.read("wanted.json")
        except OSError as error:
            self._journal.warning("wanted.json can't be read", why=str(error))
            return frozenset()
        if data is None:
            return frozenset()
        wanted = parse_wanted(data)
        if isinstance(wanted, Damaged):
            aside = self._state.set_aside("wanted.json")
            self._journal.error("wanted.json is damaged", why=wanted.why, aside=aside)
            return frozenset()
        return wanted

    def _save_wanted(self) -> str | None:
        stopped = [unit.name for unit in self._instance.modules() if unit.child.by_hand]
        try:
            self._state.write("wanted.json", render_wanted(stopped))
        except OSError as error:
            return f"{self._state.path}/wanted.json: {error.strerror} (errno {error.errno})"
        return None

    async def _watch_files(self) -> None:
        """Put back what somebody removed, and bring late records onto the disk."""
        while True:
            await trio.sleep(FILES_LOOK_S)
            try:
                if not self._state.lock_is_there() and self._state.lock_instance(self._holder):
                    self._journal.warning("instance.lock had been removed; put back")
                if self._room.restore_file():
                    self._journal.warning("kernel.json had been removed; put back")
            except OSError as error:
                self._journal.warning("state directory", why=str(error))
            await self._book.flush()

    # -- reports ---------------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        troubles = []
        if self._book.trouble is not None:
            troubles.append(f"records can't be written: {self._book.trouble}")
        troubles += [
            f"log of {log.name} can't be written: {log.path}: {log.why}, {log.dropped_lines} lines dropped"
            for log in self._keeper.logs.troubles
            if log.failing
        ]
        keeper = self._keeper.identity
        if keeper is None:
            troubles.append("the log keeper is away")
        return Facts(
            instance=self._instance.spec.name,
            url=self._orders.listener.url,
            launcher_pid=self._holder.pid,
            launcher_since=self._holder.since,
            epoch=self._room.epoch,
            watchdog_enabled=self._instance.watchdog is not None,
            troubles=tuple(troubles),
            grades=self._instance.grades(self._room.rows),
            unwell=self._instance.unwell,
            keeper_pid=keeper.pid if keeper is not None else None,
            keeper_restarts=self._keeper.restarts,
        )

    def _status(self) -> dict[str, Any]:
        return status(self._house.children, self._facts())

    def _spare(self) -> Collection[int]:
        keeper = self._keeper.identity
        return {*self._ancestors, *((keeper.pid,) if keeper is not None else ())}

    # -- orders ----------------------------------------------------------------------------------------------

    async def _down(self, caller: str, timeout_s: float | None) -> dict[str, Any]:
        self._instance.stop(EXIT_OK, f"down ({caller})", timeout_s=timeout_s)
        if caller != "by hand":
            return {"text": "stopping", "exit": EXIT_OK}
        down = _Down()
        self._downs.append(down)
        await down.done.wait()
        down.answered.set()
        return down.answer

    async def _issue_token(self, name: str) -> str | None:
        if name in ("launcher", "watchdog"):
            return None
        if not self._tokens.holds(name):
            # A plain program is handed none, yet whoever starts it may ask for one by hand.
            unit = self._house.specs.get(name)
            if unit is None or unit.module is None:
                return None
            self._tokens.token(name, "module")
        token = self._tokens.issue(name)
        await self._reloading.tell_tokens()
        return token
