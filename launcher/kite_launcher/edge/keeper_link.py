"""The launcher's hold on the log keeper: starts it, orders through it, hears of every end.

One task owns the socket's sending, one its receiving; both live in the nursery that the caller gives.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from kite_launcher.core.keeper_orders import (
    Exited,
    Forked,
    KeeperSettings,
    KeptRecord,
    LogState,
    Spawned,
    SpawnFailed,
    SpawnOrder,
)


class KeeperGone(Exception):
    """The keeper's process or its socket ended while something was asked of it; ask the next keeper."""


class KeeperLink:
    """One connection to one keeper process. Never reused: after `gone` is set make a new one."""

    pid: int
    start_ticks: int
    gone: trio.Event
    exits: "trio.MemoryReceiveChannel[Exited]"
    log_trouble: LogState

    @classmethod
    async def start(cls, nursery: trio.Nursery, state_dir: Path, settings: KeeperSettings) -> "KeeperLink":
        """Start a keeper process, child of this one, and connect to it. Raises: OSError, KeeperGone."""
        raise NotImplementedError

    @classmethod
    async def connect(cls, nursery: trio.Nursery, state_dir: Path, settings: KeeperSettings) -> "KeeperLink | None":
        """Connect to a keeper that a former launcher left; None when none answers within 2 s."""
        raise NotImplementedError

    async def spawn(
        self, order: SpawnOrder, on_forked: Callable[[Forked], Awaitable[None]] | None = None
    ) -> Spawned | SpawnFailed:
        """Start a program. `on_forked` runs while the process exists but waits before exec: write the record there.

        If `on_forked` raises or this is cancelled, the process ends without having run. Raises: KeeperGone.
        """
        raise NotImplementedError

    async def adopt(self, record: KeptRecord) -> bool:
        """Have the keeper read the output of a process that runs already. False when nothing of it is found."""
        raise NotImplementedError

    async def wait_log(self, name: str, run: int, regex: str) -> str:
        """Wait until a line of this run matches and return it. Cancel: safe. Raises: KeeperGone."""
        raise NotImplementedError

    async def tail(self, name: str, n: int = 10) -> list[str]:
        """Give the last lines of a module, at most 20, escaped for display."""
        raise NotImplementedError

    async def missed_exits(self) -> list[Exited]:
        """Give the ends that no launcher has heard of yet, and count them as heard."""
        raise NotImplementedError

    async def kept_records(self) -> list[KeptRecord]:
        """Give the processes as the keeper knows them."""
        raise NotImplementedError

    async def log_state(self) -> LogState:
        """Ask whether every line finds its place."""
        raise NotImplementedError

    async def configure(self, settings: KeeperSettings) -> None:
        """Give new settings (a reload)."""
        raise NotImplementedError

    async def open_log(self, name: str) -> int:
        """Give a descriptor whose bytes end in `logs/<name>.log`; set O_NONBLOCK on it and drop when it is full."""
        raise NotImplementedError

    async def close(self, *, quit_keeper: bool) -> None:
        """Let go of the keeper; with `quit_keeper` it ends as soon as no child and no open pipe is left."""
        raise NotImplementedError
