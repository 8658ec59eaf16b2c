"""`kite-kernel` as a process: flags, files, exit codes, signals, sockets.

Source: 05 §2-3, 20 §7, cases W-44, W-58, W-59, X-10, X-12, X-40.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KERNEL = Path(sys.executable).with_name("kite-kernel")
CANARY = "canary-7f3a9b2e5d8c1046"


class Running:
    """One kernel process and what it says."""

    def __init__(self, arguments: list[str], **more: Any) -> None:
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [str(KERNEL), *arguments, "--ready-fd", str(write)],
            pass_fds=(write, *more.pop("pass_fds", ())),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )
        os.close(write)
        self.said: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        with os.fdopen(read, "rb") as file:
            line = file.read()
        self.ready: dict[str, Any] = json.loads(line) if line else {}

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, b""))

    def end(self, number: int = signal.SIGTERM, within_s: float = 30) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.wait(within_s)

    def wait(self, within_s: float = 30) -> int:
        """Return the exit code."""
        code = self.process.wait(within_s)
        self._reader.join(5)
        return code

    def text(self) -> str:
        """Return what stderr holds."""
        return b"".join(self.said).decode()


Start = "Callable[..., Running]"


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(*arguments: object, **more: Any) -> Running:
        running.append(Running([str(argument) for argument in arguments], **more))
        return running[-1]

    yield begin
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(10)
        assert one.process.stdout is not None
        assert one.process.stderr is not None
        one._reader.join(5)
        assert one.process.stdout.read() == b""
        one.process.stdout.close()
        one.process.stderr.close()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    path.write_text(f'[a]\ntoken = "{CANARY}"\n[o]\ntoken = "o-{CANARY}"\nrole = "operator"\n')
    return path


def http(port: int, path: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return b"".join(iter(lambda: sock.recv(65536), b""))


def until(wanted: Callable[[], Any], within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not wanted():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.02)


def test_it_says_where_it_is_and_stops_cleanly(start: Any, tokens: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        kernel = start("--standalone", "--tokens", tokens, "--state-dir", tmp_path / "state")
    finally:
        os.umask(old)
    assert kernel.ready == {
        "url": f"ws://127.0.0.1:{kernel.ready['port']}",
        "port": kernel.ready["port"],
        "pid": kernel.process.pid,
    }
    state = tmp_path / "state"
    told = json.loads((state / "kernel.json").read_text())
    assert told.items() >= kernel.ready.items()
    assert set(told) == {"url", "port", "pid", "version", "started_at", "epoch"}
    for path in state.iterdir():
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert b" 200 " in http(kernel.ready["port"], "/healthz")
    assert b"kite_modules" in http(kernel.ready["port"], "/metrics")
    assert kernel.end() == 0
    assert CANARY not in kernel.text()
    assert not (state / "kernel.json").exists()
    assert not (state / "kernel.sock").exists()


def test_without_anything_it_is_useful_by_itself(start: Any, tmp_path: Path) -> None:
    kernel = start("--standalone", "--state-dir", tmp_path / "s", "--log-format", "json")
    made = tmp_path / "s" / "tokens.toml"
    until(lambda: str(made) in kernel.text())
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    token = made.read_text().split('"')[1]
    assert kernel.end(signal.SIGINT) == 0
    assert token not in kernel.text()
    assert all(json.loads(line) for line in kernel.text().splitlines())


def refused(start: Any, *arguments: object, code: int) -> str:
    began = time.monotonic()
    kernel = start(*arguments)
    assert kernel.wait() == code
    assert time.monotonic() - began < 15
    text: str = kernel.text()
    assert "Traceback" not in text
    assert kernel.ready == {}
    return text


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--bogus"], 64, "--bogus"),
        (["--port", "x"], 64, "--port"),
        (["--port", "70000"], 64, "70000"),
        (["--host", "0.0.0.0"], 78, "allow_remote"),
        (["--config", "/nonexistent/kite.toml"], 78, "/nonexistent/kite.toml"),
        (["--tokens", "/nonexistent/tokens"], 77, "/nonexistent/tokens"),
    ],
)
def test_a_wrong_start_has_one_clear_line(
    start: Any, tmp_path: Path, arguments: list[str], code: int, word: str
) -> None:
    text = refused(start, *arguments, "--state-dir", tmp_path / "s", code=code)
    assert word in text
    assert len(text.splitlines()) == 1


def test_wrong_configuration_is_told_whole_with_lines_and_near_names(start: Any, tmp_path: Path) -> None:
    config = tmp_path / "kite.toml"
    config.write_text(
        '[kernel]\nprot = 1\nmax_message = "32MiB"\n\n[timing]\ndebounce = 5\n  scale = "x"\n'
        '[permissions.b]\ncall = ["a..b"]\n[module.x]\nwhatever = 1\n'
    )
    text = refused(start, "--config", config, "--state-dir", tmp_path / "s", code=78)
    for place in ("2:1", "3:1", "6:1", "7:3", "9:1"):
        assert f"kite.toml:{place}: " in text
    assert "did you mean port" in text
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: path.chmod(0o644), 77),
        (lambda path: (path.unlink(), path.symlink_to("/dev/null")), 77),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), 77),
        (lambda path: (path.unlink(), path.mkdir()), 77),
        (lambda path: path.write_text(""), 78),
        (lambda path: path.write_text(f'[a\ntoken = "{CANARY}"'), 78),
        (lambda path: path.write_text(f'[a]\ntoken = "{CANARY}"\nrole = "king"'), 78),
        (lambda path: path.write_text('[a]\ntoken = ""'), 78),
        (lambda path: path.write_bytes(b"\xff\xfe"), 78),
    ],
)
def test_a_tokens_file_that_is_not_safe_or_not_sound_is_refused_by_name(
    start: Any, tokens: Path, tmp_path: Path, make: Callable[[Path], object], code: int
) -> None:
    make(tokens)
    text = refused(start, "--tokens", tokens, "--state-dir", tmp_path / "s", code=code)
    assert str(tokens) in text
    assert CANARY not in text
    if code == 77 and tokens.is_file() and not tokens.is_symlink():
        assert "chmod 600" in text


def test_a_taken_port_and_a_taken_state_directory_name_their_holders(start: Any, tokens: Path, tmp_path: Path) -> None:
    first = start("--standalone", "--tokens", tokens, "--state-dir", tmp_path / "one")
    port = first.ready["port"]
    text = refused(start, "--tokens", tokens, "--state-dir", tmp_path / "two", "--port", port, code=69)
    assert str(port) in text
    assert str(first.process.pid) in text
    text = refused(start, "--tokens", tokens, "--state-dir", tmp_path / "one", code=75)
    assert str(first.process.pid) in text
    assert b" 200 " in http(port, "/healthz")


@pytest.mark.parametrize("name", ["kernel.json", "kernel.sock", "kernel.lock"])
def test_what_a_stranger_put_in_its_way_is_named_and_not_followed(
    start: Any, tokens: Path, tmp_path: Path, name: str
) -> None:
    state, victim = tmp_path / "s", tmp_path / "victim"
    state.mkdir(0o700)
    victim.write_text("precious")
    (state / name).symlink_to(victim)
    text = refused(start, "--tokens", tokens, "--state-dir", state, code=77)
    assert name in text
    assert victim.read_text() == "precious"


def test_a_state_directory_that_others_may_write_is_refused(start: Any, tokens: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    assert "chmod 700" in refused(start, "--tokens", tokens, "--state-dir", tmp_path / "s", code=77)


def test_a_socket_may_be_inherited_and_the_next_kernel_has_the_same(start: Any, tokens: Path, tmp_path: Path) -> None:
    """LISTEN_FDS with fd 3: a launcher keeps the socket open over the kernel's restart."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for _ in range(2):
            code = (
                "import os,sys;os.dup2(int(sys.argv[1]),3);os.set_inheritable(3,True);"
                "os.environ.update(LISTEN_FDS='1',LISTEN_PID=str(os.getpid()));os.execv(sys.argv[2],sys.argv[2:])"
            )
            read, write = os.pipe()
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", code, str(listener.fileno()), str(KERNEL), "--standalone"),
                    *("--tokens", str(tokens), "--state-dir", str(tmp_path / "s"), "--ready-fd", str(write)),
                ],
                pass_fds=(listener.fileno(), write),
                stderr=subprocess.DEVNULL,
            )
            os.close(write)
            with os.fdopen(read, "rb") as file:
                assert json.loads(file.read())["port"] == port
            assert b" 200 " in http(port, "/readyz")
            process.terminate()
            assert process.wait(20) == 0


def test_tokens_may_come_by_a_descriptor(start: Any, tmp_path: Path) -> None:
    fd = os.memfd_create("tokens")
    os.write(fd, f'[a]\ntoken = "{CANARY}"\n'.encode())
    kernel = start("--tokens-fd", fd, "--state-dir", tmp_path / "s", pass_fds=(fd,))
    os.close(fd)
    assert b" 200 " in http(kernel.ready["port"], "/readyz")
    assert kernel.end() == 0


def test_a_broken_tokens_file_on_sighup_keeps_the_old_ones_loudly(start: Any, tokens: Path, tmp_path: Path) -> None:
    kernel = start("--standalone", "--tokens", tokens, "--state-dir", tmp_path / "s")
    tokens.write_text("[[[")
    kernel.process.send_signal(signal.SIGHUP)
    until(lambda: "reload refused" in kernel.text())
    tokens.write_text('[b]\ntoken = "x"\n')
    kernel.process.send_signal(signal.SIGHUP)
    until(lambda: "read again" in kernel.text())
    assert kernel.end() == 0


def test_the_unix_socket_serves_the_same_plane(start: Any, tokens: Path, tmp_path: Path) -> None:
    start("--standalone", "--tokens", tokens, "--state-dir", tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "s" / "kernel.sock"))
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in sock.recv(1000)


def test_without_descriptors_it_refuses_politely_and_recovers(start: Any, tokens: Path, tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    kernel = start("--standalone", "--tokens", tokens, "--state-dir", tmp_path / "s", preexec_fn=few)
    port = kernel.ready["port"]
    socks = []
    answers = 0
    for _ in range(200):
        sock = socket.create_connection(("127.0.0.1", port), 5)
        sock.settimeout(0.05)
        socks.append(sock)
    for sock in socks:
        with suppress(OSError):
            answers += b" 503 " in sock.recv(1000)
    assert answers > 50
    used = cpu_seconds(kernel.process.pid)
    time.sleep(1)
    assert cpu_seconds(kernel.process.pid) - used < 0.5
    for sock in socks:
        sock.close()
    until(lambda: b" 200 " in http(port, "/healthz"))
    assert kernel.end() == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_second_signal_ends_it_at_once(start: Any, tokens: Path, tmp_path: Path) -> None:
    from websockets.sync.client import connect

    kernel = start("--standalone", "--tokens", tokens, "--state-dir", tmp_path / "s")
    with connect(kernel.ready["url"]) as ws:
        ws.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": CANARY}}))
        assert "result" in json.loads(ws.recv(10))
        kernel.process.send_signal(signal.SIGTERM)
        while "module.shutdown" not in str(ws.recv(10)):
            pass
        began = time.monotonic()
        assert kernel.end() == 0
        assert time.monotonic() - began < 5


def test_a_paused_kernel_kicks_nobody_and_says_how_long(start: Any, tokens: Path, tmp_path: Path) -> None:
    from websockets.sync.client import connect

    config = tmp_path / "kite.toml"
    config.write_text("[timing]\nscale = 0.2\n")  # pings each second, a second to answer
    kernel = start("--standalone", "--tokens", tokens, "--config", config, "--port", 0, "--state-dir", tmp_path / "s")
    with connect(kernel.ready["url"]) as ws:
        ws.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": CANARY}}))
        assert "result" in json.loads(ws.recv(10))
        kernel.process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        kernel.process.send_signal(signal.SIGCONT)
        until(lambda: "was away for" in kernel.text())
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                frame = json.loads(ws.recv(0.2))
            except TimeoutError:
                continue
            if frame.get("params", {}).get("event") == "system.ping":
                pong = {"event": "system.pong", "data": {**frame["params"]["data"], "pong_time": 0}}
                ws.send(json.dumps({"jsonrpc": "2.0", "method": "event.publish", "params": pong}))
        assert "ping timeout" not in kernel.text()


def test_tls_is_served_and_plain_http_is_not(start: Any, tokens: Path, tmp_path: Path) -> None:
    import ssl

    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost", "-days", "2"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.fail("openssl is needed to make a certificate")
    key.chmod(0o644)
    config = tmp_path / "kite.toml"
    config.write_text(f'[kernel]\nport = 0\nallow_remote = true\ntls = {{ cert = "{cert}", key = "{key}" }}\n')
    arguments = ["--standalone", "--tokens", tokens, "--config", config, "--state-dir", tmp_path / "s"]
    assert str(key) in refused(start, *arguments, code=77)
    key.chmod(0o600)
    kernel = start(*arguments)
    assert kernel.ready["url"].startswith("wss://")
    context = ssl.create_default_context(cafile=str(cert))
    from websockets.sync.client import connect

    with connect(kernel.ready["url"], ssl=context) as ws:
        ws.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "auth", "params": {"token": CANARY}}))
        assert "result" in json.loads(ws.recv(10))
        ws.send(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "x" * 300_000}))
        assert json.loads(ws.recv(10))["error"]["code"] == -32601
    with suppress(ConnectionResetError):
        assert b" 200 " not in http(kernel.ready["port"], "/healthz")
    assert kernel.end() == 0
