"""The kernel reads its sections of kite.toml itself: what the launcher's check lets pass, it reads the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kite_kernel import config as kernel_config
from kite_kernel.core.permissions import Permissions
from kite_kernel.errors import StartError
from kite_launcher.core.check_rows import Facts, FileFault
from kite_launcher.core.load import load_text
from kite_launcher.core.spec import InstanceSpec

TEXTS = [
    "",
    "[kernel]\nport = 0\nhost = '127.3.2.1'\nmax_message = '64KiB'\nqueue_messages = 7\nqueue_bytes = '1.5MiB'\n",
    "[kernel]\nhost = '::1'\norigins = ['https://a.example', '$$x']\nhosts = ['b.example']\n",
    "[kernel]\nport = '${PORT}'\nhost = '${HOST}'\nallow_remote = '${YES}'\n",
    "[kernel]\nallow_remote = true\nhost = '0.0.0.0'\ntls = { cert = 'c.pem', key = '${DIR}/k.pem' }\n",
    "[timing]\nscale = 0.1\ndebounce = '1m30s'\ncall = '1.5s'\nping_misses = 2\nrate_window = '250ms'\n",
    "[ownership]\nmonitor = false\nlease = '1h'\nattempts = 9\n[timing]\nscale = 2\n",
    "[streams]\nopen = true\n[streams.ticks]\nring = 5\nkeep = '2GiB'\nkeep_age = '7d'\n[streams.'a.b']\n",
    "[permissions.backup]\ncall = ['model.*']\npublish = ['backup.>']\nsubscribe = ['>']\n[permissions.'备']\n",
    "[module.x]\ncommand = ['x']\n[relay]\n[cluster]\nurl = 'nats://h:1'\n[logging]\nfiles = 2\n",
]
ENVIRON = {"PORT": "7001", "HOST": "localhost", "YES": "true", "DIR": "/keys"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def launcher_reads(text: str, path: Path) -> InstanceSpec | None:
    known = Facts(ENVIRON, lambda file: "" if file.endswith(".pem") else FileFault("no such file"), lambda user: True)
    return load_text(text, path=str(path), facts=known).spec


@pytest.mark.parametrize("text", TEXTS)
def test_both_houses_read_the_same_values(folder: Path, text: str) -> None:
    path = folder / "kite.toml"
    path.write_text(text, encoding="utf-8")
    ours = launcher_reads(text, path)
    assert ours is not None
    theirs = kernel_config.load(path, standalone=False)
    assert (theirs.host, theirs.allow_remote) == (ours.kernel.host, ours.kernel.allow_remote)
    assert not text or theirs.port == ours.kernel.port
    assert theirs.tls == (None if ours.kernel.tls is None else (ours.kernel.tls.cert, ours.kernel.tls.key))
    assert theirs.settings.max_message_bytes == ours.kernel.max_message_bytes
    assert (theirs.settings.queue_messages, theirs.settings.queue_bytes) == (
        ours.kernel.queue_messages,
        ours.kernel.queue_bytes,
    )
    timing = theirs.settings.timing
    for name in ("debounce", "launcher_grace", "shutdown", "auth", "pong", "rate_window", "critical", "call"):
        assert getattr(timing, name) == pytest.approx(getattr(ours.timing, f"{name}_s")), name
    assert (timing.ping_misses, timing.rate_max) == (ours.timing.ping_misses, ours.timing.rate_max)
    assert theirs.streams_open == ours.kernel_sections["streams"]["open"]
    for name, row in theirs.streams.items():
        assert row == dict(ours.kernel_sections[f"streams.{name}"])
    assert set(theirs.permissions) == set(ours.permissions)
    for name, granted in theirs.permissions.items():
        wanted = ours.permissions[name]
        same = Permissions(wanted.call, wanted.publish, wanted.subscribe)
        for word in ("model.run", "backup.done", "other.thing", "kernel.info"):
            assert granted.may_call(word) == same.may_call(word)
            assert granted.may_publish(word) == same.may_publish(word)
            assert granted.may_hear(word) == same.may_hear(word)


@pytest.mark.parametrize(
    "text",
    [
        "[kernel]\nport = 70000",
        "[kernel]\nhost = '0.0.0.0'",
        "[kernel]\nhost = '${NOPE}'",
        "[kernel]\nport = '${DIR}'",
        "[timing]\ncall = '5'",
        "[streams.Ticks]\nring = 1",
        "[permissions.x]\ncall = ['a*']",
        "[kernel]\nmax_message = '8MiB'\nqueue_bytes = '4MiB'",
    ],
)
def test_what_the_kernel_would_refuse_the_check_refuses_first(folder: Path, text: str) -> None:
    path = folder / "kite.toml"
    path.write_text(text, encoding="utf-8")
    refused: Any = None
    try:
        kernel_config.load(path, standalone=False)
    except StartError as error:
        refused = error
    assert refused is not None
    assert launcher_reads(text, path) is None
