"""Streams: 1 to 100 fan-out beside a hub on websockets + uvloop; durable publishes beside SQLite and a file."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loads import Clock, Measured, Stalled
from servers import running
from wire import READ_BYTES, frame

if TYPE_CHECKING:
    from suites import Plan, Row

HEARS = 100
PUBLISHERS = 64
TEXT = b"x" * 256
MARK = b'"data"'
CONFIG = "[streams]\nopen = true\n[streams.disk]\ndurable = true\n"
STALLED_S = 20.0
PONG = b"\x8a\x80\0\0\0\0"
PING = b"\x89\x00"
NEEDED_FANOUT = 4.0
NEEDED_DURABLE = 5000


def open_wire(port: int, path: str) -> socket.socket:
    """Open a wire of the stream plane."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(
        b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n" % path.encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    if not head.startswith(b"HTTP/1.1 101"):
        raise ConnectionError(head)
    return sock


class Fan:
    """One publisher, a hundred subscribers; a delivery is counted by the member name in its bytes."""

    def __init__(self, port: int) -> None:
        self.subscribers = {sock.fileno(): sock for sock in (open_wire(port, "/sub") for _ in range(HEARS))}
        self.publisher = open_wire(port, "/pub")
        self.poll = select.epoll()
        for number in (*self.subscribers, self.publisher.fileno()):
            self.poll.register(number, select.EPOLLIN)
        self.tails = dict.fromkeys(self.subscribers, b"")
        self.tick = frame(TEXT)

    def _receive(self) -> int:
        ready = self.poll.poll(STALLED_S)
        if not ready:
            raise Stalled("stream fan-out")
        count = 0
        for number, _ in ready:
            sock = self.subscribers.get(number, self.publisher)
            data = sock.recv(READ_BYTES)
            if not data:
                raise Stalled("stream fan-out: connection ended")
            if number in self.tails:
                count += (self.tails[number] + data).count(MARK)
                self.tails[number] = data[-len(MARK) + 1 :]
            if PING in data:
                sock.sendall(PONG)
        return count

    def run(self, seconds: float, in_flight: int) -> int:
        """Publish for some seconds, `in_flight` messages at a time; return the deliveries."""
        sent = received = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            room = in_flight - (sent - received // HEARS)
            if room > 0:
                sent += room
                self.publisher.sendall(self.tick * room)
            received += self._receive()
        while received < sent * HEARS:
            received += self._receive()
        return received

    def close(self) -> None:
        for sock in (*self.subscribers.values(), self.publisher):
            sock.close()
        self.poll.close()


def durable(port: int, seconds: float) -> int:
    """Publish with `ack=1` on 64 wires, one message in flight on each; return the answers, each after it was safe."""
    socks = {sock.fileno(): sock for sock in (open_wire(port, "/pub/disk?ack=1") for _ in range(PUBLISHERS))}
    poll = select.epoll()
    for number in socks:
        poll.register(number, select.EPOLLIN)
    tick = frame(TEXT)
    for sock in socks.values():
        sock.sendall(tick)
    done, began = 0, time.perf_counter()
    waiting = len(socks)
    while waiting:
        ready = poll.poll(STALLED_S)
        if not ready:
            raise Stalled("durable publishes")
        for number, _ in ready:
            data = socks[number].recv(READ_BYTES)
            if b'"error"' in data or not data:
                raise Stalled(f"durable publishes: {data[:200]!r}")
            if PING in data:
                socks[number].sendall(PONG)
            if b'{"seq":' not in data:
                continue
            done += 1
            if time.perf_counter() - began < seconds:
                socks[number].sendall(tick)
            else:
                waiting -= 1
    for sock in socks.values():
        sock.close()
    return done


def plain_sqlite(folder: Path, seconds: float) -> float:
    """One writer, a transaction each, synchronous=FULL."""
    with contextlib.closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE rows (seq INTEGER PRIMARY KEY, data BLOB)")
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            connection.execute("INSERT INTO rows (data) VALUES (?)", (TEXT,))
            done += 1
        return done / (time.perf_counter() - began)


def plain_file(folder: Path, seconds: float) -> float:
    """One writer, an fsync each."""
    descriptor = os.open(folder / "plain.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.write(descriptor, TEXT)
            os.fsync(descriptor)
            done += 1
        return done / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


def streams(plan: Plan) -> list[Row]:
    """All of it, taken in turns."""
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kite-bench-")))
        hubs = {
            "kite": stack.enter_context(running("kite", folder / "kite", plan.tokens, CONFIG)),
            "websockets": stack.enter_context(running("stream_websockets", folder / "websockets", plan.tokens)),
        }
        for in_flight, needed in ((1, None), (32, NEEDED_FANOUT)):
            figures: dict[str, list[Measured]] = {name: [] for name in hubs}
            for name in [*hubs] * plan.rounds:
                fan = Fan(hubs[name].port)
                fan.run(0.1, in_flight)
                clock = Clock(hubs[name])
                figures[name].append(clock.done(fan.run(plan.seconds, in_flight)))
                fan.close()
            rows += _told(f"stream 1 to {HEARS}, 256 B, {in_flight} in flight", figures, needed)
        rows += _durable(plan, hubs["kite"].port, folder)
    return rows


def _told(title: str, figures: dict[str, list[Measured]], needed: float | None) -> list[Row]:
    print(f"\n{title}")
    medians = {name: statistics.median(one.rate for one in values) for name, values in figures.items()}
    for name, values in figures.items():
        busy = statistics.median(one.busy for one in values)
        print(f"  {name:<11}{medians[name]:>12,.0f} deliveries/s   (its core {busy:.0%} busy)")
    ratio = medians["kite"] / medians["websockets"]
    verdict = "" if needed is None else f"  (needed {needed}: {'met' if ratio >= needed else 'MISSED'})"
    print(f"  kite/websockets = {ratio:.2f}{verdict}")
    rows: list[dict[str, Any]] = [
        {"load": title, "hub": name, "median": value, "unit": "deliveries/s"} for name, value in medians.items()
    ]
    return [*rows, {"load": title, "ratio": "kite/websockets", "value": ratio, "needed": needed}]


def _durable(plan: Plan, port: int, folder: Path) -> list[Row]:
    rates: dict[str, list[float]] = {"kite": [], "sqlite": [], "file": []}
    for number in range(plan.rounds):
        began = time.perf_counter()
        done = durable(port, plan.seconds)
        rates["kite"].append(done / (time.perf_counter() - began))
        place = folder / f"plain-{number}"
        place.mkdir()
        rates["sqlite"].append(plain_sqlite(place, plan.seconds / 2))
        rates["file"].append(plain_file(place, plan.seconds / 2))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    met = "met" if medians["kite"] >= NEEDED_DURABLE else "MISSED"
    print(f"\ndurable publishes of 256 B, each answered after it was safe, {PUBLISHERS} publishers")
    print(f"  kite       {medians['kite']:>10,.0f} publishes/s  (needed {NEEDED_DURABLE:,}: {met})")
    print(f"  SQLite     {medians['sqlite']:>10,.0f} inserts/s (one writer, a transaction each)")
    print(f"  plain file {medians['file']:>10,.0f} writes/s (one writer, an fsync each)")
    rows: list[dict[str, Any]] = [
        {"load": "durable publishes", "hub": name, "median": value, "unit": "publishes/s"}
        for name, value in medians.items()
    ]
    rows[0]["needed"] = NEEDED_DURABLE
    return rows
