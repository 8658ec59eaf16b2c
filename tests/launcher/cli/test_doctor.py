"""`doctor`: says what is wrong and the way out; finds nothing wrong where nothing is."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from kite_launcher.cli import probe

from .conftest import Launch
from .fake_launcher import fake_launcher, row, status


def findings(launch: Launch, *argv: str) -> dict[str, tuple[str, str, str]]:
    said = launch("doctor", "--json", *argv)
    found = json.loads(said.out)
    assert found["schema"] == 1
    bad = any(row["state"] == "bad" for row in found["findings"])
    assert said.code == (1 if bad else 0)
    return {row["name"]: (row["state"], row["text"], row["hint"]) for row in found["findings"]}


def serve_once(answer: bytes) -> tuple[int, threading.Thread]:
    """Listen on a free port, answer the first that connects, end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        wire, _ = listener.accept()
        with listener, wire:
            wire.sendall(answer)
            wire.settimeout(10)
            wire.recv(1024)

    thread = threading.Thread(target=run)
    thread.start()
    return listener.getsockname()[1], thread


def test_a_healthy_folder_has_no_fault(launch: Launch) -> None:
    found = findings(launch)
    assert [name for name, (state, _, _) in found.items() if state == "bad"] == []
    assert found["launcher"][0] == "hint"


def test_each_fault_has_its_way_out(launch: Launch, lab: Path) -> None:
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    text = f"[kernel]\nport = {port}\n[module.x]\ncommand = ['no-such-program']\nready = {{ delay = '1s' }}\n"
    (lab / "kite.toml").write_text(text, encoding="utf-8")
    state = lab / "s"
    (state / "tokens").mkdir(parents=True)
    state.chmod(0o700)
    (state / "tokens" / "operator").write_text("S3CRET", encoding="utf-8")
    (state / "tokens" / "operator").chmod(0o644)
    (state / "processes.json.damaged-1").write_text("", encoding="utf-8")
    with held:
        found = findings(launch, "--state-dir", "s")
    bad = {name for name, (kind, _, _) in found.items() if kind == "bad"}
    assert bad == {"kite.toml", f"port {port}", "token files"}
    assert f"pid {os.getpid()}" in found[f"port {port}"][1]
    assert "damaged-1" in found["state files"][1]
    assert all(hint for kind, _, hint in found.values() if kind == "bad")
    assert "S3CRET" not in str(found)


def test_a_state_directory_that_is_not_ours_ends_the_looking_with_its_cause(launch: Launch, lab: Path) -> None:
    (lab / "s").mkdir()
    (lab / "s").chmod(0o777)
    found = findings(launch, "--state-dir", "s")
    assert found["state directory"][0] == "bad"
    assert "0777" in found["state directory"][1]


@pytest.mark.parametrize(("answer", "kind"), [(b"HTTP/1.1 200 OK\r\n\r\n", "ok"), (b"HTTP/1.1 503 No\r\n\r\n", "bad")])
def test_the_kernels_own_answer_counts(launch: Launch, lab: Path, answer: bytes, kind: str) -> None:
    port, thread = serve_once(answer)
    now = status("degraded", row("x", "failed", why="exit 3"), url=f"ws://127.0.0.1:{port}")
    with fake_launcher(lab / "s", {"status": now}):
        found = findings(launch, "--state-dir", "s")
    thread.join(10)
    assert found["kernel"][0] == kind
    assert found["module x"][:2] == ("bad", "failed: exit 3")


def test_a_dead_kernel_is_seen(launch: Launch, lab: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with fake_launcher(lab / "s", {"status": status("degraded", url=f"ws://127.0.0.1:{port}")}):
        assert findings(launch, "--state-dir", "s")["kernel"][0] == "bad"


@pytest.mark.parametrize(
    ("greeting", "kind"),
    [
        (b'INFO {"version":"2.11","jetstream":true}\r\n', "ok"),
        (b'INFO {"version":"2.11"}\r\n', "bad"),
        (b"SSH-2.0-x\r\n", "bad"),
    ],
)
def test_a_cluster_is_judged_by_its_greeting(launch: Launch, lab: Path, greeting: bytes, kind: str) -> None:
    port, thread = serve_once(greeting)
    url = f"nats://user:S3CRET@127.0.0.1:{port}"
    (lab / "kite.toml").write_text(f'[kernel]\nport = 0\n[cluster]\nurl = "{url}"\n', encoding="utf-8")
    found = findings(launch)
    thread.join(10)
    assert found[f"cluster 127.0.0.1:{port}"][0] == kind
    assert "S3CRET" not in str(found)


def test_a_free_port_is_free_and_a_foreign_address_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert probe.port_trouble("127.0.0.1", port) is None
    assert probe.port_trouble("192.0.2.1", port) is not None
