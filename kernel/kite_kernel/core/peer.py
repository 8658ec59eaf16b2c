"""Who the hub talks to: `Peer` (a module, over all its wires) and `Link` (one wire), with the queue between them.

Laws:
- A peer's queue holds whole frames in the order in which they were decided; the wire takes them, never the other
  way round, and a frame gets its number (10-wire §8) in the moment in which the wire takes it.
- What was taken stays in the replay buffer until it is acknowledged or the bound pushes it out.
- Nothing here decides; the rooms (registry, calls, topics …) do, and only they change these values.

Source: spec 00 §8a, 10-wire §8, 20-kernel §4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kite_kernel.core.text import encode, iso, notice
from kite_kernel.core.websocket import text_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from kite_kernel.core.auth import Grant
    from kite_kernel.core.permissions import Permissions
    from kite_kernel.core.quality import Pulse
    from kite_kernel.core.registry import State
    from kite_kernel.core.replay import Replay

TAKE_BYTES: Final = 1 << 18
"""How much one take joins at most (bytes, one frame at least): a blocked wire must not hold a copy of its queue."""


class Call:
    """One request on its way: who asked under which id, who answers under which number, and until when."""

    __slots__ = (
        "callee",
        "caller",
        "caller_id",
        "deadline_at",
        "frame",
        "key",
        "kid",
        "method",
        "sink",
        "started_at",
        "usual",
        "void",
    )

    def __init__(self, kid: bytes, caller: Peer, caller_id: bytes, callee: Peer, method: str, now: float) -> None:
        self.kid = kid
        self.caller = caller
        self.caller_id = caller_id
        self.callee = callee
        self.method = method
        self.started_at = now
        self.deadline_at = 0.0
        self.usual = True  # its deadline is the default one, so the order of `calls` is the order of deadlines
        self.frame: bytes | None = None  # held: made, but in nobody's hands yet
        self.void = False  # over before it was handed out: the queue skips it
        self.sink: Callable[[bytes], None] | None = None  # a batch collects its answers
        self.key: tuple[str, str, str] | None = None


class Laned:
    """A queued event of a subscription that rather loses events than its wire; may be voided while it waits."""

    __slots__ = ("frame", "key", "lane", "void")

    def __init__(self, lane: Lane, key: int | str, frame: bytes) -> None:
        self.lane = lane
        self.key = key
        self.frame = frame
        self.void = False


class Lane:
    """The waiting events of one subscription with policy `drop_oldest` or `latest`."""

    __slots__ = ("limit", "lost", "numbered", "pattern", "policy", "waiting")

    def __init__(self, pattern: str, policy: str, limit: int) -> None:
        self.pattern = pattern
        self.policy = policy
        self.limit = limit
        self.lost = 0
        self.numbered = 0
        self.waiting: dict[int | str, Laned] = {}


ASKED_MAX: Final = 256  # callees that are told apart for one caller: a picture of who works with whom, no ledger


class Peer:
    """A module as the hub sees it, from its first authentication until it is offline and forgotten."""

    __slots__ = (
        "accepts_meta",
        "ack_asked",
        "acknowledged",
        "admin",
        "asked",
        "bytes_in",
        "bytes_out",
        "calls",
        "critical_at",
        "exiting",
        "frames_in",
        "frames_out",
        "full_at",
        "gone",
        "id",
        "instance",
        "judged",
        "judged_bytes",
        "laned",
        "lanes",
        "link",
        "meta",
        "methods",
        "out",
        "overloads",
        "overrun",
        "permissions",
        "pressure",
        "protocol",
        "pulse",
        "quoted",
        "received",
        "replay",
        "role",
        "said",
        "sent",
        "service",
        "session",
        "since_utc",
        "state",
        "subscriptions",
        "token",
        "topic",
        "touched",
        "voided",
        "working",
    )

    def __init__(self, module_id: str, role: str, state: State, pulse: Pulse) -> None:
        self.id = module_id
        self.quoted: bytes = encode(module_id)
        self.role = role
        self.admin = role != "module"
        self.state = state
        self.pulse = pulse
        self.since_utc = 0.0  # seconds since 1970; 0: not yet
        self.instance: str | None = None
        self.protocol = 2
        self.session = ""
        self.token = ""  # the name of its token, never the token
        self.permissions: Permissions | None = None
        self.link: Link | None = None
        self.exiting = False
        self.acknowledged = False  # it heard `module.shutdown`
        self.gone = False  # offline and forgotten: whatever still refers to it drops what it has
        self.said = 0  # bits: 1 registered, 2 subscribed
        self.methods: dict[str, Method] = {}
        self.service: str | None = None
        self.meta: bytes = b"null"
        self.accepts_meta = False
        self.subscriptions: dict[str, Lane | None] = {}
        self.calls: dict[bytes, Call] = {}  # its own in flight, by the text of its id
        self.working = 0  # calls in its hands
        self.asked: dict[str, int] = {}  # callee -> calls since it came, for `kernel.flows`; bounded by ASKED_MAX
        # the queue
        self.out: list[Any] = []  # bytes; and, where `laned`, Laned and held Call too
        self.touched = False  # stands in `Board.touched` already
        self.laned = False
        self.lanes = 0
        self.voided = 0  # entries of `out` that are void
        self.judged = 0  # how many entries of `out` are in `judged_bytes`
        self.judged_bytes = 0
        self.pressure = 0  # 0 normal, 1 warning, 2 critical
        self.critical_at = 0.0
        self.full_at = 0.0
        self.topic = ""
        # numbers (10-wire §8) and what may have to be said again
        self.received = 0
        self.sent = 0
        self.replay: Replay | None = None  # None: this client never resumes
        self.overrun = False
        self.overloads = 0  # calls over the bound since its reader last looked
        self.ack_asked = False
        self.frames_in = 0  # of earlier sessions; `received` and `sent` count this one
        self.frames_out = 0
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def since(self) -> str:
        """Since when it stands in its state, as a stamp."""
        return iso(self.since_utc)

    @property
    def resumable(self) -> bool:
        """Tell whether its frames are kept for a resume."""
        return self.replay is not None

    def take(self) -> bytes:
        """Hand out the next whole frames for the wire, numbered and kept for replay; b"" where nothing waits."""
        out = self.out
        if not out:
            return b""
        count = len(out)
        if self.laned:
            return self._take_laned()
        if count == 1 and not self.judged:
            data: bytes = out[0]
            out.clear()
        elif count <= 64 and not self.judged:
            data = b"".join(out)
            out.clear()
        else:
            data, count = self._take_some(out)
        self._number(count, data)
        return data

    def _take_some(self, out: list[bytes]) -> tuple[bytes, int]:
        """Join frames up to TAKE_BYTES, one at least."""
        size = 0
        count = 0
        for frame in out:
            size += len(frame)
            count += 1
            if size >= TAKE_BYTES:
                break
        data = b"".join(out[:count])
        del out[:count]
        if self.judged:
            self.judged = max(0, self.judged - count)
            self.judged_bytes = max(0, self.judged_bytes - size) if self.judged else 0
        return data, count

    def _take_laned(self) -> bytes:
        """Take frames from a queue in which entries may be void, telling each lane's gap before its next event."""
        frames: list[bytes] = []
        size = 0
        used = 0
        for entry in self.out:
            used += 1
            if entry.__class__ is bytes:
                frames.append(entry)
                size += len(entry)
            elif not entry.void:
                if isinstance(entry, Call):
                    frame = entry.frame or b""
                    entry.frame = None
                else:
                    lane = entry.lane
                    lane.waiting.pop(entry.key, None)
                    if lane.lost:
                        frames.append(gap_frame(lane.pattern, lane.lost))
                        lane.lost = 0
                    frame = entry.frame
                frames.append(frame)
                size += len(frame)
            if size >= TAKE_BYTES:
                break
        del self.out[:used]
        self.voided = max(0, self.voided - used + len(frames)) if self.out else 0
        self.judged = 0
        self.judged_bytes = 0
        if not self.out and not self.lanes:
            self.laned = False
        data = b"".join(frames)
        if frames:
            self._number(len(frames), data)
        return data

    def _number(self, count: int, data: bytes) -> None:
        """Count frames as sent and keep them until they are acknowledged."""
        self.sent += count
        self.bytes_out += len(data)
        if self.replay is not None:
            self.replay.add(count, data)

    def count_outside(self, count: int, data: bytes) -> None:
        """Number frames that the edge sends past the queue: the farewell before a close."""
        self._number(count, data)

    def sweep(self) -> None:
        """Let go of the void entries of the queue."""
        self.out[:] = [entry for entry in self.out if entry.__class__ is bytes or not entry.void]
        self.voided = 0
        self.judged = 0
        self.judged_bytes = 0

    def drop_queue(self) -> None:
        """Forget everything that waits (the session is over or overrun)."""
        self.out.clear()
        self.voided = 0
        self.laned = bool(self.lanes)
        self.judged = 0
        self.judged_bytes = 0


class Method:
    """One registered method and the part of a forwarded frame that never changes."""

    __slots__ = ("bare", "head", "info", "name", "size_bytes")

    def __init__(self, name: str, quoted: bytes, info: dict[str, Any]) -> None:
        self.name = name
        self.info = info
        self.size_bytes = len(encode(info)) + len(quoted) if info else 2 * len(quoted)
        self.head = b',"method":' + quoted + b',"params":'
        self.bare = b',"method":' + quoted


class Link:
    """One wire of the module plane, from its upgrade on. `wire` is the edge's hand, opaque here."""

    __slots__ = (
        "addr",
        "closing",
        "digest",
        "due_at",
        "grant",
        "id",
        "opened_at",
        "peer",
        "protocol",
        "urgent",
        "wire",
    )

    def __init__(self, link_id: int, addr: str, opened_at: float, due_at: float, wire: Any = None) -> None:
        self.id = link_id
        self.addr = addr
        self.opened_at = opened_at
        self.due_at = due_at  # first frame due, monotonic seconds
        self.peer: Peer | None = None
        self.protocol = 2
        self.grant: Grant | None = None
        self.digest = b""  # a handle to its token, for revocation
        self.closing = False
        self.urgent = b""  # frames outside the numbering: the auth answer, WebSocket pings and pongs
        self.wire = wire

    def take(self) -> bytes:
        """Hand out what the wire should send next."""
        peer = self.peer
        return peer.take() if peer is not None and not self.closing else b""


def gap_frame(pattern: str, lost: int) -> bytes:
    """Make the notice `event.gap` (05 §9)."""
    return text_frame(notice("event.gap", {"pattern": pattern, "lost": lost}))
