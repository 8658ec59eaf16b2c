"""A real log keeper process for tests: started, asked, and never left behind."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from kite_launcher.core.keeper_orders import Exited, KeeperSettings, SpawnOrder
from kite_launcher.core.logline import StoredLine, parse_line
from kite_launcher.core.logquery import join_all
from kite_launcher.edge.keeper_link import KeeperLink
from kite_launcher.keeper.processes import become_subreaper

PATIENCE_S = 20.0


def order(name: str, *argv: str, **more: object) -> SpawnOrder:
    """Make an order with a small environment."""
    fields: dict[str, object] = {"cwd": "/", "env": {"PATH": os.environ["PATH"]}, **more}
    return SpawnOrder(name=name, argv=argv, **fields)  # type: ignore[arg-type]


def python(name: str, code: str, **more: object) -> SpawnOrder:
    """Make an order for a Python program."""
    return order(name, sys.executable, "-S", "-c", code, **more)


def stored(state_dir: Path, name: str) -> list[StoredLine]:
    """Read every record of a log, oldest first, as it stands in the files."""
    files = sorted((state_dir / "logs").glob(f"{name}.log.*"), key=lambda path: -int(path.suffix[1:]))
    raw = b"".join(path.read_bytes() for path in [*files, state_dir / "logs" / f"{name}.log"] if path.exists())
    lines = [parse_line(line) for line in raw.split(b"\n")[:-1]]
    assert None not in lines, "a torn line"
    return [line for line in lines if line is not None]


def texts(state_dir: Path, name: str) -> list[str]:
    """Read the lines of a log, joined, without the keeper's own words."""
    return [line.text for line in join_all(stored(state_dir, name)) if not line.own]


def collect(pid: int) -> int:
    """Collect a child that is dead or dies at once; give its wait status."""
    return os.waitpid(pid, 0)[1]


class KeeperBox:
    """A link and what it heard."""

    def __init__(self, nursery: trio.Nursery, state_dir: Path, settings: KeeperSettings) -> None:
        self.state_dir = state_dir
        self.settings = settings
        self.said: list[str] = []
        self.link: KeeperLink
        self._nursery = nursery

    async def start(self) -> None:
        """Start a (next) keeper."""
        self.link = await KeeperLink.start(self._nursery, self.state_dir, self.settings)
        self.link.on_said = self.said.append

    async def kill(self) -> None:
        """Kill the keeper the hard way and collect it."""
        os.kill(self.link.pid, 9)
        await self.link.gone.wait()
        collect(self.link.pid)

    async def ended(self, name: str) -> Exited:
        """Wait for the next end; it must be this one's."""
        with trio.fail_after(PATIENCE_S):
            exited = await self.link.exits.receive()
        assert exited.name == name
        return exited

    async def until(self, what: str, seen: object) -> None:
        """Wait until `seen()` is true."""
        with trio.move_on_after(PATIENCE_S):
            while not seen():  # type: ignore[operator]
                await trio.sleep(0.01)
            return
        raise AssertionError(f"never: {what}; {self.said}")


@asynccontextmanager
async def keeper_box(state_dir: Path, **settings: object) -> AsyncIterator[KeeperBox]:
    """Run a keeper over `state_dir`; at the end everything it started is killed and it is gone."""
    become_subreaper()
    async with trio.open_nursery() as nursery:
        box = KeeperBox(nursery, state_dir, KeeperSettings(**settings))  # type: ignore[arg-type]
        await box.start()
        try:
            yield box
        finally:
            with trio.CancelScope(shield=True):
                if not box.link.gone.is_set():
                    for record in await box.link.kept_records():
                        try:
                            os.killpg(record.pid, 9)
                        except ProcessLookupError:
                            continue
                await box.link.close()
            nursery.cancel_scope.cancel()
