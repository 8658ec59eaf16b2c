"""When a program that does not speak Kite counts as ready: the waits behind `ready = {…}`.

Each wait returns when the rule has come true and never before; the unit bounds it by `ready_timeout`.
Source: spec 50 §1 step 6; cases S-54 … S-56.
"""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import urlsplit

import trio

from kite_launcher.core.spec import Ready
from kite_launcher.edge.house import House

PROBE_EVERY_S: Final = 0.05
PROBE_TIMEOUT_S: Final = 2.0
HEAD_MAX_BYTES: Final = 65536


async def wait_ready(rule: Ready, *, house: House, name: str, run: int, notified: trio.Event) -> None:
    """Wait until the rule has come true. Cancel: safe."""
    match rule.kind:
        case "delay":
            await trio.sleep(float(rule.value))
        case "notify":
            await notified.wait()
        case "log":
            await house.keeper.wait_log(name, run, str(rule.value))
        case "tcp":
            await _poll_tcp(int(rule.value))
        case "http":
            await _poll_http(str(rule.value))
        case "exit":
            await trio.sleep_forever()  # the end itself is the sign; the unit judges it


async def _poll_tcp(port: int) -> None:
    while True:
        with trio.move_on_after(PROBE_TIMEOUT_S):
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                pass
            else:
                await trio.aclose_forcefully(stream)
                return
        await trio.sleep(PROBE_EVERY_S)


async def _poll_http(url: str) -> None:
    while True:
        with trio.move_on_after(PROBE_TIMEOUT_S):
            status = await http_status(url)
            if status is not None and 200 <= status < 400:
                return
        await trio.sleep(PROBE_EVERY_S)


async def http_status(url: str) -> int | None:
    """Ask for `url` once and return the status of the answer, None when there is none. Cancel: safe."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    except OSError:
        return None
    try:
        if secure:
            stream = trio.SSLStream(stream, ssl.create_default_context(), server_hostname=host)
        request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: kite-launch\r\nConnection: close\r\n\r\n"
        await stream.send_all(request.encode("latin-1", "replace"))
        head = b""
        while b"\r\n" not in head and len(head) < HEAD_MAX_BYTES:
            chunk = await stream.receive_some(4096)
            if not chunk:
                break
            head += bytes(chunk)
        words = head.split(b"\r\n", 1)[0].split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else None
    except (OSError, trio.BrokenResourceError, ssl.SSLError):
        return None
    finally:
        await trio.aclose_forcefully(stream)
