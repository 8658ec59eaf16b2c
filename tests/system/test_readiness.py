"""What ready means, in which order things start, and what a child gets.

Source: cases S-45, S-50, S-51, S-54 … S-60, S-83, S-87; spec 05 §4; 50 §1 step 6.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab import Lab, cmdline, module

FILES = {
    "exit3.py": "import sys\nsys.exit(3)\n",
    "halves.py": (
        "import sys, time\nsys.stdout.write('liste'); sys.stdout.flush(); time.sleep(0.5)\n"
        "sys.stdout.write('ning\\n'); sys.stdout.flush()\nwhile True:\n    time.sleep(60)\n"
    ),
    "chatter.py": "import time\nprint('one'); print('the last words', flush=True)\nwhile True:\n    time.sleep(60)\n",
    # a short-lived child says READY and is gone
    "notify.py": (
        "import os, socket, subprocess, sys, time\n"
        "if len(sys.argv) > 1:\n"
        "    address = os.environ['NOTIFY_SOCKET']\n"
        "    address = '\\0' + address[1:] if address.startswith('@') else address\n"
        "    mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "    mouth.sendto(b'READY=1\\nSTATUS=warm', address)\n"
        "    os._exit(0)\n"
        "subprocess.run([sys.executable, 'notify.py', 'child'])\nwhile True:\n    time.sleep(60)\n"
    ),
    "tcp.py": (
        "import socket, sys, time\ntime.sleep(0.2)\ns = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True:\n    s.accept()\n"
    ),
    "web.py": (
        "import http.server, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n        self.send_response(204); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    ),
    "done.py": "print('worked')\n",
    "look.py": (
        "import json, os, resource, sys, time\n"
        "fds = {n: os.readlink(f'/proc/self/fd/{n}') for n in range(64) if os.path.islink(f'/proc/self/fd/{n}')}\n"
        "mask = os.umask(0); os.umask(mask)\n"
        "token = ''\n"
        "if 'KITE_TOKEN_FD' in os.environ:\n"
        "    with open(int(os.environ['KITE_TOKEN_FD'])) as f:\n        token = f.read()\n"
        "seen = dict(env=dict(os.environ), fds=fds, umask=mask, nice=os.nice(0), cwd=os.getcwd(), sid=os.getsid(0),\n"
        "    pid=os.getpid(), nofile=resource.getrlimit(resource.RLIMIT_NOFILE), argv=sys.argv, token=len(token))\n"
        "name = os.environ['KITE_MODULE_ID']\n"
        "open(os.path.join(os.environ['KITE_STATE_DIR'], 'seen.new'), 'w').write(json.dumps(seen))\n"
        "os.rename(os.path.join(os.environ['KITE_STATE_DIR'], 'seen.new'),"
        " os.path.join(os.environ['KITE_STATE_DIR'], 'seen'))\n"
        "print('looked', flush=True)\nwhile True:\n    time.sleep(60)\n"
    ),
}
ODD_ARGS = ["a b", "%d", "$HOME", "*", '"', "'", "é\n"]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    tcp, http = _free_port(), _free_port()
    looked = '{ log = "looked" }'
    toml = (
        module("x", "exit3.py", restart='"never"', ready='{ delay = "10s" }')
        + module("y", requires='["x"]')
        + module("z", after='["x"]')
        + module("halves", "halves.py", ready='{ log = "listening" }', ready_timeout='"20s"')
        + module("chatter", "chatter.py", ready='{ log = "listening" }', ready_timeout='"1s"', max_restarts=0)
        + module("notify", "notify.py", ready="{ notify = true }")
        + module("tcp", ready=f"{{ tcp = {tcp} }}", command=f'["python3", "tcp.py", "{tcp}"]')
        + module("http", ready=f'{{ http = "http://127.0.0.1:{http}/ok" }}', command=f'["python3", "web.py", "{http}"]')
        + module("done", "done.py", ready="{ exit = 0 }")
        + module("behind_done", after='["done"]')
        + module("absent", command='["./no-such-program"]')
        + module(
            "huge",
            command='["python3", "x.py"]',
            env="{ " + ", ".join(f'E{n} = "{"v" * 100_000}"' for n in range(30)) + " }",
        )
        + module(
            "look",
            ready=looked,
            command=json.dumps(["python3", "../look.py", *ODD_ARGS]),
            limits="{ nofile = 4096 }",
            umask='"027"',
            nice=5,
            cwd='"sub"',
            env_file='".env"',
            env='{ LEVEL = "info" }',
            token='"fd"',
        )
        + module("twins", "look.py", ready=looked, replicas=2)
        + module("crash", "exit3.py", max_restarts=2)
    )
    folder = tmp_path_factory.mktemp("ready") / "a b'\n😀"
    folder.mkdir()
    (folder / "sub").mkdir()
    (folder / ".env").write_text("LEVEL=debug\nFROM_FILE=yes\n", "utf-8")
    with Lab(folder, toml, files=FILES) as lab:
        os.set_inheritable(extra := os.open("/dev/null", os.O_RDONLY), True)
        done = lab.run(
            "up",
            "-d",
            pass_fds=(extra,),
            env={**lab.env(), "NOTIFY_SOCKET": "/nowhere", "LISTEN_FDS": "1", "LISTEN_PID": "1"},
        )
        os.close(extra)
        assert done.returncode == 1, done.stderr
        yield lab


def _seen(lab: Lab, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lab.state / "modules" / name / "seen").read_text("utf-8"))
    return found


def test_exit_before_ready_holds_back_who_requires_it_and_lets_pass_who_comes_after(lab: Lab) -> None:
    assert lab.row("x")["state"] == "failed"
    assert lab.row("y")["state"] == "waiting"
    assert lab.row("y")["restarts"] == 0
    assert lab.row("z")["state"] == "running"
    assert "exit 3" in json.dumps(lab.why("x")["timeline"])
    assert not any(entry["event"] == "ready" for entry in lab.why("x")["timeline"])
    assert not any(entry["event"] == "started" for entry in lab.why("y")["timeline"])


def test_log_rule_sees_a_line_that_comes_in_halves(lab: Lab) -> None:
    assert lab.row("halves")["ready"]


def test_not_ready_in_time_is_a_failed_start_with_rule_time_and_last_lines(lab: Lab) -> None:
    assert lab.row("chatter")["state"] == "failed"
    story = json.dumps(lab.why("chatter")["timeline"])
    assert "listening" in story
    assert "within 1 s" in story
    assert "the last words" in story


def test_short_lived_child_may_say_ready(lab: Lab) -> None:
    for _ in range(3):
        assert lab.row("notify")["ready"]
        assert "warm" in lab.row("notify")["why"]
        lab.ok("restart", "notify")


def test_tcp_http_and_exit_rules_come_true(lab: Lab) -> None:
    assert lab.row("tcp")["ready"]
    assert lab.row("http")["ready"]
    assert (lab.row("done")["state"], lab.row("done")["pid"]) == ("done", None)
    assert lab.row("behind_done")["ready"]


def test_start_that_can_not_work_fails_at_once_and_says_why(lab: Lab) -> None:
    absent = lab.row("absent")
    assert absent["state"] == "failed"
    assert "no-such-program" in absent["why"]
    huge = lab.row("huge")
    assert huge["state"] == "failed"
    assert "too long" in huge["why"]
    assert sum(entry["event"] == "failed" for entry in lab.why("huge")["timeline"]) == 1


def test_child_gets_exactly_what_was_asked_for(lab: Lab) -> None:
    seen = _seen(lab, "look")
    env = seen["env"]
    assert (env["LEVEL"], env["FROM_FILE"]) == ("info", "yes")
    assert seen["nofile"] == [4096, 4096]
    assert seen["umask"] == 0o027
    assert seen["nice"] == 5
    assert seen["cwd"] == str(lab.folder / "sub")
    assert seen["sid"] == seen["pid"]
    assert env["KITE_MODULE_ID"] == "look"
    assert env["KITE_INSTANCE"] == lab.mark()
    assert env["KITE_STATE_DIR"] == str(lab.state / "modules" / "look")
    assert env["KITE_URL"] == lab.status()["url"]
    assert seen["token"] > 20
    assert not [name for name in env if name.startswith(("LISTEN_", "WATCHDOG_"))]
    assert env["NOTIFY_SOCKET"] != "/nowhere"


def test_argv_is_byte_exact_and_no_shell_sees_it(lab: Lab) -> None:
    assert _seen(lab, "look")["argv"][1:] == ODD_ARGS
    assert [part.decode() for part in cmdline(lab.pid("look"))][2:] == ODD_ARGS


def test_child_has_its_streams_its_token_and_its_lock_and_nothing_else(lab: Lab) -> None:
    fds = _seen(lab, "look")["fds"]
    listing = {
        number: target for number, target in fds.items() if not target.startswith(f"/proc/{_seen(lab, 'look')['pid']}/")
    }
    assert listing["0"] == "/dev/null"
    assert listing["1"].startswith("pipe:")
    assert listing["2"].startswith("pipe:")
    others = sorted(target for number, target in listing.items() if int(number) > 2)
    assert len(others) == 2, listing
    assert others[0].endswith("/modules/look/lock")
    assert others[1].startswith("pipe:")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert _seen(lab, "twins@1")["nofile"][0] == soft


def test_replicas_have_their_index_and_names(lab: Lab) -> None:
    for index in (1, 2):
        env = _seen(lab, f"twins@{index}")["env"]
        assert env["KITE_MODULE_ID"] == f"twins@{index}"
        assert env["KITE_REPLICA"] == str(index)
        assert "KITE_TOKEN_FD" not in env
    before = lab.pid("twins@1")
    lab.ok("restart", "twins@2")
    assert lab.pid("twins@1") == before
    lab.ok("stop", "twins")
    assert {lab.row(f"twins@{index}")["state"] for index in (1, 2)} == {"stopped"}
    lab.ok("start", "twins")


def test_wait_answers_as_soon_as_it_knows(lab: Lab) -> None:
    begin = time.monotonic()
    assert lab.run("wait", "crash", "--timeout", "60").returncode == 1
    assert lab.run("wait", "y", "--timeout", "60").returncode == 1
    assert lab.run("wait", "x", "--state", "failed", "--timeout", "60").returncode == 0
    assert lab.run("wait", "z", "halves", "--timeout", "60").returncode == 0
    assert time.monotonic() - begin < 20
    lab.ok("stop", "halves")
    answer: list[int] = []
    waiting = threading.Thread(
        target=lambda: answer.append(lab.run("wait", "halves", "--state", "running", "--timeout", "30").returncode)
    )
    lab.run("start", "halves")
    waiting.start()
    waiting.join(30)
    assert answer == [0]


def test_status_tells_failed_by_its_exit_code_and_unknown_names_are_usage(lab: Lab) -> None:
    assert lab.run("status").returncode == 2
    done = lab.run("start", "nosuch")
    assert done.returncode == 64
    assert lab.run("why", "look").returncode == 0
    done = lab.run("restart", "lok")
    assert (done.returncode, "look" in done.stderr) == (64, True)
    assert lab.run("stop", "kernel").returncode == 64


def test_long_state_directory_meets_no_socket_limit(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("n", "notify.py", ready="{ notify = true }"), files=FILES) as lab:
        lab.state = tmp_path / ("d" * 100) / ("e" * 100)
        lab.up()
        assert lab.row("n")["ready"]
        for command in (
            ("status",),
            ("restart", "n"),
            ("why", "n"),
            ("wait", "n"),
            ("stop", "n"),
            ("start", "n"),
            ("down",),
        ):
            lab.ok(*command)
        lab.assert_nothing_left()


def test_start_order_is_the_critical_path_and_stop_order_its_reverse(tmp_path: Path) -> None:
    ready = '{ delay = "500ms" }'
    toml = (
        module("a", ready=ready)
        + module("b", ready=ready, after='["a"]')
        + module("c", ready=ready, after='["a"]')
        + module("d", ready=ready, requires='["b", "c"]')
    )
    with Lab(tmp_path / "lab", toml) as lab:
        lab.up()
        at = {name: _instant(lab, name, "started") for name in "abcd"}
        ready_at = {name: _instant(lab, name, "ready") for name in "abcd"}
        assert max(ready_at["a"], at["a"]) <= min(at["b"], at["c"])
        assert abs(at["b"] - at["c"]) < 0.4
        assert at["d"] >= max(ready_at["b"], ready_at["c"])
        assert ready_at["d"] - at["a"] < 4
        lab.ok("down")
        gone = [
            line.split("name=")[1][0]
            for line in lab.log().splitlines()
            if " gone " in line and "name=kernel" not in line and "name=watchdog" not in line
        ]
        assert gone[0] == "d"
        assert gone[-1] == "a"


def _instant(lab: Lab, name: str, event: str) -> float:
    from datetime import datetime

    at = next(entry["at"] for entry in lab.why(name)["timeline"] if entry["event"] == event)
    return datetime.fromisoformat(at).timestamp()


def test_detached_up_lets_go_of_its_pipes(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        done = subprocess.run(
            ["sh", "-c", f"{' '.join(_quoted())} up -d | cat"], env=lab.env(), cwd=lab.folder, timeout=60, check=False
        )
        assert done.returncode == 0
        lab.until_well()


def _quoted() -> list[str]:
    import shlex

    from tests.support.lab import COMMAND

    return [shlex.quote(part) for part in COMMAND]
