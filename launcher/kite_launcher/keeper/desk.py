"""The launcher's orders: one connection at a time, over the socket in the state directory or the one inherited.

A newer connection takes the place of an older one: the instance lock has decided who the launcher is. Only the
same user (or root) may connect. What the launcher does not read is not kept here: ends stay in their book until
they are acknowledged, everything else is an answer to a question.
"""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

from kite_launcher.core.keeper_frames import BadFrame
from kite_launcher.core.keeper_orders import (
    KEEPER_PROTOCOL,
    Exited,
    KeeperSettings,
    KeptRecord,
    LogTrouble,
    SpawnFailed,
    SpawnOrder,
)
from kite_launcher.keeper.children import Child, Children
from kite_launcher.keeper.connection import Connection, OutOfDescriptors
from kite_launcher.keeper.pipes import open_output
from kite_launcher.keeper.processes import start_ticks
from kite_launcher.keeper.statedir import StateDir

SOCKET_NAME: Final = "keeper.sock"


class Desk:
    """Takes orders and tells ends. `settle` is called with new settings, `leave` when the launcher sends us away."""

    def __init__(
        self,
        state_dir: StateDir,
        children: Children,
        settle: Callable[[KeeperSettings], None],
        leave: Callable[[], None],
    ) -> None:
        self._loop = children.loop
        self._state_dir = state_dir
        self._children = children
        self._settle = settle
        self._leave = leave
        self._connection: Connection | None = None
        self._listener: socket.socket | None = None
        self._listener_inode = 0
        self._mark = ""
        self.on_left: Callable[[], None] = lambda: None
        self._told: tuple[LogTrouble, ...] = ()
        children.on_begun = self._begun
        children.on_exited = self._exited
        children.on_matched = self._matched
        children.on_drained = self._drained

    @property
    def connected(self) -> bool:
        """Whether a launcher is there."""
        return self._connection is not None

    # -- the socket

    def listen(self) -> None:
        """Make the socket, or make it again where somebody removed it. A refusal is tried again later."""
        path = self._state_dir.way / SOCKET_NAME
        try:
            if self._listener is not None and os.stat(path).st_ino == self._listener_inode:
                return
        except FileNotFoundError:
            pass
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.bind(str(path))
            os.chmod(path, 0o600)
            made.listen(4)
            inode = os.stat(path).st_ino
        except OSError:
            made.close()
            raise
        self._stop_listening()
        self._listener, self._listener_inode = made, inode
        self._loop.on_readable(made.fileno(), self._accept)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptors left: try again a moment later, not in a circle
            self._stop_listening()
            return
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.getuid(), 0):
            sock.close()
            return
        self.serve(sock)

    def serve(self, sock: socket.socket) -> None:
        """Take this connection as the launcher's."""
        self._hang_up()
        connection = Connection(sock, self._loop)
        self._connection = connection
        self._loop.on_readable(connection.fd, lambda: self._work(connection))

    def _hang_up(self) -> None:
        """Let go of the launcher: whatever it did not let through its gate ends."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._loop.remove(connection.fd)
        connection.close()
        for child in list(self._children.living()):
            if child.embryo is not None:
                child.embryo.close_gate()
        self.on_left()

    def _work(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        try:
            connection.flush()
            frames = connection.receive()
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            frames = None
        if frames is None:
            self._hang_up()
            return
        for frame, fds in frames:
            self._order(connection, frame, fds)

    def _send(self, data: dict[str, Any], fds: list[int] | None = None) -> None:
        """Tell the launcher, if there is one; `fds` stay the caller's."""
        if self._connection is None:
            return
        try:
            self._connection.send(data, fds or [])
        except OutOfDescriptors:
            if "id" in data:  # a pipe that the launcher does not hold, too, is a lesser safety and no fault
                self._send({"id": data["id"], "error": "the log keeper has no descriptors left"})
        except (OSError, BadFrame):
            self._hang_up()

    # -- orders

    def _order(self, connection: Connection, frame: dict[str, Any], fds: list[int]) -> None:
        number = frame.get("id")
        handler = getattr(self, f"_do_{frame.get('op')}", None)
        if not isinstance(number, int) or handler is None or not (connection.greeted or frame.get("op") == "hello"):
            for fd in fds:
                os.close(fd)
            self._send({"id": number, "error": f"not understood: {frame.get('op')!r}"})
            return
        try:
            answer = handler(number, frame, fds)
        except (KeyError, TypeError, ValueError, re.error) as problem:
            self._send({"id": number, "error": f"{type(problem).__name__}: {problem}"})
            return
        if answer is not None:
            self._send({"id": number, **answer})

    def _do_hello(self, number: int, frame: dict[str, Any], fds: list[int]) -> None:
        assert self._connection is not None
        if frame["settings"] is not None:
            settings = KeeperSettings.from_wire(frame["settings"])
            if self._mark and settings.mark != self._mark:
                raise ValueError("this keeper belongs to another instance")
            self._mark = settings.mark
            self._settle(settings)
        self._connection.greeted = True
        self._told = ()
        missed = [exited.to_wire() for exited in self._children.exits.unheard]
        self._send(
            {
                "id": number,
                "protocol": KEEPER_PROTOCOL,
                "pid": os.getpid(),
                "start_ticks": start_ticks(os.getpid()),
                "missed": missed,
            }
        )
        for child in list(self._children.all.values()):
            self._hold(child)

    def _hold(self, child: Child) -> None:
        """Give the launcher the pipes, too: what stands in them then survives this process."""
        if not child.readers:
            return
        streams = sorted(child.readers)
        fds = [child.readers[stream].fd for stream in streams]
        names = [*streams, "in"] if child.stdin >= 0 else streams
        record = child.record.to_wire()
        self._send({"push": "hold", "record": record, "streams": names}, fds + [child.stdin] * (child.stdin >= 0))

    def _do_settings(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._settle(KeeperSettings.from_wire(frame["settings"]))
        return {}

    def _do_spawn(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        assert self._connection is not None
        try:
            order = SpawnOrder.from_wire(frame["order"], fds)
        except (KeyError, TypeError, ValueError):
            for fd in fds:
                os.close(fd)
            raise
        made = self._children.spawn(order)
        if isinstance(made, SpawnFailed):
            return {"failed": attrs.asdict(made)}
        self._connection.begun[made.name, made.run] = number
        self._hold(made)
        self._send({"id": number, "forked": [made.name, made.run, made.record.pid, made.record.start_ticks]})
        return None

    def _do_go(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        child = self._children.all.get((frame["name"], frame["run"]))
        if child is not None and child.embryo is not None:
            if frame["go"]:
                child.embryo.open_gate()
            else:
                child.embryo.close_gate()
        return {}

    def _begun(self, child: Child, failed: SpawnFailed | None) -> None:
        number = self._connection.begun.pop((child.name, child.run), None) if self._connection is not None else None
        if number is None:
            return
        self._send(
            {"id": number, "failed": attrs.asdict(failed)} if failed is not None else {"id": number, "spawned": True}
        )

    def _do_adopt(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        streams = dict(zip(frame["streams"], fds, strict=True))
        record = KeptRecord.from_wire(frame["record"])
        stdin = streams.pop("in", -1)
        found = self._children.adopt(record, streams, ended=bool(frame.get("ended")))
        child = self._children.all.get((record.name, record.run))
        if child is not None and child.alive and child.stdin < 0:
            child.stdin = stdin
        elif stdin >= 0:
            os.close(stdin)
        return {"found": found}

    def _do_watch(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        assert self._connection is not None
        name, run, regex = str(frame["name"]), int(frame["run"]), str(frame["regex"])
        child = self._children.all.get((name, run))
        if child is None:
            return {"error": "no such run"}
        if child.tail.watch(regex):
            self._children.search_log(child)
        if regex in child.tail.matches:
            return {"line": child.tail.matches[regex]}
        self._connection.watches[number] = (name, run, regex)
        return None

    def _do_unwatch(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        assert self._connection is not None
        watch = self._connection.watches.pop(frame["watch"], None)
        if watch is not None and watch not in self._connection.watches.values():
            child = self._children.all.get(watch[:2])
            if child is not None:
                child.tail.forget(watch[2])
        return {}

    def _matched(self, child: Child) -> None:
        if self._connection is None:
            return
        for number, (name, run, regex) in list(self._connection.watches.items()):
            if (name, run) == (child.name, child.run) and regex in child.tail.matches:
                del self._connection.watches[number]
                self._send({"id": number, "line": child.tail.matches[regex]})
                if self._connection is None:
                    return

    def _do_tail(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        child = self._children.latest.get(frame["name"])
        return {"lines": child.tail.last(int(frame["n"])) if child is not None else []}

    def _do_records(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"records": [child.record.to_wire() for child in self._children.living()]}

    def _do_ack(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._children.exits.heard(int(frame["seq"]))
        return {}

    def _do_log_state(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"state": self._children.log_state().to_wire()}

    def _do_open_log(self, number: int, frame: dict[str, Any], fds: list[int]) -> None:
        made = open_output(large=False)
        try:
            self._hold(self._children.open_log(str(frame["name"]), made.read))
            self._send({"id": number}, [made.child])
        finally:
            os.close(made.child)

    def _do_ping(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {}

    def _do_quit(self, number: int, frame: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._leave()
        return {}

    # -- what is told unasked

    def _exited(self, exited: Exited) -> None:
        self._send({"push": "exited", "exited": exited.to_wire()})

    def _drained(self, child: Child) -> None:
        self._send({"push": "drained", "name": child.name, "run": child.run})

    def say(self, text: str) -> None:
        """Tell the launcher what the keeper's own log says."""
        self._send({"push": "said", "text": text})

    def tell_state(self) -> None:
        """Tell the launcher when lines began to be lost, how many, and when they are kept again."""
        troubles = self._children.store.troubles()
        if self._connection is not None and self._connection.greeted and troubles != self._told:
            self._told = troubles
            self._send({"push": "trouble", "state": self._children.log_state().to_wire()})

    def close(self) -> None:
        """Remove the socket and let go of the launcher."""
        self._hang_up()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._state_dir.way / SOCKET_NAME)
        self._stop_listening()
