"""The work that every yardstick hub does, apart from its sockets: authenticate, register, route calls, fan out.

It does what a hub of the same promises does on its hot paths, and nothing of the rest: a deadline for authentication,
a limit of its rate, sessions, a debounce before a module is told gone; but no deadlines of calls, no bounded queues, no
resume, no liveness, no permissions, no streams. So a ratio against it never flatters Kite.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Message(msgspec.Struct):
    """The envelope; everything inside stays bytes, as in Kite."""

    id: msgspec.Raw = msgspec.Raw(b"")
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class Auth(msgspec.Struct):
    token: str
    module_id: str = ""


class Subscribe(msgspec.Struct):
    events: list[str]


class Publish(msgspec.Struct):
    event: str
    data: msgspec.Raw = msgspec.Raw(b"null")


decode_message = msgspec.json.Decoder(Message).decode
decode_auth = msgspec.json.Decoder(Auth).decode
decode_subscribe = msgspec.json.Decoder(Subscribe).decode
decode_publish = msgspec.json.Decoder(Publish).decode


AUTH_S = 5.0
RATE_WINDOW_S = 10.0
RATE_MAX = 20
DEBOUNCE_S = 5.0


class Peer:
    """One connection; `link` is whatever the hub sends with, `cut` ends it."""

    __slots__ = ("address", "cut", "deadline", "link", "module_id", "session")

    def __init__(self, link: Any, address: str = "", cut: Callable[[], None] | None = None) -> None:
        self.link = link
        self.address = address
        self.module_id = ""
        self.session = ""
        self.cut = cut or (lambda: None)
        self.deadline = asyncio.get_running_loop().call_later(AUTH_S, self.cut)


class Core:
    """Decide what one text message leads to; `send` and `broadcast` are the hub's own."""

    def __init__(
        self,
        tokens: dict[str, str],
        send: Callable[[Peer, bytes], None],
        broadcast: Callable[[set[Peer], bytes], None],
    ) -> None:
        self.tokens = {hashlib.sha256(token.encode()).digest(): owner for token, owner in tokens.items()}
        self.rates: dict[tuple[str, str], deque[float]] = {}
        self.leaving: dict[str, asyncio.TimerHandle] = {}
        self.send = send
        self.broadcast = broadcast
        self.modules: dict[str, Peer] = {}
        self.methods: dict[str, set[str]] = {}
        self.exact: dict[str, set[Peer]] = {}
        self.prefixes: dict[str, set[Peer]] = {}
        self.pending: dict[int, tuple[Peer, bytes]] = {}
        self.last_id = 0

    def on_text(self, peer: Peer, text: bytes | str) -> None:
        message = decode_message(text)
        if not peer.module_id:
            self._authenticate(peer, message)
        elif message.method:
            if "." in message.method and message.method not in ("registry.register", "event.subscribe"):
                if message.method == "event.publish":
                    self._publish(peer, decode_publish(message.params))
                else:
                    self._route(peer, message)
            else:
                self._own(peer, message)
        elif message.id:
            self._answer(message)

    def on_closed(self, peer: Peer) -> None:
        peer.deadline.cancel()
        if self.modules.get(peer.module_id) is peer:
            del self.modules[peer.module_id]
            loop = asyncio.get_running_loop()
            self.leaving[peer.module_id] = loop.call_later(DEBOUNCE_S, self._tell_gone, peer.module_id)
        for table in (self.exact, self.prefixes):
            for peers in table.values():
                peers.discard(peer)

    def _tell_gone(self, module_id: str) -> None:
        self.leaving.pop(module_id, None)
        self.broadcast(
            set(self.modules.values()),
            b'{"jsonrpc":"2.0","method":"event","params":{"event":"module.offline","data":{"module_id":"%b"}}}'
            % module_id.encode(),
        )

    def _authenticate(self, peer: Peer, message: Message) -> None:
        params = decode_auth(message.params)
        owner = self.tokens.get(hashlib.sha256(params.token.encode()).digest(), "")
        good = message.method == "auth" and owner and hmac.compare_digest(owner, params.module_id)
        if not good or self._too_often(peer.address, owner):
            self.send(peer, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32010,"message":"authentication failed"}}')
            peer.cut()
            return
        peer.deadline.cancel()
        peer.module_id = owner
        peer.session = secrets.token_hex(16)
        if (leaving := self.leaving.pop(owner, None)) is not None:
            leaving.cancel()
        if (older := self.modules.get(owner)) is not None:
            older.cut()
        self.modules[owner] = peer
        result = {"module_id": owner, "session": peer.session, "protocol": 2, "resumed": False, "state": "connected"}
        self.send(peer, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(message.id), msgspec.json.encode(result)))

    def _too_often(self, address: str, module_id: str) -> bool:
        now = time.monotonic()
        stamps = self.rates.setdefault((address, module_id), deque())
        while stamps and stamps[0] < now - RATE_WINDOW_S:
            stamps.popleft()
        stamps.append(now)
        return len(stamps) > RATE_MAX

    def _own(self, peer: Peer, message: Message) -> None:
        if message.method == "registry.register":
            names = msgspec.json.decode(message.params)["methods"]
            self.methods[peer.module_id] = set(names)
            result = b'{"state":"registered"}'
        else:
            events = decode_subscribe(message.params).events
            for event in events:
                if event.endswith(".>"):
                    self.prefixes.setdefault(event[:-2], set()).add(peer)
                else:
                    self.exact.setdefault(event, set()).add(peer)
            result = b'{"events":[]}'
        self.send(peer, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (bytes(message.id), result))

    def _route(self, peer: Peer, message: Message) -> None:
        module_id, _, method = message.method.partition(".")
        target = self.modules.get(module_id)
        if target is None or method not in self.methods.get(module_id, ()):
            self.send(
                peer,
                b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32001,"message":"offline"}}' % bytes(message.id),
            )
            return
        self.last_id += 1
        self.pending[self.last_id] = (peer, bytes(message.id))
        self.send(
            target,
            b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}'
            % (self.last_id, method.encode(), bytes(message.params)),
        )

    def _answer(self, message: Message) -> None:
        found = self.pending.pop(int(bytes(message.id)), None)
        if found is None:
            return
        caller, ident = found
        if message.result:
            self.send(caller, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (ident, bytes(message.result)))
        else:
            self.send(caller, b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (ident, bytes(message.error)))

    def _publish(self, peer: Peer, event: Publish) -> None:
        hears = set(self.exact.get(event.event, ()))
        parts = event.event.split(".")
        for size in range(1, len(parts)):
            hears |= self.prefixes.get(".".join(parts[:size]), set())
        if hears:
            self.broadcast(
                hears,
                b'{"jsonrpc":"2.0","method":"event","params":{"event":"%b","data":%b,"source":"%b"}}'
                % (event.event.encode(), bytes(event.data), peer.module_id.encode()),
            )


def arguments() -> tuple[dict[str, str], int]:
    """Read the command line of a yardstick hub: the file of tokens and the descriptor that hears the port."""
    return json.loads(Path(sys.argv[1]).read_text("utf-8")), int(sys.argv[2])
