"""How the relay starts: certificates, what it refuses to start with, vendored files, the weight of the first screen.

Case X-30, spec 80 §1 and §2.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.relay_box import PASSWORD, RelayBox

from kite_modules.relay import shelf, tls

STATIC = Path(tls.__file__).parent / "static"
FIRST_SCREEN_BYTES = 200_000


def start(folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Start a relay that ends before it needs a kernel."""
    (folder / "options").write_text(json.dumps(options), "utf-8")
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text("x", "utf-8")
    env = {**os.environ, "KITE_OPTIONS_FILE": str(folder / "options"), "KITE_STATE_DIR": str(folder / "state")}
    env |= {"KITE_URL": "ws://127.0.0.1:9", "KITE_TOKEN_FILE": str(folder / "token"), "KITE_MODULE_ID": "relay"}
    command = [sys.executable, "-P", "-m", "kite_modules.relay"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_plain_http_is_for_loopback_only(tmp_path: Path) -> None:
    done = start(tmp_path, listen="0.0.0.0:0", tls="off")
    assert done.returncode == 78
    assert "tls" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_that_others_can_read_is_refused_with_the_mend(tmp_path: Path) -> None:
    made = tls.identity("auto", "127.0.0.1", tmp_path / "made")
    assert made is not None
    key = tmp_path / "made" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    done = start(tmp_path, listen="127.0.0.1:0", tls={"cert": str(tmp_path / "made" / "cert.pem"), "key": str(key)})
    assert done.returncode == 77
    assert f"chmod 600 {key}" in done.stderr


def test_a_missing_certificate_and_a_taken_port_are_one_line(tmp_path: Path) -> None:
    nowhere = {"cert": str(tmp_path / "no.pem"), "key": str(tmp_path / "nokey.pem")}
    assert start(tmp_path, listen="127.0.0.1:0", tls=nowhere).returncode == 78
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = start(tmp_path, listen=f"127.0.0.1:{port}", tls="off")
    assert (done.returncode, len(done.stderr.splitlines())) == (69, 1)
    assert "taken" in done.stderr


def test_a_certificate_is_made_once_and_again_when_it_no_longer_fits(tmp_path: Path) -> None:
    first = tls.identity("auto", "127.0.0.1", tmp_path)
    again = tls.identity("auto", "127.0.0.1", tmp_path)
    other = tls.identity("auto", "192.0.2.7", tmp_path)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert re.fullmatch(r"([0-9A-F]{2}:){31}[0-9A-F]{2}", first.fingerprint)


async def handshake(port: int, version: ssl.TLSVersion) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    wire = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", port), context, server_hostname="localhost")
    try:
        with trio.fail_after(20):
            await wire.do_handshake()
            return wire.version()  # type: ignore[no-any-return]
    except trio.BrokenResourceError:
        return None
    finally:
        await trio.aclose_forcefully(wire)


@pytest.mark.filterwarnings("ignore:.*TLSv1_1.*:DeprecationWarning")
async def test_tls_is_spoken_from_1_2_on_and_plain_text_gets_no_answer(tmp_path: Path) -> None:
    with RelayBox(tmp_path, tls="auto") as box:
        assert box.url.startswith("https://")
        assert box.fingerprint is not None
        assert await handshake(box.port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        assert await handshake(box.port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await handshake(box.port, ssl.TLSVersion.TLSv1_1) is None
        async with await trio.open_tcp_stream("127.0.0.1", box.port) as plain:
            await plain.send_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            with trio.move_on_after(20):
                while chunk := await plain.receive_some(4096):
                    answer += chunk
            assert b"HTTP" not in answer
        assert box.stop() == 0
    assert PASSWORD not in box.log.read_text("utf-8")


def test_vendored_files_are_what_they_were() -> None:
    vendor = STATIC / "vendor"
    rows = [line.split() for line in (vendor / "SHA256SUMS").read_text("ascii").splitlines()]
    assert {name for _, name in rows} == {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")}
    for digest, name in rows:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest
    assert len(list(vendor.glob("LICENSE.*"))) == 3


def test_the_first_screen_is_light_and_fetches_nothing_from_outside() -> None:
    pages = shelf.load()
    wanted, seen = ["/"], set[str]()
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        text = pages[path].body.decode("utf-8")
        folder = path.rpartition("/")[0]
        for found in re.findall(r'(?:src|href)="(/[^"]+)"|^import [^;]*from "([^"]+)"', text, re.MULTILINE):
            target = found[0] or os.path.normpath(f"{folder}/{found[1]}")
            wanted.append(target)
        assert not re.search(r'(?:src|href)="(?:https?:)?//|@import|url\(http', text), path
    assert "/static/console/app.js" in seen
    assert "/static/vendor/preact-htm.js" in seen
    weight = sum(len(gzip.compress(pages[path].body, 9)) for path in seen)
    assert weight <= FIRST_SCREEN_BYTES, weight
