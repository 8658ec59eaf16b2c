"""`doctor`: looks for the usual faults of an instance and says the way out of each. Changes nothing.

Exit 0 when nothing is wrong, 1 when something is. The report holds no token and no value of any variable.
Source: spec 05 §3, spec 80 §4; 00 §25 (the cluster's own settings).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from kite_launcher.cli import leftovers, probe, status
from kite_launcher.cli.check import load
from kite_launcher.cli.commands import Line
from kite_launcher.cli.fail import NO, OK, Failure, say
from kite_launcher.cli.instance import Instance, judge_state_dir
from kite_launcher.cli.table import plain
from kite_launcher.core.spec import InstanceSpec

# A log file of the usual size and a database that grows need some room; below it a full disk is near.
DISK_BYTES_MIN: Final = 256 * 1024 * 1024
# Descriptors that the launcher holds for a module (two pipes, a pidfd, a token, a lock, a notify socket) and itself.
FDS_PER_MODULE: Final = 6
FDS_OWN: Final = 64
_SIGNS: Final = {"ok": "✓", "hint": "!", "bad": "✗"}


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, a `hint` that nothing depends on yet, or `bad`; and the way out."""

    name: str
    state: Literal["ok", "hint", "bad"]
    text: str
    hint: str = ""


def run(line: Line, instance: Instance) -> int:
    """Look at everything and show it; nothing that is found ends the looking."""
    findings = list(look(instance))
    if line.as_json:
        rows = [finding._asdict() for finding in findings]
        say(json.dumps({"schema": 1, "findings": rows}, ensure_ascii=False))
    else:
        for finding in findings:
            say(f"{_SIGNS[finding.state]} {finding.name}: {plain(finding.text)}")
            if finding.hint:
                say(f"    → {plain(finding.hint)}")
    return NO if any(finding.state == "bad" for finding in findings) else OK


def look(instance: Instance) -> Iterator[Finding]:
    """Yield all findings, the machine first, then the file, then what runs."""
    yield from _machine()
    spec, finding = _file(instance)
    yield finding
    exists = False
    try:
        exists = judge_state_dir(instance.state_dir)
        yield from _state_dir(instance.state_dir, exists=exists)
    except Failure as failure:
        yield Finding("state directory", "bad", failure.message, failure.hint)
        return
    now = status.gather(instance)
    yield from _running(instance, now)
    if spec is not None:
        yield from _limits(spec)
        yield from _port(spec, now)
        yield from _cluster(spec)


def _machine() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", version)
    lacks = [name for name in ("pidfd_open", "memfd_create") if not hasattr(os, name)]
    if not os.path.exists("/proc/self/stat"):
        yield Finding("kernel of the system", "bad", "no /proc", "mount it: mount -t proc proc /proc")
    elif lacks:
        yield Finding("kernel of the system", "bad", f"no {', '.join(lacks)}", "Linux 5.3 or newer is needed")
    else:
        yield Finding("kernel of the system", "ok", f"{os.uname().sysname} {os.uname().release}")
    yield _sqlite()


def _sqlite() -> Finding:
    try:
        import apsw
    except ImportError as error:
        return Finding("sqlite", "bad", f"apsw can't be imported: {error}", "install Kite anew into its environment")
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < (3, 51, 3):
        return Finding("sqlite", "bad", version, "3.51.3 or newer is needed (older ones can damage a WAL): update apsw")
    return Finding("sqlite", "ok", version)


def _file(instance: Instance) -> tuple[InstanceSpec | None, Finding]:
    try:
        spec = load(instance, check=True)
    except Failure as failure:
        text = "; ".join(failure.lines) or failure.message
        # What a check asks beyond the file's form (is the program there?) does not keep the rest from being looked at.
        try:
            return load(instance), Finding("kite.toml", "bad", text, "mend the lines; `kite check` shows them again")
        except Failure:
            return None, Finding("kite.toml", "bad", text, "mend the lines; `kite check` shows them again")
    return spec, Finding("kite.toml", "ok", f"{spec.path}, {len(spec.modules)} module(s)")


def _state_dir(path: str, *, exists: bool) -> Iterator[Finding]:
    if not exists:
        yield Finding("state directory", "ok", f"{path} is not there yet; the first start makes it")
        return
    if not os.access(path, os.W_OK | os.X_OK):
        yield Finding("state directory", "bad", f"{path} can't be written", "is the disk mounted read-only?")
        return
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    if free < DISK_BYTES_MIN:
        yield Finding(
            "state directory", "bad", f"{path}: {free >> 20} MiB free", "make room; logs are dropped when full"
        )
    elif not found.f_favail and found.f_files:
        yield Finding("state directory", "bad", f"{path}: no inode is free", "remove files on that disk")
    else:
        yield Finding("state directory", "ok", f"{path}, {free >> 20} MiB free")
    wide = [name for name in _secret_files(path) if os.stat(name, follow_symlinks=False).st_mode & 0o077]
    if wide:
        names = ", ".join(os.path.relpath(name, path) for name in wide)
        yield Finding("token files", "bad", f"open to other users: {names}", f"chmod 600 them in {path}")
    damaged = sorted(name for name in os.listdir(path) if ".damaged-" in name)
    if damaged:
        yield Finding(
            "state files", "hint", f"set aside as damaged: {', '.join(damaged)}", "remove them once looked at"
        )


def _secret_files(path: str) -> list[str]:
    folder = os.path.join(path, "tokens")
    try:
        names = [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        names = []
    names.append(os.path.join(path, "launch.json"))
    return [name for name in names if os.path.isfile(name)]


def _running(instance: Instance, now: dict[str, Any]) -> Iterator[Finding]:
    left = now.get("leftovers") or []
    if left:
        names = ", ".join(f"{row['name']} (pid {row['pid']})" for row in left)
        yield Finding("launcher", "bad", f"gone, but these still run: {names}", "`kite down` ends them")
        return
    if now.get("state") == "stopped":
        yield Finding("launcher", "hint", "nothing is running", "`kite up -d` starts the instance")
        return
    launcher = (now.get("launcher") or {}).get("pid")
    if not now.get("url"):
        process = leftovers.start_ticks(launcher) if isinstance(launcher, int) else None
        gone = "" if process is not None else " (its process can't be seen from here)"
        out = f"is it stopped (kill -CONT {launcher})? else end it, the watchdog starts another"
        yield Finding("launcher", "bad", f"pid {launcher} does not answer{gone}", out)
        return
    yield Finding("launcher", "ok", f"pid {launcher} answers")
    if now.get("why"):
        yield Finding("instance", "bad", str(now["why"]), "see `kite logs launcher`")
    yield from _kernel(instance, now)
    for row in now.get("modules") or ():
        if row.get("state") in ("failed", "backoff") or (row.get("state") == "stopping" and row.get("why")):
            text = f"{row.get('state')}" + (f": {row['why']}" if row.get("why") else "")
            out = f"`kite why {row.get('name')}` tells how it came to that"
            yield Finding(f"module {row.get('name')}", "bad", text, out)


def _kernel(instance: Instance, now: dict[str, Any]) -> Iterator[Finding]:
    url = str(now["url"])
    answer = probe.http_status(url, "/readyz")
    if answer == 200:
        yield Finding("kernel", "ok", f"{url} answers and is ready")
    elif answer is None:
        out = "`kite why kernel`; the launcher replaces one that hangs"
        yield Finding("kernel", "bad", f"{url} does not answer", out)
    else:
        yield Finding(
            "kernel", "bad", f"{url} answers {answer} to /readyz", "`kite logs kernel` says which store is ill"
        )


def _limits(spec: InstanceSpec) -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = sum(len(module.instances()) for module in spec.modules.values())
    need = FDS_OWN + FDS_PER_MODULE * count
    shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < need:
        yield Finding(
            "open files", "bad", f"hard limit {shown}, {count} modules need about {need}", f"ulimit -Hn {need}"
        )
    else:
        yield Finding("open files", "ok", f"soft {soft}, hard {shown}")


def _port(spec: InstanceSpec, now: dict[str, Any]) -> Iterator[Finding]:
    """Say whether the port is free while nothing runs; while it runs the kernel itself answered above."""
    if now.get("state") != "stopped" or spec.kernel.port == 0:
        return
    busy = probe.port_trouble(spec.kernel.host, spec.kernel.port)
    name = f"port {spec.kernel.port}"
    if busy is None:
        yield Finding(name, "ok", f"free on {spec.kernel.host}")
    else:
        yield Finding(name, "bad", busy, "end its holder, or choose another: [kernel] port = 0 takes any free one")


def _cluster(spec: InstanceSpec) -> Iterator[Finding]:
    url = spec.kernel_sections.get("cluster", {}).get("url")
    if not url:
        return
    for server, found in probe.nats(str(url)):
        name = f"cluster {server}"
        if isinstance(found, str):
            yield Finding(name, "bad", found, "is the NATS server running, and may this machine reach it?")
        elif not found.get("jetstream"):
            yield Finding(
                name, "bad", "JetStream is off", "start the server with JetStream (-js) and sync_interval: always"
            )
        else:
            yield Finding(name, "ok", f"NATS {plain(found.get('version'))} with JetStream")
