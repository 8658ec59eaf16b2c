"""The load's own WebSocket client: raw sockets, frames built before the clock runs, answers found by pattern.

The mask is four zeros, which is a mask like any other to a server, and costs the client nothing.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from typing import Any

READ_BYTES = 1 << 18
IDS = re.compile(rb'"id": ?("[^"]*"|[0-9]+)[,}]')
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = b"system.ping"
PONG_DATA = (
    b'{"jsonrpc":"2.0","method":"event.publish","params":{"event":"system.pong","data":{"ping_time":0,"pong_time":0}}}'
)


def frame(payload: bytes) -> bytes:
    """Return a masked text frame."""
    size = len(payload)
    if size < 126:
        return b"\x81" + bytes((0x80 | size,)) + b"\0\0\0\0" + payload
    if size < 65536:
        return b"\x81\xfe" + struct.pack(">H", size) + b"\0\0\0\0" + payload
    return b"\x81\xff" + struct.pack(">Q", size) + b"\0\0\0\0" + payload


PONG = frame(PONG_DATA)


def split(buffer: bytes) -> tuple[list[bytes], bytes]:
    """Cut a server's bytes into payloads of whole text frames and the rest; control frames are left out."""
    payloads = []
    at = 0
    while len(buffer) - at >= 2:
        size, begin = buffer[at + 1], at + 2
        if size == 126:
            size, begin = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
        elif size == 127:
            size, begin = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
        if begin + size > len(buffer):
            break
        if buffer[at] == 0x88:
            raise ConnectionError(f"closed: {buffer[begin : begin + size]!r}")
        if buffer[at] == 0x81:
            payloads.append(buffer[begin : begin + size])
        at = begin + size
    return payloads, buffer[at:]


class Client:
    """A blocking connection for what happens before and between measurements."""

    def __init__(self, port: int, path: str = "/ws", headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        more = "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
        self.sock.sendall(UPGRADE.replace(b"/ws", path.encode(), 1)[:-2] + more + b"\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.sock.recv(4096)
            if not data:
                raise ConnectionError(head)
            head += data
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(head[:200])
        self.rest = head.partition(b"\r\n\r\n")[2]

    def fileno(self) -> int:
        return self.sock.fileno()

    def call(self, method: str, params: object) -> Any:
        """Ask and wait for the answer; everything else that comes meanwhile is dropped."""
        request = {"jsonrpc": "2.0", "id": 900000001, "method": method, "params": params}
        self.sock.sendall(frame(json.dumps(request, separators=(",", ":")).encode()))
        while True:
            payloads, self.rest = split(self.rest)
            for payload in payloads:
                answer = json.loads(payload)
                if answer.get("id") == 900000001:
                    if "error" in answer:
                        raise ConnectionError(f"{method}: {answer['error']}")
                    return answer["result"]
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError(f"{method}: connection ended")
            self.rest += data

    def note(self, method: str, params: object) -> None:
        """Send a notification."""
        note = {"jsonrpc": "2.0", "method": method, "params": params}
        self.sock.sendall(frame(json.dumps(note, separators=(",", ":")).encode()))

    def close(self) -> None:
        self.sock.close()


def auth_params(tokens: dict[str, str], module_id: str) -> dict[str, object]:
    return {"token": tokens[module_id], "module_id": module_id, "protocol": 2}


def module(port: int, tokens: dict[str, str], module_id: str, *, methods: list[str] | None = None,
           events: list[str] | None = None) -> Client:  # fmt: skip
    """Connect a module that is ready: authenticated, subscribed, registered."""
    client = Client(port)
    client.call("auth", auth_params(tokens, module_id))
    client.call("event.subscribe", {"events": events or []})
    client.call("registry.register", {"methods": methods or []})
    client.note("event.publish", {"event": "module.ready", "data": {}})
    return client
