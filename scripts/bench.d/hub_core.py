"""The work that every yardstick hub does, apart from its sockets: authenticate, register, route calls, fan out.

It does what Kite's users would write by hand in an afternoon and nothing more: no deadlines, no queues with bounds, no
resume, no liveness, no permissions. So a ratio against it is never flattering to Kite.
"""

from __future__ import annotations

import hmac
import json
import sys
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


class Peer:
    """One connection; `link` is whatever the hub sends with."""

    __slots__ = ("link", "module_id")

    def __init__(self, link: Any) -> None:
        self.link = link
        self.module_id = ""


class Core:
    """Decide what one text message leads to; `send` and `broadcast` are the hub's own."""

    def __init__(
        self,
        tokens: dict[str, str],
        send: Callable[[Peer, bytes], None],
        broadcast: Callable[[set[Peer], bytes], None],
    ) -> None:
        self.tokens = tokens
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
        if self.modules.get(peer.module_id) is peer:
            del self.modules[peer.module_id]
        for table in (self.exact, self.prefixes):
            for peers in table.values():
                peers.discard(peer)

    def _authenticate(self, peer: Peer, message: Message) -> None:
        params = decode_auth(message.params)
        owner = self.tokens.get(params.token, "")
        if message.method != "auth" or not owner or not hmac.compare_digest(owner, params.module_id):
            self.send(peer, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32010,"message":"authentication failed"}}')
            return
        peer.module_id = owner
        self.modules[owner] = peer
        self.send(
            peer,
            b'{"jsonrpc":"2.0","id":%b,"result":{"module_id":"%b","protocol":2,"resumed":false}}'
            % (bytes(message.id), owner.encode()),
        )

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
