"""The launcher's hold on the log keeper: starts it, orders through it, hears of every end, notices when it hangs.

The link also holds every pipe that the keeper reads, so that a keeper that is killed loses nothing: the next one
gets them. A keeper that does not answer three times in a row is killed: its children don't notice.

Source: spec 00 §28, §28a; cases S-21, S-22, S-82.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from kite_launcher.core.keeper_orders import (
    KEEPER_PROTOCOL,
    Exited,
    Forked,
    KeeperSettings,
    KeptRecord,
    LogState,
    Spawned,
    SpawnFailed,
    SpawnOrder,
)
from kite_launcher.edge.keeper_pipes import close_all, held_pipes
from kite_launcher.edge.keeper_process import end_keeper, start_keeper
from kite_launcher.edge.keeper_wire import ANSWER_S, KeeperGone, KeeperWire
from kite_launcher.keeper.processes import open_identified

__all__ = ["KeeperGone", "KeeperLink"]

SPAWN_S: Final = 60.0  # exec may wait for a slow disk or a network folder
STATUS_S: Final = 1.0  # so long an end without a status waits for `note_status`
PING_S: Final = 1.5
PINGS_MISSED_MAX: Final = 3  # in a row, each with its own time: a launcher that was stopped itself counts one
LAST_PING_S: Final = 1.0  # a keeper that is asked to end and does not answer so long is not waited for
EXITS: Final = 10_000


class KeeperLink:
    """One connection to one keeper process. Never reused: after `gone` is set make a new one.

    `exits` gives every end that is heard live; those from before come from `missed_exits`. `lost_exits` counts
    ends that found `exits` full (they stay in the keeper's book). `on_said` hears what the keeper's own log says.
    """

    def __init__(self, nursery: trio.Nursery, sock: trio.socket.SocketType, pid: int, state_dir: Path) -> None:
        self.pid = pid
        self.start_ticks = 0
        self.log_trouble = LogState()
        self.lost_exits = 0
        self.on_said: Callable[[str], None] = lambda text: None
        self._nursery = nursery
        self._wire = KeeperWire(sock, self._take)
        self.gone = self._wire.gone
        self._exits_send, self.exits = trio.open_memory_channel[Exited](EXITS)
        self._held = held_pipes(state_dir)
        self._missed: list[Exited] = []

    # -- beginning and end

    @classmethod
    async def start(cls, nursery: trio.Nursery, state_dir: Path, settings: KeeperSettings) -> "KeeperLink":
        """Start a keeper process, child of this one, and connect to it. Raises: OSError, KeeperGone.

        The pipes that the link of an ended keeper held go to the new one. Whoever collects the children of this
        process will see the keeper's `pid`, too. One that still lives (only its wire was lost) is taken as it is.
        """
        living = await cls.connect(nursery, state_dir, settings)
        if living is not None:
            return living
        ours, theirs = socket.socketpair()
        try:
            pid = start_keeper(state_dir, theirs, mark=settings.mark)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        pidfd = os.pidfd_open(pid)
        try:
            link = cls(nursery, trio.socket.from_stdlib_socket(ours), pid, state_dir)
            await link._greet(settings)
        except BaseException:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            raise
        finally:
            os.close(pidfd)
        return link

    @classmethod
    async def connect(
        cls, nursery: trio.Nursery, state_dir: Path, settings: KeeperSettings | None = None
    ) -> "KeeperLink | None":
        """Connect to a keeper that a former launcher left; None when none answers.

        Without `settings` it keeps its own.
        """
        folder = -1
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            with trio.fail_after(ANSWER_S):
                await sock.connect(f"/proc/self/fd/{folder}/keeper.sock")
        except (OSError, trio.TooSlowError):
            sock.close()
            return None
        finally:
            if folder >= 0:
                os.close(folder)
        link = cls(nursery, sock, 0, state_dir)
        try:
            await link._greet(settings)
        except KeeperGone:
            return None
        return link

    async def _greet(self, settings: KeeperSettings | None) -> None:
        self._wire.start(self._nursery)
        self._nursery.start_soon(self._end_exits)
        try:
            given = settings.to_wire() if settings is not None else None
            hello, _ = await self._wire.ask({"op": "hello", "settings": given})
            if hello["protocol"] != KEEPER_PROTOCOL:
                raise KeeperGone(f"it speaks protocol {hello['protocol']}")
            self.pid, self.start_ticks = int(hello["pid"]), int(hello["start_ticks"])
            self._missed = [Exited.from_wire(data) for data in hello["missed"]]
            for held in self._held.runs:
                question: dict[str, Any] = {"op": "adopt", "record": held.record.to_wire(), "streams": list(held.fds)}
                question["ended"] = held.ended
                answer, _ = await self._wire.ask(question, list(held.fds.values()))
                if not answer["found"]:
                    self._held.release(held.record.name, held.record.run)
        except BaseException:
            self._wire.end()
            raise
        self._nursery.start_soon(self._tend)

    async def _end_exits(self) -> None:
        await self.gone.wait()
        self._exits_send.close()

    async def _tend(self) -> None:
        """Ask from time to time whether it answers; end one that hangs (stopped, or caught in a bug of ours)."""
        missed = 0
        while not self.gone.is_set():
            if not missed:
                with trio.move_on_after(PING_S):
                    await self.gone.wait()
            with trio.move_on_after(PING_S) as asking, contextlib.suppress(KeeperGone):
                await self.ping()
            missed = missed + 1 if asking.cancelled_caught else 0
            if missed >= PINGS_MISSED_MAX:
                self.on_said(f"the log keeper (pid {self.pid}) does not answer; it is replaced")
                self._kill()
                self._wire.end()

    def _kill(self) -> None:
        pidfd = open_identified(self.pid, self.start_ticks)
        if pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    async def close(self, *, quit_keeper: bool = True, timeout_s: float = 5.0) -> None:
        """Let go of the keeper. With `quit_keeper` it stores what stands in its pipes and ends; a child of ours
        that does not end in time is killed. Without, it goes on alone.
        """
        with trio.CancelScope(shield=True):
            deadline = trio.current_time() + timeout_s
            if quit_keeper and not self.gone.is_set():
                with trio.move_on_after(LAST_PING_S) as asking, contextlib.suppress(KeeperGone):
                    await self.ping()
                if asking.cancelled_caught:
                    deadline = trio.current_time()
                with trio.move_on_at(deadline), contextlib.suppress(KeeperGone):
                    await self._wire.ask({"op": "quit"})
                    await self.gone.wait()
            self._wire.end()
            self._held.release_all()
            if quit_keeper:
                await end_keeper(self.pid, self.start_ticks, max(0.0, deadline - trio.current_time()))

    # -- orders

    async def spawn(
        self, order: SpawnOrder, on_forked: Callable[[Forked], Awaitable[None]] | None = None
    ) -> Spawned | SpawnFailed:
        """Start a program. `on_forked` runs while the process exists but waits before exec: write the record there.

        If `on_forked` raises or this is cancelled, the process ends without having run. Raises: KeeperGone.
        Descriptors in `order.fds` stay the caller's.
        """
        fds = [order.fds[target] for target in sorted(order.fds)]
        forked: Forked | None = None
        try:
            with trio.fail_after(SPAWN_S):
                question = await self._wire.question({"op": "spawn", "order": order.to_wire()}, fds)
                try:
                    answer, _ = await question.answer()
                    if "forked" in answer:
                        forked = Forked(*answer["forked"])
                        if on_forked is not None:
                            await on_forked(forked)
                        await self._wire.send({"op": "go", "name": forked.name, "run": forked.run, "go": True})
                        answer, _ = await question.answer()
                finally:
                    self._wire.forget(question)
        except trio.TooSlowError as problem:
            raise KeeperGone("it does not answer") from problem
        except BaseException:
            if forked is not None:
                self._wire.tell({"op": "go", "name": forked.name, "run": forked.run, "go": False})
            raise
        if "error" in answer:
            return SpawnFailed(order.name, 0, str(answer["error"]))
        if "failed" in answer or forked is None:
            return SpawnFailed(**answer["failed"])
        return Spawned(forked.name, forked.run, forked.pid, forked.start_ticks)

    async def adopt(self, record: KeptRecord) -> bool:
        """Have the keeper read the output of a process that runs already. False when nothing of it is found."""
        answer, _ = await self._wire.ask({"op": "adopt", "record": record.to_wire(), "streams": []})
        return bool(answer.get("found"))

    async def wait_log(self, name: str, run: int, regex: str) -> str:
        """Wait until a line of this run matches and return it; lines from before (the last 20) count, too.

        Cancel: safe. Raises: KeeperGone; KeyError for a run that the keeper does not know; ValueError for what is
        no regular expression.
        """
        question = await self._wire.question({"op": "watch", "name": name, "run": run, "regex": regex})
        try:
            answer, _ = await question.answer()
        finally:
            if self._wire.forget(question):
                self._wire.tell({"op": "unwatch", "watch": question.number})
        if answer.get("error") == "no such run":
            raise KeyError(name)
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["line"])

    async def tail(self, name: str, n: int = 10) -> list[str]:
        """Give the last lines of the last run of a name, at most 20, escaped for display."""
        answer, _ = await self._wire.ask({"op": "tail", "name": name, "n": n})
        return [str(line) for line in answer["lines"]]

    async def missed_exits(self) -> list[Exited]:
        """Give the ends that no launcher has heard of yet, oldest first; from then on they count as heard."""
        missed, self._missed = self._missed, []
        if missed:
            await self._wire.ask({"op": "ack", "seq": missed[-1].seq})
        return missed

    async def kept_records(self) -> list[KeptRecord]:
        """Give the living processes as the keeper knows them."""
        answer, _ = await self._wire.ask({"op": "records"})
        return [KeptRecord.from_wire(data) for data in answer["records"]]

    async def log_state(self) -> LogState:
        """Ask whether every line finds its place."""
        answer, _ = await self._wire.ask({"op": "log_state"})
        return LogState.from_wire(answer["state"])

    async def configure(self, settings: KeeperSettings) -> None:
        """Give new settings (a reload)."""
        await self._wire.ask({"op": "settings", "settings": settings.to_wire()})

    async def ping(self) -> None:
        """Ask whether it answers. Raises: KeeperGone."""
        await self._wire.ask({"op": "ping"})

    async def open_log(self, name: str) -> int:
        """Give a descriptor whose bytes end in `logs/<name>.log`: for the launcher's own log. It lives over keepers.

        It is a pipe: set O_NONBLOCK on it, and drop (and count) what it does not take while no keeper reads.
        """
        _, fds = await self._wire.ask({"op": "open_log", "name": name})
        return fds[0]

    def note_status(self, pid: int, status: int) -> None:
        """Tell the raw wait status of a child that fell to the launcher (its keeper had died).

        The end itself comes through `exits` all the same, behind its last line, and then has this status.
        """
        self._held.note_status(pid, status)

    # -- what is told unasked

    def _take(self, frame: dict[str, Any], fds: list[int]) -> None:
        match frame["push"]:
            case "exited":
                self._take_exit(Exited.from_wire(frame["exited"]))
            case "hold":
                record = KeptRecord.from_wire(frame["record"])
                self._held.hold(record, dict(zip(frame["streams"], fds, strict=True)))
            case "drained":
                self._held.release(frame["name"], frame["run"])
            case "trouble":
                self.log_trouble = LogState.from_wire(frame["state"])
            case "said":
                self.on_said(str(frame["text"]))
            case _:
                close_all(fds)

    def _take_exit(self, exited: Exited) -> None:
        self._held.note_end(exited.name, exited.run)
        if exited.status is None:
            self._nursery.start_soon(self._complete, exited)
        else:
            self._tell(exited)

    async def _complete(self, exited: Exited) -> None:
        """Wait a moment for the status of a child that was not the keeper's own."""
        with trio.move_on_after(STATUS_S):
            while exited.pid not in self._held.statuses:
                await self._held.status_news.wait()
        self._tell(attrs.evolve(exited, status=self._held.statuses.pop(exited.pid, None)))

    def _tell(self, exited: Exited) -> None:
        try:
            self._exits_send.send_nowait(exited)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self.lost_exits += 1
            return
        self._wire.tell({"op": "ack", "seq": exited.seq})
