"""State files: whole at every look, never trusted, never a stranger's; and what an unwritable directory means.

Source: cases S-77 … S-82, S-52; X-12; spec 05 §5; 00 §26.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lab import COMMAND, Lab, alive, kill, marked, module, start_ticks

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and give files away")


def test_damaged_records_are_set_aside_and_the_marks_find_everybody(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.up()
        old = lab.marked()
        kill(lab.launcher_pid())
        (lab.state / "processes.json").write_bytes(b'{"schema":99}')
        lab.up()
        assert not any(alive(pid) for pid in old)
        assert len(list(lab.state.glob("processes.json.damaged-*"))) == 1
        assert "damaged" in lab.log()
        assert sorted(lab.marked().values()) == sorted(old.values())


def test_missing_parents_are_made_private(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.state = tmp_path / "not" / "yet" / "there"
        done = lab.run("up", "-d", umask=0)
        assert done.returncode == 0, done.stderr
        _assert_private(lab.state)
        assert stat.S_IMODE((tmp_path / "not").stat().st_mode) == 0o700


def test_umask_of_the_caller_changes_nothing_of_ours(tmp_path: Path) -> None:
    umask = 0o077
    show = "import os, time\nm = os.umask(0); print('MASK', oct(m), flush=True)\nwhile True:\n    time.sleep(60)\n"
    with Lab(tmp_path / "lab", module("x", "show.py", ready='{ log = "MASK" }'), files={"show.py": show}) as lab:
        done = lab.run("up", "-d", umask=umask)
        assert done.returncode == 0, done.stderr
        _assert_private(lab.state)
        assert f"MASK {oct(umask)}" in lab.log("x")


def _assert_private(state: Path) -> None:
    for folder, folders, files in os.walk(state):
        for name in [".", *folders]:
            assert stat.S_IMODE((Path(folder) / name).stat().st_mode) == 0o700, (folder, name)
        for name in files:
            mode = stat.S_IMODE((Path(folder) / name).lstat().st_mode)
            assert mode == 0o600, (folder, name, oct(mode))


def test_directory_that_others_may_write_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.state.mkdir()
        lab.state.chmod(0o777)
        done = lab.run("up", "-d")
        assert done.returncode == 77
        assert "0777" in done.stderr
        assert "chmod 700" in done.stderr
        assert lab.run("status").returncode == 77
        assert stat.S_IMODE(lab.state.stat().st_mode) == 0o777
        assert list(lab.state.iterdir()) == []


@needs_root
def test_directory_of_another_user_is_refused_and_not_followed(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab", module("x")) as lab:
        lab.state.mkdir(mode=0o700)
        os.chown(lab.state, 65534, 65534)
        done = lab.run("up", "-d")
        assert (done.returncode, "65534" in done.stderr) == (77, True)
        lab.state.rmdir()
        target = tmp_path / "target"
        target.mkdir(mode=0o700)
        lab.state.symlink_to(target)
        os.chown(lab.state, 65534, 65534, follow_symlinks=False)
        assert lab.run("up", "-d").returncode == 77
        assert list(target.iterdir()) == []


@needs_root
def test_record_that_can_not_be_written_is_said_and_supervision_goes_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=700", "tmpfs", str(disk)], check=True)
    try:
        with Lab(tmp_path / "lab", module("x") + module("y")) as lab:
            lab.state = disk / "state"
            lab.up()
            _fill(disk / "ballast")
            assert lab.run("stop", "x").returncode == 0
            done = lab.run("start", "x")
            assert done.returncode == 1
            assert str(lab.state) in done.stderr
            assert "errno 28" in done.stderr
            # A crash is answered all the same: the log keeper has the record.
            old = lab.pid("y")
            kill(old)
            lab.until(lambda: lab.pid("y") not in (0, old), "y again")
            status = lab.run("status", "--json")
            assert status.returncode == 1
            assert "errno 28" in json.loads(status.stdout)["why"]
            (disk / "ballast").unlink()
            lab.until_well()
            lab.ok("stop", "x")
            lab.ok("start", "x")
            lab.ok("down")
            lab.assert_nothing_left()
            # Read-only from the start: refused with path and errno, nothing started.
            read_only = ["mount", "-o", "remount,ro", str(disk)]
            lab.until(lambda: subprocess.run(read_only, check=False, stderr=subprocess.DEVNULL).returncode == 0, "ro")
            for lab.state in (disk / "other", disk / "state"):
                done = lab.run("up", "-d")
                assert done.returncode == 77
                assert str(lab.state) in done.stderr
                assert "errno 30" in done.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def _fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
    with contextlib.suppress(OSError), open(ballast, "ab", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Lab]:
    names = [f"m{number}" for number in range(8)]
    toml = "".join(module(name, max_restarts=1000) for name in names)
    crash = "import time\ntime.sleep(0.03)\n"
    toml += module("crash", "crash.py", max_restarts=100000, backoff='"10ms"', backoff_max='"20ms"')
    with Lab(tmp_path / "lab", toml, files={"crash.py": crash}, scale=0.1) as lab:
        yield lab


def test_records_are_whole_and_complete_whenever_the_launcher_dies(killed: Lab) -> None:
    lab = killed
    rng = random.Random(7)
    for _ in range(3):
        process = subprocess.Popen([*COMMAND, "up"], env=lab.env(), cwd=lab.folder, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 0.4 + rng.random()
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                document = json.loads((lab.state / "processes.json").read_bytes())
                assert document["schema"] == 1
            time.sleep(0.005)
        process.kill()
        process.wait()
        # A process that still waited for its record ends without having run: a moment on a busy machine.
        lab.until(lambda: not _unrecorded(lab), "nobody runs unrecorded", 10)
    assert lab.run("up", "-d", "--wait", "3").returncode in (0, 1)  # `crash` never rests
    assert not list(lab.state.glob(".*.tmp"))
    lab.ok("down")
    lab.assert_nothing_left()


def _unrecorded(lab: Lab) -> list[str]:
    """Return who carries the mark, leads a group and is not in processes.json with its pid and ticks."""
    recorded = {(row["pid"], row["start_ticks"]) for row in lab.records()}
    found = []
    for pid, name in marked(lab.mark()).items():
        with contextlib.suppress(OSError, IndexError):
            if os.getpgid(pid) == pid and (pid, start_ticks(pid)) not in recorded:
                found.append(name)
    return found


def test_too_few_descriptors_are_raised_or_refused(tmp_path: Path) -> None:
    toml = "".join(module(f"m{number}") for number in range(40))
    with Lab(tmp_path / "lab", toml) as lab:

        def limit(soft: int, hard: int) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        done = lab.run("up", "-d", preexec_fn=lambda: limit(128, 128))
        assert done.returncode == 69
        assert "128" in done.stderr
        assert not lab.mark()
        done = lab.run("up", "-d", preexec_fn=lambda: limit(128, 4096))
        assert done.returncode == 0, done.stderr
        lab.ok("down")
