"""The launcher's hold on the log keeper: starts it, orders through it, hears of every end.

One task owns the socket's sending, one its receiving; both live in the nursery that the caller gives, and end
by themselves with the keeper (`gone`). The link also holds every pipe that the keeper reads, so that a keeper
that is killed loses nothing: the next one gets them.

Source: spec 00 §28, §28a; cases S-21, S-22, S-82.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from kite_launcher.core.keeper_frames import FDS_MAX, BadFrame, FrameReader, encode_frame
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
from kite_launcher.edge.keeper_process import end_keeper, start_keeper

ANSWER_S: Final = 10.0  # the keeper answers within milliseconds; a machine under load gets time
SPAWN_S: Final = 60.0  # exec may wait for a slow disk or a network folder
STATUS_S: Final = 1.0  # so long an end without a status waits for `note_status`
QUEUE: Final = 1000
EXITS: Final = 10_000
_CHUNK: Final = 64 * 1024

_Key = tuple[str, int]


class KeeperGone(Exception):
    """The keeper's process or its socket ended, or it does not answer; ask the next keeper."""


@attrs.define
class _Held:
    """Pipes of one run that are held together with the keeper."""

    record: KeptRecord
    fds: dict[str, int]

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}


_HELD: Final[
    dict[Path, dict[_Key, _Held]]
] = {}  # by state directory: held by this process, whichever link fetched them


class KeeperLink:
    """One connection to one keeper process. Never reused: after `gone` is set make a new one.

    `exits` gives every end that is heard live; those from before come from `missed_exits`. `lost_exits` counts
    ends that found `exits` full (they stay in the keeper's book). `on_said` hears what the keeper's own log says.
    """

    def __init__(self, nursery: trio.Nursery, sock: trio.socket.SocketType, pid: int, state_dir: Path) -> None:
        self.pid = pid
        self.start_ticks = 0
        self.log_trouble = LogState()
        self.gone = trio.Event()
        self.lost_exits = 0
        self.on_said: Callable[[str], None] = lambda text: None
        self._nursery = nursery
        self._sock = sock
        self._count = 0
        self._answers: dict[int, trio.MemorySendChannel[tuple[dict[str, Any], list[int]]]] = {}
        self._out_send, self._out = trio.open_memory_channel[tuple[bytes, list[int]]](QUEUE)
        self._exits_send, self.exits = trio.open_memory_channel[Exited](EXITS)
        self._held = _HELD.setdefault(state_dir, {})
        self._missed: list[Exited] = []
        self._statuses: dict[int, int] = {}
        self._status_news = trio.Event()

    # -- beginning and end

    @classmethod
    async def start(
        cls,
        nursery: trio.Nursery,
        state_dir: Path,
        settings: KeeperSettings,
    ) -> "KeeperLink":
        """Start a keeper process, child of this one, and connect to it. Raises: OSError, KeeperGone.

        The pipes that the link of an ended keeper held go to the new one. Whoever collects the children of this
        process will see the keeper's `pid`, too.
        """
        ours, theirs = socket.socketpair()
        try:
            pid = start_keeper(state_dir, theirs, mark=settings.mark)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        link = cls(nursery, trio.socket.from_stdlib_socket(ours), pid, state_dir)
        await link._greet(settings)
        return link

    @classmethod
    async def connect(cls, nursery: trio.Nursery, state_dir: Path, settings: KeeperSettings) -> "KeeperLink | None":
        """Connect to a keeper that a former launcher left; None when none answers."""
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

    async def _greet(self, settings: KeeperSettings) -> None:
        self._nursery.start_soon(self._send_all)
        self._nursery.start_soon(self._receive_all)
        try:
            hello, _ = await self._ask({"op": "hello", "settings": settings.to_wire()})
            if hello["protocol"] != KEEPER_PROTOCOL:
                raise KeeperGone(f"it speaks protocol {hello['protocol']}")
            self.pid = int(hello["pid"])
            self.start_ticks = int(hello["start_ticks"])
            self._missed = [Exited.from_wire(data) for data in hello["missed"]]
            for held in list(self._held.values()):
                question = {"op": "adopt", "record": held.record.to_wire(), "streams": list(held.fds)}
                answer, _ = await self._ask(question, list(held.fds.values()))
                if not answer["found"]:
                    self._release((held.record.name, held.record.run))
        except BaseException:
            self._end()
            raise

    async def close(self, *, quit_keeper: bool = True, timeout_s: float = 5.0) -> None:
        """Let go of the keeper. With `quit_keeper` it stores what stands in its pipes and ends; a child of ours
        that does not end in time is killed. Without, it goes on alone.
        """
        with trio.CancelScope(shield=True):
            if quit_keeper and not self.gone.is_set():
                with trio.move_on_after(timeout_s), contextlib.suppress(KeeperGone):
                    await self._ask({"op": "quit"})
                    await self.gone.wait()
            self._end()
            self._release_all()
            if quit_keeper:
                await end_keeper(self.pid, timeout_s)

    def _end(self) -> None:
        """Set `gone` and wake everybody who waits; the tasks end by the closed socket. Pipes stay held."""
        self.gone.set()
        self._sock.close()
        self._out_send.close()
        self._exits_send.close()
        for channel in self._answers.values():
            channel.close()
        self._answers.clear()

    def _release(self, key: _Key) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.close()

    def _release_all(self) -> None:
        for key in list(self._held):
            self._release(key)

    # -- orders

    async def spawn(
        self, order: SpawnOrder, on_forked: Callable[[Forked], Awaitable[None]] | None = None
    ) -> Spawned | SpawnFailed:
        """Start a program. `on_forked` runs while the process exists but waits before exec: write the record there.

        If `on_forked` raises or this is cancelled, the process ends without having run. Raises: KeeperGone.
        Descriptors in `order.fds` stay the caller's.
        """
        number, channel = self._question()
        fds = [order.fds[target] for target in sorted(order.fds)]
        forked: Forked | None = None
        try:
            with trio.fail_after(SPAWN_S):
                await self._send({"id": number, "op": "spawn", "order": order.to_wire()}, fds)
                answer, _ = await channel.receive()
                if "forked" in answer:
                    forked = Forked(*answer["forked"])
                    if on_forked is not None:
                        await on_forked(forked)
                    await self._let(forked, go=True)
                    answer, _ = await channel.receive()
        except (trio.EndOfChannel, trio.TooSlowError) as problem:
            raise KeeperGone("it ended or does not answer") from problem
        except BaseException:
            if forked is not None:
                self._let_nowait(forked)
            raise
        finally:
            self._answers.pop(number, None)
        if "error" in answer:
            return SpawnFailed(order.name, 0, str(answer["error"]))
        if "failed" in answer or forked is None:
            return SpawnFailed(**answer["failed"])
        return Spawned(forked.name, forked.run, forked.pid, forked.start_ticks)

    async def _let(self, forked: Forked, *, go: bool) -> None:
        self._count += 1
        await self._send({"id": self._count, "op": "go", "name": forked.name, "run": forked.run, "go": go}, [])

    def _let_nowait(self, forked: Forked) -> None:
        self._count += 1
        data = {"id": self._count, "op": "go", "name": forked.name, "run": forked.run, "go": False}
        with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self._out_send.send_nowait((encode_frame(data), []))

    async def adopt(self, record: KeptRecord) -> bool:
        """Have the keeper read the output of a process that runs already. False when nothing of it is found."""
        answer, _ = await self._ask({"op": "adopt", "record": record.to_wire(), "streams": []})
        return bool(answer.get("found"))

    async def wait_log(self, name: str, run: int, regex: str) -> str:
        """Wait until a line of this run matches and return it; lines from before (the last 20) count, too.

        Cancel: safe. Raises: KeeperGone; KeyError for a run that the keeper does not know; ValueError for what is
        no regular expression.
        """
        number, channel = self._question()
        try:
            await self._send({"id": number, "op": "watch", "name": name, "run": run, "regex": regex}, [])
            answer, _ = await channel.receive()
        except trio.EndOfChannel as problem:
            raise KeeperGone("it ended") from problem
        finally:
            if self._answers.pop(number, None) is not None:
                self._count += 1
                frame = encode_frame({"id": self._count, "op": "unwatch", "watch": number})
                with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
                    self._out_send.send_nowait((frame, []))
        if answer.get("error") == "no such run":
            raise KeyError(name)
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["line"])

    async def tail(self, name: str, n: int = 10) -> list[str]:
        """Give the last lines of the last run of a name, at most 20, escaped for display."""
        answer, _ = await self._ask({"op": "tail", "name": name, "n": n})
        return [str(line) for line in answer["lines"]]

    async def missed_exits(self) -> list[Exited]:
        """Give the ends that no launcher has heard of yet, oldest first; from then on they count as heard."""
        missed, self._missed = self._missed, []
        if missed:
            await self._ask({"op": "ack", "seq": missed[-1].seq})
        return missed

    async def kept_records(self) -> list[KeptRecord]:
        """Give the living processes as the keeper knows them."""
        answer, _ = await self._ask({"op": "records"})
        return [KeptRecord.from_wire(data) for data in answer["records"]]

    async def log_state(self) -> LogState:
        """Ask whether every line finds its place."""
        answer, _ = await self._ask({"op": "log_state"})
        return LogState.from_wire(answer["state"])

    async def configure(self, settings: KeeperSettings) -> None:
        """Give new settings (a reload)."""
        await self._ask({"op": "settings", "settings": settings.to_wire()})

    async def ping(self) -> None:
        """Ask whether it answers. Raises: KeeperGone."""
        await self._ask({"op": "ping"})

    async def open_log(self, name: str) -> int:
        """Give a descriptor whose bytes end in `logs/<name>.log`: for the launcher's own log. It lives over keepers.

        It is a pipe: set O_NONBLOCK on it, and drop (and count) what it does not take while no keeper reads.
        """
        _, fds = await self._ask({"op": "open_log", "name": name})
        return fds[0]

    def note_status(self, pid: int, status: int) -> None:
        """Tell the raw wait status of a child that fell to the launcher (its keeper had died).

        The end itself comes through `exits` all the same, behind its last line, and then has this status.
        """
        if len(self._statuses) >= QUEUE:
            del self._statuses[next(iter(self._statuses))]
        self._statuses[pid] = status
        self._status_news.set()
        self._status_news = trio.Event()

    # -- the wire

    def _question(self) -> tuple[int, "trio.MemoryReceiveChannel[tuple[dict[str, Any], list[int]]]"]:
        if self.gone.is_set():
            raise KeeperGone("it ended")
        self._count += 1
        send, receive = trio.open_memory_channel[tuple[dict[str, Any], list[int]]](4)
        self._answers[self._count] = send
        return self._count, receive

    async def _ask(self, data: dict[str, Any], fds: list[int] | None = None) -> tuple[dict[str, Any], list[int]]:
        number, channel = self._question()
        try:
            with trio.fail_after(ANSWER_S):
                await self._send({"id": number, **data}, fds or [])
                answer = await channel.receive()
        except (trio.EndOfChannel, trio.TooSlowError) as problem:
            raise KeeperGone("it ended or does not answer") from problem
        finally:
            self._answers.pop(number, None)
        if "error" in answer[0]:
            raise KeeperGone(f"it refused {data['op']}: {answer[0]['error']}")
        return answer

    async def _send(self, data: dict[str, Any], fds: list[int]) -> None:
        try:
            frame = encode_frame(data, len(fds))
        except BadFrame as problem:
            raise KeeperGone(str(problem)) from problem
        copies = [os.dup(fd) for fd in fds]
        try:
            await self._out_send.send((frame, copies))
        except BaseException as problem:
            for fd in copies:
                os.close(fd)
            if isinstance(problem, trio.ClosedResourceError | trio.BrokenResourceError):
                raise KeeperGone("it ended") from problem
            raise

    async def _send_all(self) -> None:
        try:
            async for frame, fds in self._out:
                try:
                    await self._send_frame(frame, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
        except OSError:
            self._end()
        finally:
            self._out.close()

    async def _send_frame(self, frame: bytes, fds: list[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds))]
        sent = await self._sock.sendmsg([frame], rights if fds else [])
        while sent < len(frame):
            sent += await self._sock.send(frame[sent:])

    async def _receive_all(self) -> None:
        frames = FrameReader()
        try:
            while True:
                data, ancillary, _, _ = await self._sock.recvmsg(
                    _CHUNK, socket.CMSG_SPACE(FDS_MAX * 4), socket.MSG_CMSG_CLOEXEC
                )
                if not data:
                    return
                fds: list[int] = []
                for level, kind, raw in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        fds += [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw) - 3, 4)]
                for frame, with_fds in frames.feed(data, fds):
                    self._take(frame, with_fds)
        except (OSError, BadFrame, trio.ClosedResourceError):
            return
        finally:
            for fd in frames.spare:
                os.close(fd)
            self._end()

    def _take(self, frame: dict[str, Any], fds: list[int]) -> None:
        match frame.get("push"):
            case None:
                channel = self._answers.get(frame["id"])
                if channel is not None:
                    channel.send_nowait((frame, fds))
                    return
                for fd in fds:
                    os.close(fd)
            case "exited":
                self._take_exit(Exited.from_wire(frame["exited"]))
            case "hold":
                record = KeptRecord.from_wire(frame["record"])
                self._hold(record, dict(zip(frame["streams"], fds, strict=True)))
            case "drained":
                self._release((frame["name"], frame["run"]))
            case "trouble":
                self.log_trouble = LogState.from_wire(frame["state"])
            case "said":
                self.on_said(str(frame["text"]))
            case _:
                for fd in fds:
                    os.close(fd)

    def _hold(self, record: KeptRecord, fds: dict[str, int]) -> None:
        held = self._held.setdefault((record.name, record.run), _Held(record, {}))
        for stream, fd in fds.items():
            if stream in held.fds:
                os.close(fd)
            else:
                held.fds[stream] = fd

    def _take_exit(self, exited: Exited) -> None:
        held = self._held.get((exited.name, exited.run))
        if held is not None and "in" in held.fds:
            os.close(held.fds.pop("in"))
        if exited.status is None:
            self._nursery.start_soon(self._complete, exited)
        else:
            self._tell(exited)

    async def _complete(self, exited: Exited) -> None:
        """Wait a moment for the status of a child that was not the keeper's own."""
        with trio.move_on_after(STATUS_S):
            while exited.pid not in self._statuses:
                await self._status_news.wait()
        self._tell(attrs.evolve(exited, status=self._statuses.pop(exited.pid, None)))

    def _tell(self, exited: Exited) -> None:
        try:
            self._exits_send.send_nowait(exited)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self.lost_exits += 1
            return
        self._count += 1
        with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self._out_send.send_nowait((encode_frame({"id": self._count, "op": "ack", "seq": exited.seq}), []))
