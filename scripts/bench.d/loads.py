"""The loads: each takes a running hub's port, drives it for some seconds and returns what it counted."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import TYPE_CHECKING

import attrs
from wire import IDS, PING, PONG, READ_BYTES, UPGRADE, Client, frame, module

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Hub

TEXT = "0123456789abcdef" * 4
START = b'{"jsonrpc"'
MARK = b"bench.tick"
TICK = b'{"jsonrpc":"2.0","method":"event.publish","params":{"event":"bench.tick","data":{"n":1,"text":"%b"}}}'
CONNECT_AT_ONCE = 32
STALLED_S = 20.0


class Stalled(Exception):
    """The hub stopped answering."""


@attrs.frozen
class Measured:
    """What was done in a second, and how much of its core the hub used for it (1.0 = all)."""

    rate: float
    busy: float


class Clock:
    """Runs for the length of a measurement; knows what the hub spent meanwhile."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.spent_s = hub.cpu_s()
        self.began = time.perf_counter()

    def done(self, count: int) -> Measured:
        took_s = time.perf_counter() - self.began
        return Measured(count / took_s, (self.hub.cpu_s() - self.spent_s) / took_s)


def _reply_maker(result: bytes) -> Callable[[bytes], bytes]:
    """Return a function from an id's text to a whole answer frame, its header cached by length."""
    heads: dict[int, bytes] = {}
    tail = b',"result":' + result + b"}"
    start = b'{"jsonrpc":"2.0","id":'

    def reply(ident: bytes) -> bytes:
        size = len(ident)
        head = heads.get(size)
        if head is None:
            whole = frame(start + b"0" * size + tail)
            head = heads[size] = whole[: whole.index(start) + len(start)]
        return head + ident + tail

    return reply


def rpc(hub: Hub, tokens: dict[str, str], seconds: float, in_flight: int = 64) -> Measured:
    """Routed calls per second: one caller with `in_flight` calls at a time, one callee, every answer counted."""
    callee = module(hub.port, tokens, "bench-callee", methods=["echo"])
    caller = module(hub.port, tokens, "bench-caller")
    _check_echo(caller, callee)
    call = b'{"jsonrpc":"2.0","id":%d,"method":"bench-callee.echo","params":{"n":1,"text":"%b"}}'
    calls = {b"%d" % n: frame(call % (n, TEXT.encode())) for n in range(1000, 1000 + in_flight)}
    reply = _reply_maker(b'{"n":1,"text":"%b"}' % TEXT.encode())
    poll = select.epoll()
    for client in (caller, callee):
        poll.register(client.fileno(), select.EPOLLIN)
    caller.sock.sendall(b"".join(calls.values()))
    rests = {caller.fileno(): b"", callee.fileno(): b""}
    done = 0
    clock = Clock(hub)
    while time.perf_counter() - clock.began < seconds:
        ready = poll.poll(STALLED_S)
        if not ready:
            raise Stalled(f"rpc: {done} calls")
        for number, _ in ready:
            asks = number == callee.fileno()
            sock = (callee if asks else caller).sock
            data = rests[number] + sock.recv(READ_BYTES)
            idents = IDS.findall(data)
            last = max(data.rfind(START), 0)  # the last frame is whole enough when its id is
            found = IDS.search(data, last)
            rests[number] = data[found.end() if found else last :]
            if asks:
                sock.sendall(b"".join(map(reply, idents)))
            else:
                done += len(idents)
                sock.sendall(b"".join(map(calls.__getitem__, idents)))
            if PING in data:
                sock.sendall(PONG)
    measured = clock.done(done)
    caller.close()
    callee.close()
    return measured


def _check_echo(caller: Client, callee: Client) -> None:
    """Prove once that a call arrives whole and its answer comes back whole, before the clock runs."""
    caller.sock.sendall(frame(b'{"jsonrpc":"2.0","id":"x-1","method":"bench-callee.echo","params":{"deep":[1.10]}}'))
    deadline = time.monotonic() + 10
    for client, needle in ((callee, b'{"deep":[1.10]}'), (caller, b'{"y":2.50}')):
        while needle not in client.rest:
            if time.monotonic() > deadline:
                raise Stalled(f"echo: {client.rest[-300:]!r}")
            data = client.sock.recv(READ_BYTES)
            if not data:
                raise Stalled("echo: connection ended")
            client.rest += data
        if client is callee:
            (ident,) = IDS.findall(client.rest)[-1:]
            client.sock.sendall(frame(b'{"jsonrpc":"2.0","id":%b,"result":{"y":2.50}}' % ident))
        elif b'"x-1"' not in client.rest:
            raise Stalled(f"echo: {client.rest!r}")
        client.rest = b""


def fanout(hub: Hub, tokens: dict[str, str], seconds: float, in_flight: int = 1, hears: int = 100) -> Measured:
    """Deliveries per second from one publisher to `hears` subscribers, `in_flight` messages at a time."""
    subscribers = [module(hub.port, tokens, f"bench-sub-{n}", events=["bench.tick"]) for n in range(hears)]
    publisher = module(hub.port, tokens, "bench-pub")
    fan = Fan(publisher, subscribers)
    fan.settle()
    clock = Clock(hub)
    measured = clock.done(fan.run(seconds, in_flight))
    fan.close()
    return measured


class Fan:
    """One publisher and its subscribers; counts every delivery by the event's name in the bytes."""

    def __init__(self, publisher: Client, subscribers: list[Client], tick: bytes = b"", mark: bytes = MARK) -> None:
        self.publisher = publisher
        self.subscribers = {client.fileno(): client for client in subscribers}
        self.poll = select.epoll()
        for number in (*self.subscribers, publisher.fileno()):
            self.poll.register(number, select.EPOLLIN)
        self.tails = dict.fromkeys(self.subscribers, b"")
        self.tick = tick or frame(TICK % TEXT.encode())
        self.mark = mark
        self.latencies_s: list[float] = []

    def settle(self) -> None:
        """Let pass what still comes of the connecting itself, then prove one message reaches everybody."""
        while self._receive(0.3, quietly=True) is not None:
            pass
        self.run(0.0, 1, messages=1)

    def _receive(self, wait_s: float, *, quietly: bool = False) -> int | None:
        """Read what is there; return the deliveries in it, None where nothing came."""
        ready = self.poll.poll(wait_s)
        if not ready:
            if quietly:
                return None
            raise Stalled("fan-out")
        count = 0
        for number, _ in ready:
            client = self.subscribers.get(number, self.publisher)
            data = client.sock.recv(READ_BYTES)
            if not data:
                raise Stalled("fan-out: connection ended")
            if number in self.tails:
                count += (self.tails[number] + data).count(self.mark)
                self.tails[number] = data[-len(self.mark) + 1 :]
            if PING in data:
                client.sock.sendall(PONG)
        return count

    def run(self, seconds: float, in_flight: int, messages: int = 0) -> int:
        """Publish for some seconds (or that many messages); count deliveries, keep each message's latency."""
        hears = len(self.subscribers)
        sent = received = finished = 0
        times: list[float] = []
        self.latencies_s = []
        began = now = time.perf_counter()
        while True:
            if not messages and now - began >= seconds:
                break
            room = in_flight - (sent - received // hears)
            if messages:
                room = min(room, messages - sent)
            if room > 0:
                times += [now] * room
                sent += room
                self.publisher.sock.sendall(self.tick * room)
            received += self._receive(STALLED_S) or 0
            now = time.perf_counter()
            whole = received // hears
            while finished < whole:
                self.latencies_s.append(now - times[finished])
                finished += 1
            if messages and received >= messages * hears:
                break
        while received < sent * hears:
            received += self._receive(STALLED_S) or 0
        return received

    def close(self) -> None:
        for client in (*self.subscribers.values(), self.publisher):
            client.close()
        self.poll.close()


def connect(hub: Hub, tokens: dict[str, str], count: int | None = None) -> Measured:
    """Connections with authentication per second: every `conn-` module (or `count`) once, 32 at a time.

    All stay open until the clock has stopped, then they are reset, which leaves no port waiting.
    """
    auths = [
        frame(
            b'{"jsonrpc":"2.0","id":1,"method":"auth","params":{"token":"%b","module_id":"%b","protocol":2}}'
            % (token.encode(), name.encode())
        )
        for name, token in tokens.items()
        if name.startswith("conn-")
    ][:count]
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    unfinished: dict[int, tuple[bytes, bytes]] = {}  # its auth frame, sent after the 101, and what came so far
    done = 0
    clock = Clock(hub)
    while done < len(auths):
        while len(unfinished) < CONNECT_AT_ONCE and len(socks) < len(auths):
            sock = socket.socket()
            sock.connect(("127.0.0.1", hub.port))
            sock.sendall(UPGRADE)
            number = sock.fileno()
            poll.register(number, select.EPOLLIN)
            unfinished[number] = (auths[len(socks)], b"")
            socks[number] = sock
        ready = poll.poll(STALLED_S)
        if not ready:
            raise Stalled(f"connect: {done}")
        for number, _ in ready:
            sock = socks[number]
            data = sock.recv(READ_BYTES)
            if not data or b'"error"' in data or b"HTTP/1.1 5" in data:
                raise Stalled(f"connect: {data[-300:]!r}")
            auth, before = unfinished[number]
            data = before + data
            if b'"result"' in data:
                done += 1
                del unfinished[number]
                poll.unregister(number)
            else:
                if not before and data.endswith(b"\r\n\r\n"):
                    sock.sendall(auth)
                unfinished[number] = (auth, data)
    measured = clock.done(done)
    for sock in socks.values():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    return measured
