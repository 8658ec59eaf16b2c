"""What reaches a child and what must not; Kite modules, tokens, terminals, containers, service managers.

Source: cases S-19, S-31, S-34, S-84, S-86 … S-90; X-11, X-13; spec 05 §3, §4; 50 §2–§4.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab import COMMAND, Lab, alive, cmdline, kill, marked, module, pids

POLITE = """\
from kite_modules.sdk import Module
module = Module()

@module.method
async def ping() -> str:
    return "pong"

module.run()
"""
# Speaks Kite far enough to be ready, and never answers `module.shutdown`.
DEAF = """\
import json, os, signal
import trio
from trio_websocket import open_websocket_url
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(int(os.environ["KITE_TOKEN_FD"])) as f:
    token = f.read()

async def main():
    async with open_websocket_url(os.environ["KITE_URL"] + "/ws") as ws:
        async def say(**frame):
            await ws.send_message(json.dumps({"jsonrpc": "2.0", **frame}))
        await say(id=1, method="auth", params={"token": token, "protocol": 2, "instance": "deaf"})
        await ws.get_message()
        await say(method="event.subscribe", params={"events": []})
        await say(method="registry.register", params={"methods": []})
        await say(method="event.publish", params={"event": "module.ready", "data": {}})
        while True:
            await ws.get_message()

trio.run(main)
"""


def _kite(name: str, script: str, **keys: Any) -> str:
    python = json.dumps([sys.executable, "-P", script])
    return module(name, **{"command": python, "ready": None, "health": "false", **keys})


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    toml = (
        _kite("polite", "polite.py", stop_timeout='"5s"')
        + _kite("deaf", "deaf.py", after='["polite"]')
        + _kite("filed", "polite.py", token='"file"', stop_timeout='"5s"')
        + module("plain")
        + module("fat", "fat.py", memory_max='"64MiB"', max_restarts=1, backoff='"10ms"')
    )
    fat = (
        "import os, time\n"
        "if os.fork() == 0:\n    time.sleep(0.3); hold = bytearray(os.urandom(1 << 20)) * 100; time.sleep(60)\n"
        "time.sleep(600)\n"
    )
    folder = tmp_path_factory.mktemp("env")
    trap = f"open({str(folder / 'trap')!r}, 'a').write(__name__)\n"
    files = {"polite.py": POLITE, "deaf.py": DEAF, "fat.py": fat}
    # Files beside kite.toml that Kite's own processes must not import.
    with Lab(folder, toml, files={**files, "json.py": trap, "trio.py": trap, "sitecustomize.py": trap}) as lab:
        lab.run("up", "-d")
        yield lab


def test_kite_modules_are_ready_when_they_say_so(lab: Lab) -> None:
    for name in ("polite", "deaf", "filed"):
        assert lab.row(name)["ready"], lab.log(name)


def test_memory_of_the_whole_tree_counts_and_takes_from_the_one_budget(lab: Lab) -> None:
    lab.until(lambda: lab.row("fat")["state"] == "failed", "the second time is the last")
    story = json.dumps(lab.why("fat")["timeline"])
    assert "memory" in story
    assert "allowed 64 MiB" in story
    assert "fat" not in lab.marked().values()


def test_no_token_is_seen_anywhere(lab: Lab) -> None:
    tokens = [(lab.state / "tokens" / name).read_text("ascii") for name in ("operator", "filed")]
    tokens.append(lab.ok("token", "polite").strip())
    assert len(set(tokens)) == 3
    kill(lab.pid("polite"))
    lab.until(lambda: lab.row("polite")["ready"] and lab.row("polite")["restarts"], "polite is back")
    said = [lab.run(*args).stdout for args in (("status", "--json"), ("why", "polite", "--json"), ("doctor",))]
    places = {f"{pid} {what}": _bytes(f"/proc/{pid}/{what}") for pid in pids() for what in ("cmdline", "environ")}
    for path in lab.state.rglob("*"):
        if path.is_file() and path.parent.name != "tokens" and not path.name.startswith(("facts", "keeper.")):
            places[str(path)] = path.read_bytes()
    for token in tokens:
        assert not [text for text in said if token in text]
        assert not [place for place, data in places.items() if token.encode() in data]
    for path in (lab.state / "tokens").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert lab.run("token", "nosuch").returncode == 64


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def test_files_beside_the_configuration_are_never_imported(lab: Lab) -> None:
    assert not (lab.folder / "trap").exists()


def test_kernel_comes_back_on_its_port_while_it_was_refused_to_everybody_else(lab: Lab) -> None:
    port = int(lab.status()["url"].rpartition(":")[2])
    old = lab.pid("kernel")
    kill(old, signal.SIGSTOP)
    kill(old)
    connected = 0
    while lab.pid("kernel") in (0, old):
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind(("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port), 5):
            connected += 1
    assert connected
    lab.until(lambda: lab.row("kernel")["state"] == "running" and lab.row("polite")["ready"], "all back")


def test_hung_kernel_is_replaced_and_its_stacks_are_kept(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x"), scale=0.1) as lab:
        lab.up()
        old, x = lab.pid("kernel"), lab.pid("x")
        kill(old, signal.SIGSTOP)
        lab.until(lambda: lab.pid("kernel") not in (0, old), "a new kernel")
        lab.until_well()
        assert lab.pid("x") == x
        assert list((lab.state / "modules" / "kernel").glob("stacks-*.txt"))
        assert "Fatal Python error: Aborted" in lab.log("kernel")
        assert "hang" in lab.log()


def test_modules_leave_by_word_or_by_force_and_why_tells_which(lab: Lab) -> None:
    begin = time.monotonic()
    lab.ok("stop", "deaf", "polite", "filed")
    assert time.monotonic() - begin < 6
    assert "by force" in json.dumps(lab.why("deaf")["timeline"])
    for name in ("polite", "filed"):
        story = json.dumps(lab.why(name)["timeline"])
        assert "by itself" in story
        assert "exit 0" in story, story


def test_after_down_no_token_file_is_left(lab: Lab) -> None:
    lab.ok("down")
    lab.assert_nothing_left()
    assert list((lab.state / "tokens").iterdir()) == []


def test_essential_module_that_fails_ends_the_instance_with_1(tmp_path: Path) -> None:
    quits = "import sys, time\ntime.sleep(0.3)\nsys.exit(1)\n"
    toml = module("y") + module("x", "quits.py", essential="true", max_restarts=1, after='["y"]')
    with Lab(tmp_path / "lab", toml, files={"quits.py": quits}, scale=0.1) as lab:
        front = lab.front()
        assert front.wait(30) == 1
        lab.assert_nothing_left()
        assert lab.log().count("started  name=x") == 2
        time.sleep(0.5)
        lab.assert_nothing_left()
        assert not (lab.state / "restarts.json").exists() or '"cause"' not in (lab.state / "restarts.json").read_text()


@pytest.mark.parametrize("keys", [b"\x1b", b"\x03"])
def test_keys_on_a_terminal_stop_the_instance_and_the_modes_come_back(tmp_path: Path, keys: bytes) -> None:
    import termios

    with Lab(tmp_path / "lab", module("x")) as lab:
        master, slave = pty.openpty()
        before = termios.tcgetattr(slave)
        process = subprocess.Popen(
            [*COMMAND, "up"], env=lab.env(), cwd=lab.folder, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: _take_terminal(),
        )  # fmt: skip
        try:
            lab.until_well()
            # An arrow key begins with ESC and is no wish to stop.
            os.write(master, b"\x1b[A")
            time.sleep(0.2)
            assert process.poll() is None
            os.write(master, keys)
            assert process.wait(30) == 0
            assert termios.tcgetattr(slave) == before
        finally:
            process.kill()
            process.wait()
            os.close(master)
            os.close(slave)
        lab.assert_nothing_left()


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_service_manager_hears_ready_once_and_stopping(tmp_path: Path) -> None:
    with Lab(
        tmp_path / "lab", module("x") + module("f", "absent.py", restart='"never"', ready='{ delay = "5s" }')
    ) as lab:
        ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ears.bind(str(tmp_path / "manager"))
        ears.settimeout(20)
        env = {**lab.env(), "NOTIFY_SOCKET": str(tmp_path / "manager"), "WATCHDOG_USEC": "200000"}
        front = lab.front(env=env)
        heard = [ears.recv(4096).decode()]
        while not any("READY=1" in text for text in heard):
            heard.append(ears.recv(4096).decode())
        assert "WATCHDOG=1" in heard
        assert b"NOTIFY_SOCKET=" + str(tmp_path / "manager").encode() not in _bytes(f"/proc/{lab.pid('x')}/environ")
        front.terminate()
        while not any("STOPPING=1" in text for text in heard):
            heard.append(ears.recv(4096).decode())
        assert front.wait(30) == 0
        assert sum("READY=1" in text for text in heard) == 1
        ears.close()


needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0, reason="only root makes a PID namespace here"
)

ORPHANS = """\
import os, time
for _ in range(300):
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        time.sleep(0.05)
        os._exit(0)
    os.wait()
print("made", flush=True)
while True:
    time.sleep(60)
"""


@needs_namespaces
def test_as_pid_1_it_reaps_everybody_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    toml = module("x", "orphans.py", ready='{ log = "made" }')
    with Lab(tmp_path / "lab", toml, files={"orphans.py": ORPHANS}) as lab:
        unshared = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *COMMAND, "up"]

        def begin() -> subprocess.Popen[bytes]:
            process = subprocess.Popen(unshared, env=lab.env(), cwd=lab.folder, stderr=subprocess.DEVNULL)
            lab.until(lambda: "settled" in lab.log(), "settled")
            return process

        process = begin()
        try:
            first = _first_of(process.pid)
            assert json.loads((lab.state / "instance.lock").read_bytes())["pid"] == 1
            lab.until(lambda: not _zombies_below(first), "no zombie", 10)
            kill(first)
            process.wait(10)
            lab.until_nothing_left()
            (lab.state / "logs" / "launcher.log").unlink()
            process = begin()
            kill(_first_of(process.pid), signal.SIGTERM)
            assert process.wait(20) == 0
            lab.until_nothing_left()
        finally:
            if process.poll() is None:
                kill(_first_of(process.pid))
                process.wait(10)


def _first_of(parent: int) -> int:
    children = _bytes(f"/proc/{parent}/task/{parent}/children").split()
    return int(children[0])


def _zombies_below(root: int) -> list[int]:
    table: dict[int, tuple[int, bytes]] = {}
    for pid in pids():
        fields = _bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if fields:
            table[pid] = (int(fields[1]), fields[0])
    return [pid for pid, (parent, state) in table.items() if state == b"Z" and _is_below(pid, root, table)]


def _is_below(pid: int, root: int, table: dict[int, tuple[int, bytes]]) -> bool:
    while pid in table and pid not in (0, root):
        pid = table[pid][0]
    return pid == root


def test_marks_of_the_launcher_s_own_parent_are_not_passed_on(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        env = {**lab.env(), "KITE_INSTANCE": "f" * 32, "KITE_MODULE_ID": "other", "KITE_TOKEN_FD": "9"}
        done = lab.run("up", "-d", env=env)
        assert done.returncode == 0, done.stderr
        environ = _bytes(f"/proc/{lab.pid('x')}/environ").split(b"\0")
        assert f"KITE_INSTANCE={lab.mark()}".encode() in environ
        assert b"KITE_MODULE_ID=x" in environ
        assert not [entry for entry in environ if entry.startswith(b"KITE_TOKEN")]
        assert marked("f" * 32) == {}
        assert all(b"ffffffff" not in part for part in cmdline(lab.pid("x")))
        assert alive(lab.launcher_pid())
