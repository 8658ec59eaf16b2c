"""Start of the log keeper: `python -P -m kite_launcher.keeper --state-dir DIR [--socket-fd N]`."""

import argparse
import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kite_launcher.core.keeper_orders import KeeperSettings
from kite_launcher.core.logline import format_record
from kite_launcher.core.logrotate import Policy
from kite_launcher.keeper.books import ExitBook, RecordBook
from kite_launcher.keeper.children import Children
from kite_launcher.keeper.desk import Desk
from kite_launcher.keeper.housekeeping import LOOK_S, Housekeeping
from kite_launcher.keeper.journal import Journal
from kite_launcher.keeper.loop import IDLE_S, Loop
from kite_launcher.keeper.lost import LostBook
from kite_launcher.keeper.processes import become_subreaper
from kite_launcher.keeper.statedir import StateDir
from kite_launcher.keeper.store import LogStore, utc_stamp

OWN_NAME: Final = "logkeeper"
EXIT_RUNNING: Final = 75
EXIT_BUG: Final = 70


class Keeper:
    """The composition: everything joined once, and the rule when to go."""

    def __init__(self, state_dir: StateDir) -> None:
        self.loop = Loop()
        self._saying = False
        self._say_on: Callable[[str], None] = lambda text: None  # nobody listens yet
        self._state_dir = state_dir
        settings = KeeperSettings()
        self.store = LogStore(
            state_dir.way / "logs",
            _policy(settings),
            self.say,
            state_dir.path / "logs",
            LostBook(state_dir.way / "keeper.lost"),
        )
        self._own = self.store.get(OWN_NAME)
        journal = Journal(state_dir.way / "keeper.journal")
        self._make_whole(journal)
        records = RecordBook(state_dir.way / "keeper.json")
        self.children = Children(self.loop, self.store, journal, ExitBook(state_dir.way / "exits.jsonl"), records)
        self.desk = Desk(state_dir, self.children, self._settle, self._leave)
        self.desk.on_left = lambda: self._tick_in(LOOK_S)
        self._say_on = self.desk.say
        self.housekeeping = Housekeeping(
            self.children, state_dir.way / "instance.lock", lambda: self.desk.connected, self.say
        )
        for record in records.load():
            self.children.adopt(record, {})
        self._listening_said = False
        self._ticks = 0

    def _make_whole(self, journal: Journal) -> None:
        """Finish what a killed keeper left half done: cut back what it wrote but did not take."""
        left = journal.unfinished()
        if left is not None and not left.taken:
            self.store.get(left.log_name).cut_to(left.size_before, left.log_inode)
        journal.fulfil()

    def _settle(self, settings: KeeperSettings) -> None:
        self.store.set_policy(_policy(settings))
        self.housekeeping.settings = settings
        self._state_dir.mark = settings.mark

    def _leave(self) -> None:
        """Go, as the launcher asked: what stands in the pipes is kept first."""
        for child in list(self.children.all.values()):
            self.children.drain(child)
        self.loop.ended = True

    def say(self, text: str) -> None:
        """Write a line into the keeper's own log and tell the launcher, with what became of the logs."""
        line = format_record(f"kite: {text}".encode(), "k", time=utc_stamp(), stream="err", run=0)
        now = self.loop.now
        if not self._saying:  # what our own log has to say of itself is not written into it
            self._saying = True
            if self._own.ready(now=now) and self._own.make_room(len(line), now=now):
                self._own.append(line, lines=1, raw_bytes=len(line), now=now)
            else:
                self._own.count_lost(1, len(line))
            self._saying = False
        self._say_on(text)
        self.loop.at(now, self._tell_state)

    def _tell_state(self) -> None:
        self.desk.tell_state()

    def tick(self) -> None:
        """Look after what nobody tells: the socket, who is there, whether there is anything left to do."""
        try:
            self._state_dir.follow()
            self.desk.listen()
            self._listening_said = False
        except OSError as problem:
            if not self._listening_said:
                self._listening_said = True
                self.say(f"no socket in the state directory, tried again: {problem.strerror}")
        self.store.retry(now=self.loop.now)
        self.store.hold_total()
        self.desk.tell_state()
        self.housekeeping.look()
        if not self.desk.connected and self.children.is_over() and self.housekeeping.nothing_left():
            self.loop.ended = True
        calm = self.desk.connected and not self.store.troubles()
        self._tick_in(IDLE_S if calm else LOOK_S)

    def _tick_in(self, seconds: float) -> None:
        """Look again then, and not at the time that was planned before."""
        self._ticks += 1
        number = self._ticks
        self.loop.at(self.loop.now + seconds, lambda: self.tick() if number == self._ticks else None)

    def close(self) -> None:
        """Leave in order."""
        self.desk.close()
        self.store.close()


def _policy(settings: KeeperSettings) -> Policy:
    return Policy(settings.max_bytes, settings.files, settings.max_age_s, settings.total_bytes)


def _listen_to_signals(keeper: Keeper) -> None:
    """SIGCHLD collects. The others are not for us: we end after the last writer, whoever asks earlier."""
    wake_read, wake_write = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: None)
    keep = (wake_read, wake_write)

    def woken() -> None:
        with contextlib.suppress(BlockingIOError):
            keep[0].recv(4096)
        keeper.children.reap()

    keeper.loop.on_readable(wake_read.fileno(), woken)


def _lock(state_dir: StateDir) -> bool:
    """Be the only keeper of this state directory; where the lock file can't be made there is no second one either."""
    try:
        fd = os.open(state_dir.way / "keeper.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return False
    return True


def _stand_alone(socket_fd: int) -> None:
    """Belong to no terminal and hold no descriptor of whoever started us but the one meant for us."""
    with contextlib.suppress(OSError):  # a group leader already: started by hand
        os.setsid()
    keep = max(socket_fd, 2)
    if keep > 3:  # an empty range is taken as an endless one
        os.closerange(3, keep)
    os.closerange(keep + 1, 1 << 30)


def main() -> int:
    """Run until the last writer is gone. Exit: 0 as asked, 75 when another keeper runs, 70 for a bug of ours."""
    parser = argparse.ArgumentParser(prog="kite_launcher.keeper")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--socket-fd", type=int, default=-1)
    options = parser.parse_args()
    os.umask(0o077)
    _stand_alone(options.socket_fd)
    state_dir = StateDir(options.state_dir.absolute())
    if not _lock(state_dir):
        return EXIT_RUNNING
    become_subreaper()
    os.chdir("/")
    keeper = Keeper(state_dir)
    try:
        _listen_to_signals(keeper)
        if options.socket_fd >= 0:
            os.set_inheritable(options.socket_fd, False)
            keeper.desk.serve(socket.socket(fileno=options.socket_fd))
        keeper.tick()
        gc.freeze()  # what stands now stays: children share these pages until exec
        keeper.loop.run()
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-3:]
        trail = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(where))
        keeper.say(f"a bug of the log keeper, it ends: {type(problem).__name__}: {problem} ({trail})")
        return EXIT_BUG
    finally:
        keeper.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
