"""Carries out what `core.remedy` decides about the instance: follows a normal exit, starts a fresh one, reminds a
launcher that lives.

Order of a start: who holds the lock, the record of the command, the budget, the entry in `restarts.json`, and only then
the deed. Nobody is signalled, whatever the records say. Source: spec 60-watchdog §2.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

import trio

from kite_watchdog.core.budget import RECORD_BYTES_MAX as BUDGET_BYTES_MAX
from kite_watchdog.core.budget import Damaged, Spent, Start, decide_start, decode_record, encode_record
from kite_watchdog.core.frames import plain
from kite_watchdog.core.options import Options
from kite_watchdog.core.record import RECORD_BYTES_MAX, Launch, Unusable, decode_launch, environment
from kite_watchdog.edge import processes
from kite_watchdog.edge.files import Unread, read_own, set_aside, write_atomic
from kite_watchdog.edge.log import Log

LAUNCH: Final = "launch.json"
RESTARTS: Final = "restarts.json"
LOCK: Final = "instance.lock"
EXIT_RUNNING: Final = 75  # somebody else was faster
LOOK_S: Final = 0.2  # seconds between two looks at the lock while something is waited for
START_S: Final = 180.0  # seconds that one start may take: `up -d` itself gives up after 60
WRITE_TRIES: Final = 5  # a record that can't be written; with the back-off some 30 s
WORDS_BYTES_MAX: Final = 2_000  # bytes of a failed start's last words


class Outcome(Enum):
    """How an attempt to bring the instance back ended."""

    STARTED = "started"  # a fresh launcher holds the lock
    OTHERS = "others"  # somebody else's launcher holds it: leave quietly
    LIVES = "lives"  # the recorded launcher still lives and holds it: nothing to do here
    GAVE_UP = "gave_up"


class Instance:
    """The instance's files, its launcher's process, and the start of a fresh one.

    `tell` publishes an event if it still can; `busy` says that a start is under way.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        options: Options,
        log: Log,
        tell: Callable[[str, dict[str, Any]], object],
        environ: dict[str, str] | None = None,
    ) -> None:
        self._dir, self._log, self._tell = state_dir, log, tell
        self.options = options
        self._environ = dict(os.environ) if environ is None else environ
        self.starts = 0  # made by this process
        self.gave_up: str | None = None

    def launch(self) -> Launch | Unusable:
        """Read the record of how this instance is started."""
        raw = read_own(self._dir / LAUNCH, bytes_max=RECORD_BYTES_MAX)
        return Unusable(raw.why) if isinstance(raw, Unread) else decode_launch(raw)

    def launcher_alive(self) -> bool:
        """Say whether the recorded launcher lives, or any other holds the lock."""
        launch = self.launch()
        if isinstance(launch, Launch) and processes.alive(launch.launcher):
            return True
        return self.lock_holder() is not None

    def lock_holder(self) -> int | None:
        """Give the pid that holds the instance's lock; 0 = not visible from here; None = free."""
        return processes.lock_holder(self._dir / LOCK)

    async def start_fresh(self, cause: str) -> Outcome:
        """Start a fresh instance, within the budget. Cancel: safe between the steps; a started launcher goes on."""
        write_failures = 0
        while True:
            if (held := self._held()) is not None:
                return held
            launch = self.launch()
            if isinstance(launch, Unusable):
                return self._give_up(f"no usable record of the command: {launch.why}", cause)
            starts = self._starts()
            verdict = decide_start(
                starts,
                restarts=self.options.restarts,
                within_s=self.options.within_s,
                scale=self.options.scale,
                boottime=_boottime(),
                utc=datetime.now(UTC),
            )
            if isinstance(verdict, Spent):
                return self._give_up(verdict.why, cause)
            if verdict.delay_s > 0:
                self._log.warning(
                    "waits before the next start", seconds=round(verdict.delay_s, 3), number=verdict.number
                )
                if (held := await self._wait_unless_held(verdict.delay_s)) is not None:
                    return held
            problem = await self._record(starts, cause)
            if problem is not None:
                write_failures += 1
                self._log.error("a start can't be recorded, so it is not done", why=problem)
                if write_failures >= WRITE_TRIES:
                    return self._give_up(f"a start can't be recorded: {problem}", cause)
                if (held := await self._wait_unless_held(2.0**write_failures * self.options.scale)) is not None:
                    return held
                continue
            data = {"what": "instance", "reason": cause, "number": verdict.number, "of": verdict.of}
            self._log.warning("starts a fresh instance", reason=cause, number=verdict.number, of=verdict.of)
            self._tell("watchdog.restart", data)
            self.starts += 1
            outcome = await self._run(launch)
            if outcome is not None:
                return outcome

    def _held(self) -> Outcome | None:
        holder = self.lock_holder()
        if holder is None:
            return None
        launch = self.launch()
        if isinstance(launch, Launch) and launch.launcher.pid == holder and processes.alive(launch.launcher):
            self._log.error("the launcher lives and holds the lock, but its wire is lost", launcher=holder)
            return Outcome.LIVES
        self._log.info("another launcher holds the lock", launcher=holder)
        return Outcome.OTHERS

    async def _wait_unless_held(self, seconds: float) -> Outcome | None:
        end = trio.current_time() + seconds
        while (left := end - trio.current_time()) > 0:
            await trio.sleep(min(LOOK_S, left))
            if (held := self._held()) is not None:
                return held
        return None

    def _starts(self) -> tuple[Start, ...]:
        path = self._dir / RESTARTS
        raw = read_own(path, bytes_max=BUDGET_BYTES_MAX)
        if isinstance(raw, Unread):
            if raw.missing:
                return ()
            record: tuple[Start, ...] | Damaged = Damaged(raw.why)
        else:
            record = decode_record(raw, boot_id=processes.boot_id())
        if isinstance(record, Damaged):
            kept = set_aside(path)
            self._log.error("the record of starts is damaged; it is set aside", why=record.why, kept_as=kept)
            self._tell("watchdog.record_damaged", {"file": RESTARTS, "why": record.why, "kept_as": kept})
            return ()
        return record

    async def _record(self, starts: tuple[Start, ...], cause: str) -> str | None:
        start = Start(datetime.now(UTC).isoformat(timespec="milliseconds"), cause, _boottime())
        data = encode_record((*starts, start), boot_id=processes.boot_id())
        with trio.move_on_after(10.0):
            return await trio.to_thread.run_sync(write_atomic, self._dir / RESTARTS, data, abandon_on_cancel=True)
        return f"{self._dir / RESTARTS}: the disk did not answer within 10 s"

    async def _run(self, launch: Launch) -> Outcome | None:
        """Run the recorded command detached. None = it failed and may be tried again."""
        words = os.memfd_create("start", os.MFD_CLOEXEC)
        try:
            process = await trio.lowlevel.open_process(
                list(launch.argv),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd=launch.cwd,
                env=environment(launch.env_names, self._environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(words)
            self._log.error("the recorded command can't be run", command=launch.argv[0], why=str(error))
            return None
        try:
            with trio.move_on_after(START_S):
                code = await process.wait()
                return self._after_exit(code, words)
            self._log.error("the start takes too long; left to itself", seconds=START_S)
            return Outcome.STARTED if self.lock_holder() is not None else None
        finally:
            os.close(words)

    def _after_exit(self, code: int, words: int) -> Outcome | None:
        if code == EXIT_RUNNING:
            self._log.info("another start was faster")
            return Outcome.OTHERS
        if code == 0 or self.lock_holder() is not None:
            self._log.info("the fresh instance stands", exit=code)
            return Outcome.STARTED
        size = os.fstat(words).st_size
        tail = os.pread(words, WORDS_BYTES_MAX, max(0, size - WORDS_BYTES_MAX)).decode("utf-8", "replace")
        self._log.error("the start failed", exit=code, said=plain(tail.strip(), WORDS_BYTES_MAX))
        return None

    def _give_up(self, why: str, cause: str) -> Outcome:
        self.gave_up = why
        self._log.error("gave up: no fresh instance will be started; `kite up` by hand works", why=why, cause=cause)
        self._tell("watchdog.gave_up", {"what": "instance", "why": why, "cause": cause})
        return Outcome.GAVE_UP


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
