"""One epoll for the readability of all plain sockets: a wire waits without a system call of its own.

trio's `wait_readable` registers and takes back a descriptor for every wait; at one small message a wait that costs
more than routing it. Here each socket is registered once, edge-triggered, and a waiting reader is a parked task.

Laws (edge-triggered, epoll(7)):
- Readiness is told once. Who was told reads until a read comes back short or would block, before waiting again.
- The other side's end is told once, too, so it is remembered: from then on nobody waits.

Source: spec 00 §8a.
"""

from __future__ import annotations

import errno
import select
from typing import TYPE_CHECKING, Final

import outcome
import trio

if TYPE_CHECKING:
    import socket

_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WATCHED: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Ear:
    """What is known of one socket's readability. `heard`: something may be there to read."""

    __slots__ = ("ended", "heard", "task")

    def __init__(self) -> None:
        self.heard = False  # what is there already is told by the registration
        self.ended = False
        self.task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait until reading may give something. Errors: ClosedResourceError once closed. Cancel: safe."""
        if self.heard or self.ended:
            await trio.lowlevel.checkpoint()  # may be cancelled: what was told is still untold then
            self.heard = False
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            self.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
        self.heard = False

    def close(self) -> None:
        """Wake whoever waits, with ClosedResourceError."""
        self.ended = True
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(trio.ClosedResourceError("closed by another task")))


class Ears:
    """The epoll and the task that reads it. `run` must run as long as any ear is waited on."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ears: dict[int, Ear] = {}

    def open(self, sock: socket.socket) -> Ear:
        """Register a socket. Errors: OSError (the kernel ends, or no watch is left)."""
        if self._epoll.closed:
            raise OSError(errno.EBADF, "no more ears")
        number = sock.fileno()
        ear = Ear()
        self._epoll.register(number, _WATCHED)
        self._ears[number] = ear
        return ear

    def forget(self, sock: socket.socket, ear: Ear) -> None:
        """Let a socket go that is about to be closed (which takes it out of the epoll)."""
        number = sock.fileno()
        if self._ears.get(number) is ear:
            del self._ears[number]
        ear.close()

    async def run(self) -> None:
        """Wake who has something to read, for ever. Cancel: safe."""
        poll, ears = self._epoll.poll, self._ears
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for number, events in poll(0):
                    ear = ears.get(number)
                    if ear is None:
                        continue
                    ear.heard = True
                    if events & _ENDED:
                        ear.ended = True
                    task = ear.task
                    if task is not None:
                        ear.task = None
                        trio.lowlevel.reschedule(task)
        finally:
            self._epoll.close()
