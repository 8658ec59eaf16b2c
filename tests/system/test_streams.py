"""Streams with real processes and sockets: kill -9 of kernel and consumer, a reader that reads nothing, the command.

Cases W-62, W-66, F-29.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from tests.support.frames import client_frame
from tests.support.kernel_process import KernelProcess

from kite_modules.cli.main import run as kite

ROLES = {"page": "module", "o": "operator"}
CONFIG = "[streams.disk]\ndurable = true\n[streams.large]\nring = 100000\n[streams.small]\nring = 5\n"
WAIT_S = 30.0


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelProcess]:
    with KernelProcess(tmp_path, ROLES, config=CONFIG) as kernel:
        yield kernel
        for wire in RawWire.opened:
            wire.sock.close()
        RawWire.opened.clear()


def until(condition: Callable[[], Any], what: str) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


class RawWire:
    """A blocking wire of the stream plane that parses server frames by itself."""

    opened: ClassVar[list["RawWire"]] = []

    def __init__(self, kernel: KernelProcess, path: str) -> None:
        port = kernel.ready["port"]
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.opened.append(self)
        head = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {kernel.tokens['page']}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        self.sock.sendall(head.encode())
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self.sock.recv(65536)
        answer, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer

    def send(self, text: str) -> None:
        self.sock.sendall(client_frame(text.encode()))

    def _need(self, size: int) -> None:
        while len(self._buffer) < size:
            data = self.sock.recv(1 << 18)
            if not data:
                raise ConnectionResetError
            self._buffer += data

    def frame(self) -> tuple[int, bytes]:
        """Return (opcode, payload) of the next frame; pings are answered. Errors: OSError at the end."""
        self._need(2)
        size, begin = self._buffer[1], 2
        if size == 126:
            self._need(4)
            size, begin = int.from_bytes(self._buffer[2:4], "big"), 4
        elif size == 127:
            self._need(10)
            size, begin = int.from_bytes(self._buffer[2:10], "big"), 10
        self._need(begin + size)
        opcode, payload = self._buffer[0] & 15, self._buffer[begin : begin + size]
        self._buffer = self._buffer[begin + size :]
        if opcode == 9:
            self.sock.sendall(client_frame(payload, opcode=10))
            return self.frame()
        return opcode, payload

    def json(self) -> Any:
        opcode, payload = self.frame()
        assert opcode == 1, payload
        return json.loads(payload)


def test_a_killed_kernel_with_a_torn_log_loses_nothing_that_was_acknowledged(kernel: KernelProcess) -> None:
    pub = RawWire(kernel, "/pub/disk?ack=1")
    acked: list[int] = []
    pub.sock.sendall(b"".join(client_frame(b"m%d" % n) for n in range(1, 20_001)))
    with suppress(OSError):
        while True:
            acked.append(pub.json()["seq"])
            if len(acked) == 300:
                kernel.kill()
    assert acked == list(range(1, len(acked) + 1))
    (log,) = (kernel.folder / "state/streams/disk").glob("*.log")
    with log.open("r+b") as file:  # the last record may have been on its way: cut it in half
        file.seek(0, os.SEEK_END)
        file.write(b"\x1eKR\x01" + b"\x07" * 30)
    kernel.start()
    assert "torn" in kernel.log.read_text("utf-8")
    sub = RawWire(kernel, "/sub/disk?last=0")
    stats = RawWire(kernel, "/stats/disk").json()
    assert stats["seq"] >= len(acked)
    assert [sub.json() for _ in range(stats["seq"])] == [
        {"seq": n, "data": f"m{n}"} for n in range(1, stats["seq"] + 1)
    ]
    RawWire(kernel, "/pub/disk?ack=1").send("next")
    assert sub.json() == {"seq": stats["seq"] + 1, "data": "next"}
    kernel.kill()
    kernel.start()
    assert RawWire(kernel, "/stats/disk").json()["epoch"] == stats["epoch"]


def test_a_reader_that_reads_nothing_costs_nobody_a_message_and_the_hub_no_memory(kernel: KernelProcess) -> None:
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(kernel.ready["port"]), kernel.tokens["page"], "8000"],
        stdout=subprocess.PIPE,
    )
    dead = RawWire(kernel, "/sub")
    pub = RawWire(kernel, "/pub?ack=1")
    until(lambda: RawWire(kernel, "/stats").json()["subscribers"] == 2, "two subscribers")
    assert kernel.process is not None
    process = psutil.Process(kernel.process.pid)
    before = process.memory_info().rss
    text = "x" * 8000
    for _ in range(8):
        pub.sock.sendall(b"".join([client_frame(text.encode())] * 1000))
        for _ in range(1000):
            pub.json()
    grown = process.memory_info().rss - before
    assert reader.communicate(timeout=WAIT_S)[0] == b"8000 in order\n"
    stats = RawWire(kernel, "/stats").json()
    assert (stats["dropped"], stats["seq"]) == (1, 8000)
    assert grown < 8_000_000 + 2 * 100 * 8_000 + 12_000_000, grown
    time.sleep(1.2)  # it begins to read when close_timeout is long over
    seqs = []
    while (frame := dead.frame())[0] == 1:
        seqs.append(json.loads(frame[1])["seq"])
    assert seqs == list(range(1, len(seqs) + 1))
    assert frame == (8, (1013).to_bytes(2, "big") + b"slow consumer")


READER = """
import sys, json
from websockets.sync.client import connect
port, token, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with connect(f"ws://127.0.0.1:{port}/sub", additional_headers={"Authorization": "Bearer " + token}) as ws:
    seqs = [json.loads(ws.recv())["seq"] for _ in range(count)]
print(count, "in order" if seqs == list(range(1, count + 1)) else "WRONG")
"""


def test_consume_survives_kills_of_itself_and_of_the_kernel(kernel: KernelProcess, tmp_path: Path) -> None:
    total = 6000
    out, token = tmp_path / "out", tmp_path / "token"
    token.touch(0o600)
    token.write_text(kernel.tokens["page"])
    command = [sys.executable, "-m", "kite_modules.cli.main", "stream", "consume", f"{kernel.url}/sub/disk"]
    command += ["--out", str(out), "--stop-after", str(total), "--token-file", str(token), "--cap", "0.2"]
    rng = random.Random(66)
    published = 0

    def publish(count: int) -> None:
        nonlocal published
        pub = RawWire(kernel, "/pub/disk?ack=1")
        pub.sock.sendall(client_frame(b"x") * count)
        for _ in range(count):
            published = pub.json()["seq"]

    def recorded() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    for at in range(8):
        consumer = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        publish(600)
        until(lambda: recorded() >= published - 550, "it records")
        time.sleep(rng.random() * 0.05)
        if at % 4 == 1:
            kernel.kill()
            kernel.start()
            publish(10)
            until(lambda: recorded() == published, "it comes back")
        consumer.send_signal(signal.SIGKILL)
        consumer.wait()
        if at % 3 == 2:
            with out.open("ab") as file:  # killed in the middle of a line
                file.write(b"12"[: rng.randint(1, 2)])
    publish(total - published)
    assert subprocess.run(command, timeout=WAIT_S, check=False).returncode == 0
    assert out.read_text() == "".join(f"{n}\n" for n in range(1, total + 1))


def test_the_command_publishes_reads_and_measures(kernel: KernelProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (kernel.folder / "state/tokens").mkdir(mode=0o700, exist_ok=True)
    operator = kernel.folder / "state/tokens/operator"
    operator.touch(0o600)
    operator.write_text(kernel.tokens["o"])
    where = ["--state-dir", str(kernel.folder / "state")]

    def said(*words: str, code: int = 0) -> tuple[list[str], str]:
        assert kite(["stream", *words, *where]) == code
        captured = capsys.readouterr()
        return captured.out.splitlines(), captured.err

    assert said("pub", "small", *"abcdefg")[0] == [str(n) for n in range(1, 8)]
    assert said("pub", "small", "h", "--id", "x")[0] == said("pub", "small", "h", "--id", "x")[0] == ["8"]
    assert said("sub", "small", "--last", "6", "--count", "2")[0] == ["7 g", "8 h"]
    (row,) = said("sub", "small", "--last", "7", "--count", "1", "--json")[0]
    assert json.loads(row) == {"schema": 1, "stream": "small", "seq": 8, "data": "h"}
    lines, error = said("sub", "small", "--last", "1", "--count", "1", "--timeout", "0.5", code=1)
    assert (lines, "reset" in error) == ([], True)
    (row,) = said("stats", "small", "--json")[0]
    assert json.loads(row)["seq"] == 8
    header, *rows = said("stats")[0]
    assert header.split()[0] == "stream"
    assert [line.split()[0] for line in rows] == ["default", "disk", "large", "small"]
    assert "no such stream" in said("stats", "nobody-knows-it", code=1)[1]
    out = kernel.folder / "seqs"
    lines, error = said("consume", f"{kernel.url}/sub/small", "--out", str(out), "--stop-after", "9", code=1)
    assert "reset" in error
    assert "0" in error
    assert "8" in error
    assert said("consume", f"{kernel.url}/sub/large", "--out", str(out), "--stop-after", "x", code=64)[1]
    operator.unlink()
    assert "401" in said("consume", f"{kernel.url}/sub/small", "--out", str(out), "--stop-after", "9", code=1)[1]
