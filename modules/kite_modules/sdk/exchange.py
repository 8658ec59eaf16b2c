"""What goes out in which order, what waits for which answer, across any number of wires. Pure.

Two lanes: `session` frames belong to one session (answers, pongs, progress, the sync's calls) and die with it; `user`
frames (calls, publishes) are held until the session is in step and outlive a lost one while they were never sent.
Laws: a frame is booked before it is handed out; each call ends once; what was sent and not answered when its session
is lost ends as −32002/unknown, except a kept publish, which is asked again under its key; an answer never reaches
another session than the one that asked. Source: spec 10-wire §6-8, 30-clients §2.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs
import msgspec

from kite_modules import _contract
from kite_modules.sdk import frames
from kite_modules.sdk.errors import CallError, kernel_error
from kite_modules.sdk.frames import EventParams, Frame, RpcId
from kite_modules.sdk.pending import Pending
from kite_modules.sdk.resume import ResumeBook

RESUME_FRAMES_MAX: Final = 100_000
"""Pings acknowledge every 5 s when calls run: at 10,000 frames a second this is two of these intervals."""
RESUME_BYTES_MAX: Final = 16 * 1024 * 1024
"""The memory that a module spends on being cut without loss; beyond it a cut is an honest −32002."""

_MESSAGE_BYTES: Final = 1024 * 1024  # the default of kite.toml, until the auth answer says the kernel's own


@attrs.frozen
class Incoming:
    """A request or notice for the layer above; `generation` names the session that it came in."""

    frame: Frame
    generation: int


@attrs.define
class Statistics:
    """Counters of one exchange; all only grow."""

    frames_in: int = 0
    frames_out: int = 0
    bad_frames: int = 0
    late_answers: int = 0
    dropped_answers: int = 0
    resumes: int = 0
    fresh_sessions: int = 0


class Exchange:
    """The outgoing lanes, the calls in flight and the resume book of one client.

    Args: `queue_max`: publishes kept while away (calls are bounded by who waits for them); `on_work` is called when
    there may be something to send.
    """

    def __init__(self, *, queue_max: int, on_work: Callable[[], None]) -> None:
        self.book = ResumeBook(frames_max=RESUME_FRAMES_MAX, bytes_max=RESUME_BYTES_MAX)
        self.statistics = Statistics()
        self.generation = 0
        self.is_open = False
        self.message_bytes_max = _MESSAGE_BYTES
        self._queue_max = queue_max
        self._on_work = on_work
        self._ids = itertools.count(1)
        self._order = itertools.count(1)
        self._again: deque[str] = deque()
        self._session_lane: deque[tuple[int, str | Pending]] = deque()
        self._user_lane: deque[tuple[int, str | Pending]] = deque()
        self._pending: dict[RpcId, Pending] = {}
        self._unwaited = 0

    # ------------------------------------------------------------------ what the author asks for

    def new_id(self) -> int:
        """Return an id that no call of this client ever had."""
        return next(self._ids)

    def submit(self, pending: Pending, *, sync: bool = False) -> None:
        """Put a call in line; `sync` calls go before the session is in step and die with it."""
        self._pending[pending.id] = pending
        (self._session_lane if sync else self._user_lane).append((next(self._order), pending))
        self._on_work()

    def keep(self, pending: Pending) -> bool:
        """Put a call in line that nobody waits for; False when the line is full."""
        if self._unwaited >= self._queue_max:
            return False
        self._unwaited += 1
        self.submit(pending)
        return True

    def cancel(self, pending: Pending) -> None:
        """Forget a call; its callee is told when it was sent."""
        if self._pending.pop(pending.id, None) is None or pending.done:
            return
        pending.done = True
        if pending.sent:
            self.post(frames.notification("$/cancelRequest", f'{{"id":{pending.id}}}'), self.generation)

    def post(self, text: str, generation: int) -> bool:
        """Put a frame of one session in line; dropped (False) when that session is gone."""
        if generation != self.generation:
            self.statistics.dropped_answers += 1
            return False
        self._session_lane.append((next(self._order), text))
        self._on_work()
        return True

    @property
    def kept(self) -> int:
        """How many calls that nobody waits for are not answered yet."""
        return self._unwaited

    @property
    def session_backlog(self) -> int:
        """How many frames of this session wait to go out: what a progress stream is held back by."""
        return len(self._session_lane)

    @property
    def in_flight(self) -> int:
        """How many calls have not ended."""
        return len(self._pending)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not (self._again or self._session_lane or (self._user_lane and self.is_open))

    # ------------------------------------------------------------------ what a wire takes

    def next_frame(self, *, now: float) -> str | None:
        """Return the next frame to send, booked already; None when there is nothing to send now."""
        if self._again:
            return self._again.popleft()  # booked when it went out for the first time
        while (lane := self._next_lane()) is not None:
            item = lane.popleft()[1]
            if isinstance(item, Pending):
                if item.done:
                    continue
                text = item.render(now=now)
                if self._too_large(text):
                    self._end_too_large(item)
                    continue
                item.sent = True
                item = text
            self.book.sent(item)
            self.statistics.frames_out += 1
            return item
        return None

    def _too_large(self, text: str) -> bool:
        return len(text) * 4 > self.message_bytes_max and len(text.encode()) > self.message_bytes_max

    def _end_too_large(self, pending: Pending) -> None:
        """A frame above the kernel's bound would end the whole connection: it is refused here."""
        self._forget(pending)
        error = kernel_error(
            _contract.E_INVALID_REQUEST, "limit", "not_sent", method=pending.method, limit=self.message_bytes_max
        )
        pending.fail(error)

    def _forget(self, pending: Pending) -> None:
        if self._pending.pop(pending.id, None) is not None and pending.keep:
            self._unwaited -= 1

    def _next_lane(self) -> deque[tuple[int, str | Pending]] | None:
        session, user = self._session_lane, self._user_lane
        if not user or not self.is_open:
            return session or None
        return user if not session or user[0][0] < session[0][0] else session

    def take_auth(self, answer: dict[str, Any]) -> bool:
        """Take an auth result. Returns True when the session goes on, False when it starts over."""
        again = self.book.resumed(answer)
        if again is not None:
            self._again = deque(again)
            self.statistics.resumes += 1
            return True
        self.statistics.fresh_sessions += 1
        self._start_over()
        return False

    def _start_over(self) -> None:
        self.generation += 1
        self.is_open = False
        self._again.clear()
        sync = {item.id for _, item in self._session_lane if isinstance(item, Pending)}
        self._session_lane.clear()
        repeat = []
        for pending in list(self._pending.values()):
            if not pending.sent and pending.id not in sync:
                continue
            if pending.keep:
                pending.sent = False
                repeat.append((next(self._order), pending))
            else:
                self._forget(pending)
                outcome = "unknown" if pending.sent else "not_sent"
                error = kernel_error(_contract.E_CONNECTION_LOST, "connection_lost", outcome, method=pending.method)
                pending.fail(error)
        waiting = [(next(self._order), item) for _, item in self._user_lane]
        self._user_lane = deque([*repeat, *waiting])

    def stop(self, reason: str) -> None:
        """End every call: nothing will be sent any more."""
        self._session_lane.clear()
        self._user_lane.clear()
        self._again.clear()
        for pending in list(self._pending.values()):
            outcome = "unknown" if pending.sent else "not_sent"
            code = _contract.E_CONNECTION_LOST if pending.sent else _contract.E_OFFLINE
            word = "connection_lost" if pending.sent else "offline"
            pending.fail(kernel_error(code, word, outcome, method=pending.method, why=reason))
        self._pending.clear()
        self._unwaited = 0

    # ------------------------------------------------------------------ what a wire brings

    def on_text(self, text: str, *, wall_time: float) -> Incoming | EventParams | None:
        """Take one text message after the auth answer; returns what the layer above must see.

        Answers, progress and pings are dealt with here; the pong is in line when this returns.
        """
        self.book.received()
        self.statistics.frames_in += 1
        message = frames.read_frame(text)
        if message is None:
            self.statistics.bad_frames += 1
            return None
        if isinstance(message, EventParams):
            if message.event == "system.ping":
                self._on_ping(message, wall_time)
                return None
            return message
        kind = message.kind
        if kind == "answer":
            self._on_answer(message)
            return None
        if kind == "notice" and message.method == "$/progress":
            self._on_progress(message)
            return None
        return Incoming(message, self.generation)

    def _on_ping(self, event: EventParams, wall_time: float) -> None:
        data = frames.object_of(event.data)
        received = data.get("received")
        if isinstance(received, int) and not isinstance(received, bool):
            self.book.acknowledged(received)
        pong = {
            "event": "system.pong",
            "data": {
                "ping_time": data.get("ping_time"),
                "pong_time": wall_time,
                "received": self.book.received_frames,
            },
        }
        self.post(frames.notification("event.publish", frames.encode(pong)), self.generation)

    def _on_answer(self, frame: Frame) -> None:
        pending = None if isinstance(frame.id, msgspec.UnsetType) else self._pending.get(frame.id)
        if pending is None:
            self.statistics.late_answers += 1
            return
        self._forget(pending)
        if isinstance(frame.error, frames.WireError):
            try:
                data = frames.value_of(frame.error.data)
            except ValueError:
                data = None
            pending.fail(CallError(frame.error.code, frame.error.message, data, method=pending.method))
        elif isinstance(frame.result, msgspec.Raw):
            pending.succeed(frame.result)

    def _on_progress(self, frame: Frame) -> None:
        try:
            params = frames.value_of(frame.params)
            pending = self._pending.get(params["id"])
            if pending is not None and pending.on_progress is not None:
                pending.on_progress(params.get("value"))
        except (ValueError, TypeError, KeyError, AttributeError):
            self.statistics.bad_frames += 1
