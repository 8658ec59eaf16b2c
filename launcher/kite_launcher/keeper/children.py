"""The children of this keeper: how they begin, what they say, how they end.

Order of an end: all that stands in the process's pipes is stored, the end is written down and told, then the
process is collected. So whoever hears of an end finds the last line in the log, and a keeper that is killed in
between leaves the zombie to the launcher, which collects the same status.

Source: spec 00 §27–§28a; cases S-11, S-25, S-88.
"""

import os
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from kite_launcher.core.keeper_orders import Exited, KeptRecord, LogState, SpawnFailed, SpawnOrder
from kite_launcher.keeper.books import ExitBook, RecordBook
from kite_launcher.keeper.journal import Journal
from kite_launcher.keeper.loop import Loop
from kite_launcher.keeper.pipes import LARGE_PIPES_MAX, Peeker, reopen
from kite_launcher.keeper.processes import open_identified, start_ticks
from kite_launcher.keeper.reader import Reader, RunTail, waiting_bytes
from kite_launcher.keeper.spawn import BaseLimits, Embryo, fork_child, read_report
from kite_launcher.keeper.store import LogStore, utc_stamp

SAVE_S: Final = 0.05  # changes of what runs are written down together
DRAIN_BYTES: Final = (
    2 * 1024 * 1024
)  # at an end: more than a pipe holds, so that a printing grandchild can't hold it up
REPORT_BYTES: Final = 4096


@attrs.define(eq=False)
class Child:
    """One run of one name. The launcher's own log is one without a process: its record has pid 0."""

    name: str
    run: int
    role: str
    tail: RunTail
    record: KeptRecord
    order: SpawnOrder | None = None
    embryo: Embryo | None = None
    readers: dict[str, Reader] = attrs.field(factory=dict[str, Reader])
    stdin: int = -1
    pidfd: int = -1  # of an adopted process, whose parent is somebody else
    alive: bool = False


class Children:
    """All children and streams. `told` is what the desk wants to hear; it must not raise."""

    def __init__(self, loop: Loop, store: LogStore, journal: Journal, exits: ExitBook, records: RecordBook) -> None:
        self.loop = loop
        self.store = store
        self.exits = exits
        self._records = records
        self._journal = journal
        self._peeker = Peeker()
        self._base = BaseLimits.take()
        self._runs: dict[str, int] = {}
        self._by_pid: dict[int, Child] = {}
        self.all: dict[tuple[str, int], Child] = {}
        self.latest: dict[str, Child] = {}
        self._save_armed = False
        self.on_begun: Callable[[Child, SpawnFailed | None], None] = lambda child, failed: None
        self.on_exited: Callable[[Exited], None] = lambda exited: None
        self.on_matched: Callable[[Child], None] = lambda child: None
        self.on_drained: Callable[[Child], None] = lambda child: None

    # -- beginning

    def spawn(self, order: SpawnOrder) -> Child | SpawnFailed:
        """Fork a child and leave it at its gate; its descriptors in `order.fds` are closed here."""
        order = attrs.evolve(order, run=self._next_run(order.name, order.run))
        try:
            tail = RunTail(order.ready_log)
            made = fork_child(order, self._base, large_pipes=self._stream_count() < LARGE_PIPES_MAX)
        finally:
            for fd in order.fds.values():
                os.close(fd)
        if isinstance(made, SpawnFailed):
            return made
        record = KeptRecord(
            name=order.name,
            role=order.role,
            run=order.run,
            pid=made.pid,
            start_ticks=start_ticks(made.pid) or 0,
            argv=order.argv,
            started_at=utc_stamp(),
            out=made.out.inode,
            err=made.err.inode,
            stop_signal=order.stop_signal,
            stop_timeout_s=order.stop_timeout_s,
        )
        child = Child(order.name, order.run, order.role, tail, record, order, made, stdin=made.stdin, alive=True)
        self._enter(child)
        self._by_pid[made.pid] = child
        self.loop.on_readable(made.report, lambda: self._hear_report(child))
        self._read(child, "out", made.out.read)
        self._read(child, "err", made.err.read)
        return child

    def _next_run(self, name: str, wanted: int) -> int:
        if wanted <= 0:
            known = self._runs.get(name)
            if known is None:
                known = next((line.run for line in self.store.get(name).last_lines() if not line.own), 0)
            wanted = known + 1
        self._runs[name] = max(wanted, self._runs.get(name, 0))
        return wanted

    def _enter(self, child: Child) -> None:
        self.all[child.name, child.run] = child
        former = self.latest.get(child.name)
        self.latest[child.name] = child
        if former is not None:
            self._forget_if_over(former)
        self.save_soon()

    def _hear_report(self, child: Child) -> None:
        """Learn whether exec took place: the report is empty and over, or holds the reason why not."""
        embryo = child.embryo
        if embryo is None or child.order is None:
            return
        try:
            raw = os.read(embryo.report, REPORT_BYTES)
        except BlockingIOError:
            return
        self.loop.remove(embryo.report)
        os.close(embryo.report)
        embryo.close_gate()
        child.embryo = None
        failed = read_report(raw, child.order)
        if failed is None and not embryo.let_go:
            failed = SpawnFailed(child.name, 0, "the process ended before its program began")
        if failed is not None:
            child.alive = False
        self.on_begun(child, failed)

    # -- streams

    def open_log(self, name: str, fd: int) -> Child:
        """Read a pipe that belongs to no child (the launcher's own log) into `logs/<name>.log`."""
        run = self._next_run(name, 0)
        record = KeptRecord(
            name=name,
            role="log",
            run=run,
            pid=0,
            start_ticks=0,
            argv=(),
            started_at=utc_stamp(),
            err=os.fstat(fd).st_ino,
        )
        child = Child(name, run, "log", RunTail(), record)
        self._enter(child)
        self._read(child, "err", fd)
        return child

    def search_log(self, child: Child) -> None:
        """Show a run's stored lines (as far as the last 64 KiB of its log reach) to those who wait for one."""
        stored = [line for line in self.store.get(child.name).last_lines() if line.run == child.run and not line.own]
        child.tail.look_at_stored([line.data for line in reversed(stored)])

    def _stream_count(self) -> int:
        return sum(len(child.readers) for child in self.all.values())

    def _read(self, child: Child, stream: str, fd: int) -> Reader:
        reader = Reader(fd, log=self.store.get(child.name), stream=stream, run=child.run, tail=child.tail)
        child.readers[stream] = reader
        self.loop.add_stream(fd, lambda: self._turn(child, reader))
        return reader

    def _turn(self, child: Child, reader: Reader, *, flush: bool = False) -> bool:
        if reader.fd < 0:
            return False
        done = reader.turn(self._peeker, self._journal, self.store, now=self.loop.now, flush=flush)
        if done.matched:
            self.on_matched(child)
        if done.closed:
            self._close_reader(child, reader)
            return False
        if reader.look_at is not None and not reader.look_armed:
            reader.look_armed = True
            self.loop.at(reader.look_at, lambda: self._look_again(reader))
        return done.again

    def _look_again(self, reader: Reader) -> None:
        reader.look_armed = False
        if reader.fd >= 0:
            self.loop.wake(reader.fd)

    def _close_reader(self, child: Child, reader: Reader) -> None:
        self.loop.remove(reader.fd)
        reader.close()
        child.readers = {stream: other for stream, other in child.readers.items() if other is not reader}
        if not child.readers:
            if not any(other.readers for other in self.all.values() if other.name == child.name):
                self.store.get(child.name).close()
            self.on_drained(child)
            self._forget_if_over(child)
            self.save_soon()

    def drain(self, child: Child) -> None:
        """Store what stands in the pipes now; an unfinished line, too."""
        for reader in list(child.readers.values()):
            left = min(DRAIN_BYTES, waiting_bytes(reader.fd) + 1)
            while left > 0 and reader.fd >= 0:
                before = self.store.bytes
                if not self._turn(child, reader, flush=True):
                    break
                left -= max(1, self.store.bytes - before)

    # -- ends

    def reap(self) -> None:
        """Collect every child that has ended, whoever's orphan it was."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = self._by_pid.pop(ended.si_pid, None)
            if child is not None:
                self._end(child, _wait_status(ended))
            os.waitpid(ended.si_pid, 0)

    def _end(self, child: Child, status: int | None) -> None:
        if child.embryo is not None:
            self._hear_report(child)
        ran = child.alive
        child.alive = False
        self.drain(child)
        if ran:
            exited = Exited(
                name=child.name,
                run=child.run,
                pid=child.record.pid,
                start_ticks=child.record.start_ticks,
                status=status,
                at=utc_stamp(),
                role=child.role,
                seq=self.exits.next_seq(),
            )
            self.exits.add(exited)
            self.on_exited(exited)
        if child.stdin >= 0:
            os.close(child.stdin)
            child.stdin = -1
        self._forget_if_over(child)
        self.save_soon()

    def _forget_if_over(self, child: Child) -> None:
        """Drop what is over, but the last run of each name: its last lines are asked for after its end."""
        if not child.alive and not child.readers and self.latest.get(child.name) is not child:
            self.all.pop((child.name, child.run), None)

    # -- a second life

    def adopt(self, record: KeptRecord, fds: dict[str, int], *, ended: bool = False) -> bool:
        """Go on with a process of a former keeper: `fds` are its pipes, or they are looked for in the process.

        Gives False when neither the process nor a pipe of it is there. When only pipes are left, its end is told
        (without a status, behind its last line), unless the launcher has heard of it (`ended`). Descriptors are
        ours from here on.
        """
        child = self.all.get((record.name, record.run))
        if child is None:
            child = Child(record.name, record.run, record.role, RunTail(), record)
        if not child.alive and record.pid and record.pid not in self._by_pid:
            self._watch_adopted(child, record)
        known = {reader.inode for reader in child.readers.values()}
        wanted = {"out": record.out, "err": record.err}
        if child.alive:
            missing = {inode: None for stream, inode in wanted.items() if stream not in fds and inode not in known}
            again = reopen(record.pid, missing)
            fds = {**{stream: again[inode] for stream, inode in wanted.items() if inode in again}, **fds}
        for stream, fd in fds.items():
            if os.fstat(fd).st_ino in known or stream in child.readers:
                os.close(fd)
                continue
            os.set_blocking(fd, False)
            self._read(child, stream, fd).resume()
            self.search_log(child)
        if not child.alive and not child.readers:
            return False
        self._runs[record.name] = max(record.run, self._runs.get(record.name, 0))
        if self.all.get((record.name, record.run)) is not child:
            self._enter(child)
            if not child.alive and record.pid and not ended:
                child.alive = True  # as far as anybody was told
                self._end(child, None)
        return True

    def _watch_adopted(self, child: Child, record: KeptRecord) -> None:
        pidfd = open_identified(record.pid, record.start_ticks)
        if pidfd is None:
            return
        child.alive = True
        child.pidfd = pidfd
        self.loop.on_readable(pidfd, lambda: self._adopted_ended(child))

    def _adopted_ended(self, child: Child) -> None:
        self.loop.remove(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = -1
        self._end(child, None)

    def living(self) -> Iterator[Child]:
        """Give the children that have not ended."""
        return (child for child in self.all.values() if child.alive)

    def is_over(self) -> bool:
        """Whether nothing runs and no pipe has a writer any more."""
        return not any(child.alive or child.readers for child in self.all.values())

    def log_state(self) -> LogState:
        """Tell whether every line finds its place."""
        store = self.store
        troubles = store.troubles()
        return LogState(
            ok=not any(trouble.failing for trouble in troubles),
            troubles=troubles,
            exits_lost=self.exits.lost,
            lines=store.lines,
            bytes=store.bytes,
        )

    def save_soon(self) -> None:
        """Write down what runs, a moment later."""
        if not self._save_armed:
            self._save_armed = True
            self.loop.at(self.loop.now + SAVE_S, self._save)

    def _save(self) -> None:
        self._save_armed = False
        self._records.save(child.record for child in self.all.values() if child.alive or child.readers)


def _wait_status(ended: os.waitid_result) -> int:
    """Make the raw wait status of what waitid tells."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status << 8
    return ended.si_status | (0x80 if ended.si_code == os.CLD_DUMPED else 0)
