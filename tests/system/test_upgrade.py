"""A new launcher takes over what runs: same processes, same connections; one that does not work changes nothing.

Source: issue of the launcher, point 4; spec 05 §3.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.lab import Lab, kill, module

KITE_MODULE = """\
from kite_modules.sdk import Module
module = Module()

@module.method
async def ping() -> str:
    return "pong"

module.run()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    python = json.dumps([sys.executable, "-P", "kite_module.py"])
    toml = (
        module("k", command=python, ready=None, health="false", stop_timeout='"5s"')
        + module("x")
        + module("y")
        + module("f", command='["false"]', restart='"never"', ready='{ delay = "5s" }')
    )
    with Lab(tmp_path_factory.mktemp("upgrade"), toml, files={"kite_module.py": KITE_MODULE}) as lab:
        lab.run("up", "-d")
        lab.ok("stop", "y")
        yield lab


def _pids(lab: Lab) -> dict[str, Any]:
    status = lab.status()
    rows = {row["name"]: (row["pid"], row["state"]) for row in status["modules"]}
    return {**rows, **{name: status[name]["pid"] for name in ("launcher", "kernel", "watchdog")}}


def test_upgrade_keeps_every_process_and_state(lab: Lab) -> None:
    before = _pids(lab)
    keeper = lab.keeper_pid()
    epoch = lab.status()["kernel"]["epoch"]
    said = lab.ok("upgrade")
    assert "taken over" in said
    assert _pids(lab) == before
    assert lab.keeper_pid() == keeper
    assert lab.status()["kernel"]["epoch"] == epoch
    assert "offline" not in lab.log("kernel")
    assert "adopted" in json.dumps(lab.why("x")["timeline"])
    assert "exit 1" in json.dumps(lab.why("f")["timeline"])


def test_taken_over_instance_is_kept_as_before(lab: Lab) -> None:
    old = lab.pid("x")
    kill(old)
    lab.until(lambda: lab.pid("x") not in (0, old), "x again")
    assert "signal KILL" in json.dumps(lab.why("x")["timeline"])
    assert lab.row("y")["state"] == "stopped"
    lab.ok("start", "y")
    lab.until(lambda: lab.row("k")["ready"], "the module that speaks Kite is ready")
    assert lab.run("up", "-d").returncode == 75


def test_new_launcher_that_does_not_work_is_refused_and_nothing_changed(lab: Lab) -> None:
    before = _pids(lab)
    broken = lab.folder / "broken-python"
    broken.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 1\n")
    broken.chmod(0o755)
    for python, words in ((str(broken), "no such library"), ("/no/such/python", "No such file")):
        done = _upgrade_with(lab, python)
        assert words in json.dumps(done["error"])
        assert done["error"]["data"]["exit"] == 1
    assert _pids(lab) == before


def test_changed_file_is_reloaded_before_it_is_upgraded(lab: Lab) -> None:
    good = lab.config.read_text("utf-8")
    lab.config.write_text(good + module("z"), "utf-8")
    done = lab.run("upgrade")
    assert done.returncode == 1
    assert "reload" in done.stderr
    lab.config.write_text(good, "utf-8")
    lab.ok("upgrade")


def test_new_launcher_that_dies_over_it_is_followed_by_the_old_one(lab: Lab) -> None:
    before = _pids(lab)
    # Passes its trial, then ends instead of taking over.
    liar = lab.folder / "lying-python"
    liar.write_text('#!/bin/sh\ncase "$*" in *--trial*) echo ok; exit 0;; esac\nexit 1\n')
    liar.chmod(0o755)
    asked = threading.Thread(target=_upgrade_with, args=(lab, str(liar)))
    asked.start()
    lab.until(lambda: lab.launcher_pid() not in (0, before["launcher"]), "the old program goes on in a new process")
    asked.join(30)
    after = _pids(lab)
    for name in ("k", "x", "y", "f", "kernel", "watchdog"):
        assert after[name] == before[name], name
    assert "rolled back" in lab.log()
    lab.ok("restart", "x")
    lab.ok("down")
    lab.assert_nothing_left()


def _upgrade_with(lab: Lab, python: str) -> dict[str, Any]:
    import socket

    folder = os.open(lab.state, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(30)
        wire.connect(f"/proc/self/fd/{folder}/launcher.sock")
        os.close(folder)
        request = {"jsonrpc": "2.0", "id": 1, "method": "upgrade", "params": {"python": python}}
        wire.sendall(json.dumps(request).encode() + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            chunk = wire.recv(65536)
            if not chunk:
                break
            data += chunk
    found: dict[str, Any] = json.loads(data) if data.strip() else {}
    return found


def test_document_of_another_version_is_refused() -> None:
    from kite_launcher.core.takeover import parse_takeover

    for text in (b"{}", b'{"version": 99}', b'{"version": 1}', b'{"version": 1, "surprise": 1}', b"[]"):
        with pytest.raises(ValueError, match=r"version|members"):
            parse_takeover(text)
