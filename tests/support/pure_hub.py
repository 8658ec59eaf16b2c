"""The hub without any edge: time is a number, wires are lists of frames. For tests of the decisions alone.

hub = PureHub()
a, b = hub.ready("a"), hub.ready("b", methods=["echo"])
a.send({"jsonrpc": "2.0", "id": 1, "method": "b.echo"})
assert b.frames()[0]["method"] == "echo"
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kite_kernel.config import build
from kite_kernel.core.auth import Tokens
from kite_kernel.core.effects import Arm, CloseWire, Disarm, Effect, Log
from kite_kernel.core.hub import Hub
from kite_kernel.core.replay import offset_of
from kite_kernel.methods import table

if TYPE_CHECKING:
    from kite_kernel.core.peer import Link

ROLES = {"o": "operator", "launcher": "launcher", "watchdog": "watchdog"}


def split_frames(data: bytes) -> list[Any]:
    """Read joined, unmasked frames; only text frames are returned, decoded."""
    found = []
    while data:
        end = offset_of(data, 1)
        if data[0] == 0x81:
            body = data[2 if data[1] < 126 else 4 if data[1] == 126 else 10 : end]
            found.append(json.loads(body))
        data = data[end:]
    return found


def is_event(frame: Any, name: str) -> bool:
    """Tell whether a frame is the event of this name."""
    return isinstance(frame, dict) and frame.get("method") == "event" and frame["params"]["event"] == name


class PurePeer:
    """One wire to the hub. `blocked`: it takes nothing, as a peer that does not read."""

    def __init__(self, hub: PureHub, link: Link) -> None:
        self.hub = hub
        self.link = link
        self.blocked = False
        self.answers_pings = True
        self.inbox: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self.hello: dict[str, Any] = {}
        self.raw = b""

    def send(self, frame: Any) -> None:
        """Give the hub one text message."""
        text = frame if isinstance(frame, str | bytes) else json.dumps(frame, separators=(",", ":"))
        self.hub.core.on_text(self.link, text.encode() if isinstance(text, str) else text, now=self.hub.now)
        self.hub.settle()

    def ask(self, method: str, params: Any = None, ident: Any = "ask") -> dict[str, Any]:
        """Send a request and return its answer, which must be there at once."""
        frame = {"jsonrpc": "2.0", "id": ident, "method": method}
        self.send(frame if params is None else frame | {"params": params})
        found = [row for row in self.inbox if isinstance(row, dict) and row.get("id") == ident and "method" not in row]
        assert len(found) == 1, self.inbox
        self.inbox.remove(found[0])
        answer: dict[str, Any] = found[0]
        return answer

    def say(self, event: str, data: Any = None, **more: Any) -> None:
        """Publish as a notification."""
        self.send({"jsonrpc": "2.0", "method": "event.publish", "params": {"event": event, "data": data, **more}})

    def frames(self) -> list[Any]:
        """Return what came since the last look."""
        found, self.inbox = self.inbox, []
        return found

    def events(self, name: str) -> list[Any]:
        """Return the params of the events of one name that came since the last look."""
        return [
            row["params"] for row in self.frames() if row.get("method") == "event" and row["params"]["event"] == name
        ]

    def drain(self) -> None:
        """Take what waits."""
        data = self.link.urgent + self.link.take()
        self.link.urgent = b""
        while data:
            self.raw += data
            for frame in split_frames(data):
                if (
                    self.answers_pings
                    and isinstance(frame, dict)
                    and frame.get("method") == "event"
                    and frame["params"]["event"] == "system.ping"
                ):
                    self.hub.pongs.append((self, frame["params"]["data"]["ping_time"]))
                else:
                    self.inbox.append(frame)
            data = self.link.take()

    def cut(self, *, clean: bool = False) -> None:
        """End the wire."""
        self.hub.core.on_cut(self.link, code=1000 if clean else None, clean=clean, why="cut", now=self.hub.now)
        self.hub.settle()


class PureHub:
    """A hub, its tokens (`token-NAME`) and its time in seconds."""

    def __init__(self, config: dict[str, Any] | None = None, *, standalone: bool = True) -> None:
        self.now = 1000.0
        self.config = build(config or {}, "", "kite.toml", standalone=standalone)
        names = iter(range(1_000_000))
        self.core = Hub(
            self.config.settings,
            epoch="epoch-1",
            version="0",
            fresh_id=lambda: f"fresh-{next(names)}",
            now=self.now,
        )
        self.core.handlers.update(table(self.core))
        self.core.members.permissions = self.config.permissions
        self.set_tokens("abcdefgh", "o", "launcher", "watchdog")
        self.peers: list[PurePeer] = []
        self.pongs: list[tuple[PurePeer, float]] = []
        self.effects: list[Effect] = []
        self.clocks: dict[tuple[str, str], float] = {}

    def set_tokens(self, letters: str, *names: str) -> None:
        """Let these have tokens."""
        rows = {name: (ROLES.get(name, "module"), (f"token-{name}",)) for name in [*letters, *names]}
        self.core.on_tokens(Tokens(rows), now=self.now)

    # --- wires ---

    def open(self, addr: str = "127.0.0.1") -> PurePeer:
        """Open a wire without authenticating."""
        link = self.core.on_open(addr, None, now=self.now)
        peer = PurePeer(self, link)
        link.wire = peer
        self.peers.append(peer)
        return peer

    def auth(self, name: str, *, instance: str | None = "i1", **params: Any) -> PurePeer:
        """Open a wire and authenticate; the whole answer must be a result."""
        peer = self.open()
        given = {"token": f"token-{name}", **params} | ({"instance": instance} if instance else {})
        peer.send({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": given})
        answer = peer.inbox.pop(0)
        assert "result" in answer, answer
        peer.hello = answer["result"]
        return peer

    def ready(
        self, name: str, *, methods: Any = ("echo",), events: Any = (), instance: str | None = "i1", quiet: bool = True
    ) -> PurePeer:
        """Bring a module to `ready`; `quiet` empties everybody's inbox afterwards."""
        peer = self.auth(name, instance=instance)
        assert "result" in peer.ask("event.subscribe", {"events": list(events)})
        assert "result" in peer.ask("registry.register", {"methods": list(methods)})
        peer.say("module.ready")
        for other in self.peers if quiet else ():
            other.frames()
        return peer

    # --- after every event ---

    def settle(self) -> None:
        """Flush and carry out, as the edge does."""
        board = self.core.board
        while board.touched or board.effects:
            touched, board.touched = board.touched, []
            for peer in touched:
                peer.touched = False
                link = peer.link
                if link is None or link.closing or link.wire.blocked:
                    if peer.out:
                        self.core.queues.judge(peer, now=self.now)
                else:
                    link.wire.drain()
                    self.core.queues.relieved(peer)
                if peer.replay is not None:
                    self.core.liveness.keep_bounded(peer, now=self.now)
            effects, board.effects = board.effects, []
            for effect in effects:
                self._carry_out(effect)
            pongs, self.pongs = self.pongs, []
            for wire, ping_time in pongs:
                data = {"ping_time": ping_time, "pong_time": ping_time + 0.001}
                pong = {"jsonrpc": "2.0", "method": "event.publish", "params": {"event": "system.pong", "data": data}}
                self.core.on_text(wire.link, json.dumps(pong).encode(), now=self.now)

    def _carry_out(self, effect: Effect) -> None:
        self.effects.append(effect)
        if isinstance(effect, CloseWire):
            wire: PurePeer = effect.link.wire
            wire.inbox += split_frames(effect.frames)
            wire.closed = (effect.code, effect.reason)
        elif isinstance(effect, Arm):
            self.clocks[effect.clock, effect.key] = self.now + effect.delay_s
        elif isinstance(effect, Disarm):
            self.clocks.pop((effect.clock, effect.key), None)

    # --- time ---

    def sleep(self, seconds: float) -> None:
        """Let time pass, doing all that falls due on the way, each at its own time."""
        end = self.now + seconds
        while True:
            clock = min(self.clocks.items(), key=lambda row: row[1], default=None)
            at = min(self.core.next_at(), clock[1] if clock else end + 1)
            if at > end:
                break
            self.now = max(self.now, at)
            if clock is not None and clock[1] <= self.now:
                del self.clocks[clock[0]]
                if clock[0][0] == "debounce":
                    self.core.on_away(clock[0][1], now=self.now)
                else:
                    self.core.on_launcher_lost(now=self.now)
            else:
                self.core.on_time(now=self.now)
            self.settle()
        self.now = end

    def lines(self, event: str) -> list[str]:
        """Return the texts of the log lines of one kind."""
        return [effect.text for effect in self.effects if isinstance(effect, Log) and effect.event == event]
