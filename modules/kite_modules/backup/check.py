"""Proving a snapshot by restoring it into a scratch folder and opening everything there, with a kernel, too.

Source: spec 80 §3 (verified by restoring).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import apsw

from kite_modules.backup.copying import copy_bytes, count_rows, digest
from kite_modules.backup.snapshot import FILES, BackupError, Snapshot

KERNEL_S: Final = 30.0  # a kernel that opens a large store checks it first
_SETTINGS: Final = ("KITE_", "LISTEN_", "NOTIFY_", "WATCHDOG_")


def faults(snapshot: Snapshot) -> list[str]:
    """Return what is wrong with the snapshot's files: missing, changed, added; [] when they are as they were made."""
    root = snapshot.folder / FILES
    known = {str(row["path"]): row for row in snapshot.files}
    found = []
    for path, row in known.items():
        try:
            sha256, size = digest(root / path)
        except OSError:
            found.append(f"{path} is missing")
            continue
        if (sha256, size) != (row["sha256"], row["bytes"]):
            found.append(f"{path} was changed")
    there = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    return found + [f"{path} does not belong to it" for path in sorted(there - known.keys())]


def put_into(snapshot: Snapshot, target: Path) -> None:
    """Copy the snapshot's files into a folder. Raises: OSError."""
    for row in snapshot.files:
        copy_bytes(snapshot.folder / FILES / str(row["path"]), target / str(row["path"]))


def prove(snapshot: Snapshot, *, now: str) -> list[str]:
    """Restore into a scratch folder and open it; [] and a mark beside the snapshot when all is as it should be.

    Returns: what is wrong, in words. Raises: BackupError when the proof itself could not be made (a full disk).
    """
    found = faults(snapshot)
    mark = snapshot.folder / "verified"
    if not found:
        scratch = Path(tempfile.mkdtemp(prefix=".proof-", dir=snapshot.folder.parent))
        try:
            put_into(snapshot, scratch)
            found = [*_open_databases(snapshot, scratch), *_open_trail(scratch)]
            found += [] if found else _open_by_kernel(snapshot, scratch)
        except OSError as error:
            raise BackupError(f"{error.filename or scratch}: {(error.strerror or '').lower()}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if found:
        mark.unlink(missing_ok=True)
    else:
        mark.touch(mode=0o600)
        mark.write_text(now, "utf-8")
    return found


def _open_databases(snapshot: Snapshot, scratch: Path) -> list[str]:
    found = []
    for row in snapshot.files:
        if "rows" not in row:
            continue
        try:
            counts = count_rows(scratch / str(row["path"]))
        except (ValueError, apsw.Error) as error:
            found.append(f"{row['path']} can't be opened: {error}")
            continue
        if counts != row["rows"]:
            found.append(f"{row['path']} holds other rows than it had: {counts} instead of {row['rows']}")
    return found


def _open_trail(scratch: Path) -> list[str]:
    """Every line of a kept file of lines is JSON; whether the audit trail's chain holds is `kite audit verify`'s."""
    found = []
    for path in scratch.glob("modules/*/*.jsonl"):
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    found.append(f"{path.relative_to(scratch)}: line {number} is not whole")
    return found


def _open_by_kernel(snapshot: Snapshot, scratch: Path) -> list[str]:
    """Let a kernel open facts and streams; it says by /readyz whether it took them."""
    if not any(str(row["path"]).startswith(("facts.db", "streams/")) for row in snapshot.files):
        return []
    reading, writing = os.pipe()
    os.chmod(scratch, 0o700)
    env = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    command = [sys.executable, "-P", "-m", "kite_kernel.main", "--standalone", "--port", "0"]
    command += ["--state-dir", str(scratch), "--ready-fd", str(writing)]
    with (scratch / ".kernel.log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=scratch
        )
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], KERNEL_S)
        line = os.read(reading, 4096) if ready else b""
        if not line:
            return ["a kernel did not come up on it"]
        port = json.loads(line)["port"]
        return _judge_readiness(f"http://127.0.0.1:{port}/readyz")
    except ValueError:
        return ["a kernel did not come up on it"]
    finally:
        os.close(reading)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KERNEL_S)
        process.kill()
        process.wait()


def _judge_readiness(url: str) -> list[str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    due = time.monotonic() + KERNEL_S
    while True:
        try:
            with opener.open(url, timeout=KERNEL_S):
                return []
        except urllib.error.HTTPError as error:
            words = error.read(500).decode("utf-8", "replace").strip()
            if "facts" in words or "stream" in words or time.monotonic() > due:
                return [f"a kernel opened it and says: {words}"]
        except OSError as error:
            if time.monotonic() > due:
                return [f"a kernel on it does not answer: {error}"]
        time.sleep(0.05)
