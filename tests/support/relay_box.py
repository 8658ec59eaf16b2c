"""A real relay beside a real kernel, and browsers from any loopback address that speak its wire."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyotp
import trio
from tests.support.kernel_process import KernelProcess
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from kite_modules.relay.accounts import FILE, Accounts, Made

WAIT_S = 30.0
PASSWORD = "correct horse"


class RelayBox:
    """`with RelayBox(folder) as box:`; `box.accounts` is the relay's own file."""

    def __init__(self, folder: Path, *, roles: tuple[str, ...] = (), **options: Any) -> None:
        self.folder = folder
        self.kernel = KernelProcess(folder, dict.fromkeys(("relay", *roles), "module"))
        self.options = {"listen": "127.0.0.1:0", "tls": "off", **options}
        self.state = folder / "relay"
        self.state.mkdir(mode=0o700)
        self.accounts = Accounts(self.state / FILE, clock=time.time)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "relay.log"
        self._users = 0

    def __enter__(self) -> RelayBox:
        self.kernel.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.kernel.kill()
        self.accounts.close()

    def start(self) -> None:
        """Start the relay's process and wait until it listens."""
        for kind, text in (("token", self.kernel.tokens["relay"]), ("options", json.dumps(self.options))):
            (self.folder / kind).touch(mode=0o600)
            (self.folder / kind).write_text(text, "utf-8")
        env = {
            **os.environ,
            "KITE_URL": self.kernel.url,
            "KITE_MODULE_ID": "relay",
            "KITE_TOKEN_FILE": str(self.folder / "token"),
            "KITE_OPTIONS_FILE": str(self.folder / "options"),
            "KITE_STATE_DIR": str(self.state),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kite_modules.relay"], env=env, stdin=subprocess.DEVNULL, stderr=log
            )
        deadline = time.monotonic() + WAIT_S
        while not self._is_there():
            assert self.process.poll() is None, self.log.read_text("utf-8")
            assert time.monotonic() < deadline, self.log.read_text("utf-8")
            time.sleep(0.02)

    def _is_there(self) -> bool:
        assert self.process is not None
        with contextlib.suppress(OSError, ValueError):
            told = json.loads((self.state / "relay.json").read_bytes())
            self.url: str = told["url"]
            self.fingerprint: str | None = told["fingerprint_sha256"]
            self.port = int(urlsplit(self.url).port or 0)
            return bool(told["pid"] == self.process.pid)
        return False

    def stop(self) -> int:
        """End the relay in order; returns its exit code."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(20)

    def user(self, role: str = "operator", *, name: str = "") -> Made:
        """Make a user with `PASSWORD`."""
        self._users += 1
        made = self.accounts.add(name or f"{role}{self._users}", role, PASSWORD)
        assert made is not None
        return made


class Page:
    """One browser's wire."""

    def __init__(self, wire: WebSocketConnection) -> None:
        self.wire = wire
        self.notes: list[Any] = []
        self._number = 0
        self.nonce = ""

    async def get(self) -> Any:
        with trio.fail_after(WAIT_S):
            return json.loads(await self.wire.get_message())

    async def send(self, text: str | bytes) -> None:
        await self.wire.send_message(text)

    async def ask(self, method: str, params: Any = None, **more: Any) -> Any:
        """Send a request; returns its whole answer. What else comes is kept in `notes`."""
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": {} if params is None else params}
        await self.send(json.dumps({**request, **more}))
        while True:
            frame = await self.get()
            if isinstance(frame, dict) and frame.get("id") == self._number and "method" not in frame:
                return frame
            self.notes.append(frame)

    async def note(self, method: str) -> Any:
        """Return the params of the next notice or event of this name."""
        while True:
            for place, frame in enumerate(self.notes):
                if frame.get("method") == method:
                    return self.notes.pop(place)["params"]
            self.notes.append(await self.get())

    async def begin(self) -> None:
        """Take the challenge."""
        self.nonce = (await self.get())["params"]["nonce"]

    async def password(self, user: str, password: str = PASSWORD) -> Any:
        return await self.ask("login", {"nonce": self.nonce, "user": user, "password": password})

    async def log_in(self, made: Made, code: str | None = None) -> Any:
        """Go all the way with a recovery code (or `code`); returns the last answer's result."""
        assert (await self.password(made.name))["result"] == {"stage": "totp"}
        params = {"recovery_code": recovery_code(made)} if code is None else {"code": code}
        return (await self.ask("login.totp", params))["result"]

    async def closed(self) -> int:
        """Wait for the end; returns the close code."""
        with trio.fail_after(WAIT_S):
            try:
                while True:
                    self.notes.append(json.loads(await self.wire.get_message()))
            except ConnectionClosed as closed:
                reason = closed.reason
        return 1006 if reason is None else int(reason.code)


_used: dict[str, int] = {}


def recovery_code(made: Made) -> str:
    """Return a recovery code of this user that no test has used yet."""
    _used[made.secret] = _used.get(made.secret, -1) + 1
    return made.recovery_codes[_used[made.secret]]


def totp(made: Made, *, steps: int = 0) -> str:
    """Return the code of now, or of another step."""
    return pyotp.TOTP(made.secret).at(int(time.time()) + 30 * steps)


@contextlib.asynccontextmanager
async def page(box: RelayBox, address: str = "127.0.0.1", headers: dict[str, str] | None = None) -> AsyncIterator[Page]:
    """Open a wire from a loopback address, the challenge taken."""
    sock = trio.socket.socket()
    async with trio.SocketStream(sock) as stream, trio.open_nursery() as nursery:
        await sock.bind((address, 0))
        await sock.connect(("127.0.0.1", box.port))
        extra = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        with trio.fail_after(WAIT_S):
            wire = await wrap_client_stream(nursery, stream, f"127.0.0.1:{box.port}", "/ws", extra_headers=extra)
        found = Page(wire)
        try:
            await found.begin()
            yield found
        finally:
            with trio.move_on_after(2, shield=True):
                await wire.aclose()
            nursery.cancel_scope.cancel()


@contextlib.contextmanager
def relay_box(folder: Path, **options: Any) -> Iterator[RelayBox]:
    """A box for a fixture."""
    with RelayBox(folder, **options) as box:
        yield box
