"""Frames and descriptors between the launcher and one log keeper: questions, answers, and what is told unasked.

One task owns the sending, one the receiving; whoever is cancelled while it waits for an answer tears nothing.
Descriptors of a frame are duplicated when it is queued and closed when it is sent.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import trio

from kite_launcher.core.keeper_frames import FDS_MAX, BadFrame, FrameReader, encode_frame
from kite_launcher.edge.keeper_pipes import close_all

ANSWER_S: Final = 10.0  # the keeper answers within milliseconds; a machine under load gets time
QUEUE: Final = 1000
_CHUNK: Final = 64 * 1024

Data = dict[str, Any]
Answer = tuple[Data, list[int]]


class KeeperGone(Exception):
    """The keeper's process or its socket ended, or it does not answer; ask the next keeper."""


class Question:
    """One question that is out; its answers come in order (a spawn has two)."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._send, self._receive = trio.open_memory_channel[Answer](4)

    async def answer(self) -> Answer:
        """Wait for the next answer. Cancel: safe. Raises: KeeperGone."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel as problem:
            raise KeeperGone("it ended") from problem

    def take(self, answer: Answer) -> None:
        """Hand an answer over; one that nobody waits for any more is dropped with its descriptors."""
        try:
            self._send.send_nowait(answer)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            close_all(answer[1])

    def end(self) -> None:
        """Let whoever waits know that nothing will come."""
        self._send.close()


class KeeperWire:
    """The socket to one keeper. `on_push` takes what is told unasked, with its descriptors; `gone` is its end."""

    def __init__(self, sock: trio.socket.SocketType, on_push: Callable[[Data, list[int]], None]) -> None:
        self.gone = trio.Event()
        self._sock = sock
        self._on_push = on_push
        self._count = 0
        self._questions: dict[int, Question] = {}
        self._out_send, self._out = trio.open_memory_channel[tuple[bytes, list[int]]](QUEUE)

    def start(self, nursery: trio.Nursery) -> None:
        """Begin to send and to receive."""
        nursery.start_soon(self._send_all)
        nursery.start_soon(self._receive_all)

    def end(self) -> None:
        """Set `gone` and wake everybody who waits; the tasks end by the closed socket."""
        self.gone.set()
        self._sock.close()
        self._out_send.close()
        for question in self._questions.values():
            question.end()
        self._questions.clear()

    async def question(self, data: Data, fds: list[int] | None = None) -> Question:
        """Send a question. `forget` it in the end. Raises: KeeperGone."""
        if self.gone.is_set():
            raise KeeperGone("it ended")
        self._count += 1
        question = Question(self._count)
        self._questions[self._count] = question
        try:
            await self._queue({"id": question.number, **data}, fds or [])
        except BaseException:
            self.forget(question)
            raise
        return question

    def forget(self, question: Question) -> bool:
        """Wait for no more answers; True when the wire would still have brought some."""
        return self._questions.pop(question.number, None) is not None

    async def ask(self, data: Data, fds: list[int] | None = None) -> Answer:
        """Ask and wait for the answer. Raises: KeeperGone, also for a refusal or after `ANSWER_S`."""
        try:
            with trio.fail_after(ANSWER_S):
                question = await self.question(data, fds)
                try:
                    answer = await question.answer()
                finally:
                    self.forget(question)
        except trio.TooSlowError as problem:
            raise KeeperGone("it does not answer") from problem
        if "error" in answer[0]:
            raise KeeperGone(f"it refused {data['op']}: {answer[0]['error']}")
        return answer

    async def send(self, data: Data) -> None:
        """Send what needs no answer. Raises: KeeperGone."""
        self._count += 1
        await self._queue({"id": self._count, **data}, [])

    def tell(self, data: Data) -> None:
        """Send what needs no answer, without waiting; dropped when the wire is full or gone."""
        self._count += 1
        with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self._out_send.send_nowait((encode_frame({"id": self._count, **data}), []))

    async def _queue(self, data: Data, fds: list[int]) -> None:
        try:
            frame = encode_frame(data, len(fds))
        except BadFrame as problem:
            raise KeeperGone(str(problem)) from problem
        copies = [os.dup(fd) for fd in fds]
        try:
            await self._out_send.send((frame, copies))
        except BaseException as problem:
            close_all(copies)
            if isinstance(problem, trio.ClosedResourceError | trio.BrokenResourceError):
                raise KeeperGone("it ended") from problem
            raise

    async def _send_all(self) -> None:
        try:
            async for frame, fds in self._out:
                try:
                    await self._send_frame(frame, fds)
                finally:
                    close_all(fds)
        except (OSError, trio.ClosedResourceError):
            self.end()
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
            close_all(frames.spare)
            self.end()

    def _take(self, frame: Data, fds: list[int]) -> None:
        if "push" in frame:
            self._on_push(frame, fds)
            return
        question = self._questions.get(frame.get("id", 0))
        if question is None:
            close_all(fds)
        else:
            question.take((frame, fds))
