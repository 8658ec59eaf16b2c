"""The keeper's last duty: an instance that everybody left leaves nothing running.

Source: spec 00 §28a, §29; case S-71.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kite_launcher.core.abandon import Abandonment, ends_at, note
from kite_launcher.core.keeper_orders import KeeperSettings
from kite_launcher.keeper.children import Child, Children
from kite_launcher.keeper.processes import descendants, is_flocked, marked, open_identified, start_ticks

LOOK_S: Final = 0.25
CARETAKERS: Final = frozenset({"kernel", "watchdog"})
KILL_ROUNDS: Final = 20  # a fork bomb is faster than one look at /proc


class Housekeeping:
    """Looks around while no launcher is connected, and ends what is left when it is time."""

    def __init__(
        self, children: Children, lock_path: Path, connected: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._lock_path = lock_path
        self._children = children
        self._connected = connected
        self._say = say
        self._state = Abandonment()
        self._ending = False
        self._kill_at: dict[tuple[str, int], float] = {}
        self.settings = KeeperSettings()

    def nothing_left(self) -> bool:
        """Whether no process of this instance is left that a later look might have to end."""
        return not self._strays()

    def _strays(self) -> list[int]:
        """Find what is left of this instance: by its mark, and whoever fell to us as our orphan."""
        marks = [pid for pid in marked(self.settings.mark) if start_ticks(pid) is not None]
        return sorted({*marks, *descendants()})

    def look(self) -> None:
        """Take in what is so now; call every `LOOK_S` while nobody is connected."""
        now = self._children.loop.now
        living = list(self._children.living())
        caretakers = sum(1 for child in living if child.role in CARETAKERS)
        if not self._connected() and is_flocked(self._lock_path):
            caretakers += 1  # a launcher that has not come to us yet
        self._state = note(self._state, connected=self._connected(), caretakers=caretakers, now=now)
        due = ends_at(self._state, abandoned_s=self.settings.abandoned_s)
        if due is None or now < due:
            self._ending = False
            self._kill_at.clear()
            return
        if not self._ending:
            self._ending = True
            if living:
                names = ", ".join(sorted(child.name for child in living))
                self._say(f"launcher, kernel and watchdog are gone and nobody came back: ending {names}")
        for child in living:
            self._end(child, now)
        if not living:
            self._end_strays()

    def _end(self, child: Child, now: float) -> None:
        """TERM first, KILL to the group at its deadline."""
        key = (child.name, child.run)
        if key not in self._kill_at:
            self._kill_at[key] = now + child.record.stop_timeout_s
            _signal_group(child, child.record.stop_signal)
        elif now >= self._kill_at.get(key, now + 1):
            _signal_group(child, signal.SIGKILL)

    def _end_strays(self) -> None:
        """KILL what belongs to no child any more (double forks, other sessions)."""
        for _ in range(KILL_ROUNDS):
            pids = self._strays()
            if not pids:
                return
            for pid in pids:
                ticks = start_ticks(pid)
                pidfd = open_identified(pid, ticks) if ticks is not None else None
                if pidfd is None:
                    continue
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)


def _signal_group(child: Child, number: int) -> None:
    """Signal the group of a child that is certainly itself: not collected yet, or identified once more."""
    pid = child.record.pid
    if child.pidfd >= 0 and start_ticks(pid) != child.record.start_ticks:
        return
    with contextlib.suppress(OSError):
        os.killpg(pid, number)
    if child.pidfd >= 0:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(child.pidfd, number)
