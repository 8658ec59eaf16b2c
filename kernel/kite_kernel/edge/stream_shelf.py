"""Which streams there are: opened from disk, made on demand up to a bound, deleted, and made safe at the end.

Source: spec 40-streams, 05-surface §5 and §9 (Streams), cases F-29, F-30, X-21, X-41.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import structlog
import trio

from kite_kernel._contract import CLOSE_NORMAL, STREAM_RINGS_BYTES, STREAMS_MAX
from kite_kernel.core.stream import Stream, StreamConfig
from kite_kernel.core.stream_request import STREAM_DEFAULT
from kite_kernel.edge.stream_channel import Channel, VolatileChannel
from kite_kernel.edge.stream_durable import DurableChannel
from kite_kernel.store.files import reason_of
from kite_kernel.store.stream_log import Retention
from kite_kernel.store.stream_numbers import StreamNumbers
from kite_kernel.store.stream_open import open_log
from kite_kernel.store.stream_segment import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kite_kernel.edge.stream_wires import SubWire
    from kite_kernel.store.files import Files
    from kite_kernel.store.stream_log import StreamLog

_log = structlog.get_logger()

RING_TIGHT_BYTES: Final = 1_048_576
"""What each ring may hold while all of them together hold more than STREAM_RINGS_BYTES."""

IDLE_S: Final = 60.0
"""A stream that nobody uses for this long may make room for another."""

LOG_READERS: Final = 4
"""Worker threads that read logs back for subscribers who are far behind."""


class Shelf:
    """All streams of one kernel. Committers and log readers run in `nursery`, which must outlive every publisher."""

    def __init__(
        self,
        folder: str,
        configs: Mapping[str, StreamConfig],
        default: StreamConfig,
        *,
        files: Files,
        nursery: trio.Nursery,
        settle: Callable[[], None],
    ) -> None:
        """`folder` is `<state-dir>/streams`; `settle` is called when answers came from a worker thread."""
        self.channels: dict[str, Channel] = {}
        self.damaged: dict[str, str] = {}
        self.refused = 0
        self._folder = folder
        self._configs = dict(configs)
        self._default = default
        self._files = files
        self._nursery = nursery
        self._settle = settle
        self._readers = trio.CapacityLimiter(LOG_READERS)
        self._numbers: StreamNumbers | None = None
        self._wall_ms = int(time.time() * 1000) - int(trio.current_time() * 1000)

    def configs(self) -> list[StreamConfig]:
        """Return every setting that may hold for a stream."""
        return [*self._configs.values(), self._default]

    # ---- beginning and end

    async def open(self) -> None:
        """Open what stands on disk. A stream that can't be opened is `damaged`; the others go on.

        The unnamed stream always stands: `/stats` is asked before anybody has come.
        """
        self._numbers = await trio.to_thread.run_sync(self._open_numbers)
        for name, config in self._configs.items():
            if config.durable:
                await self._open_durable(name, config)
            else:
                self._make_volatile(name, config, is_configured=True)
        if STREAM_DEFAULT not in self._configs:
            self._make_volatile(STREAM_DEFAULT, self._default, is_configured=True)

    def _open_numbers(self) -> StreamNumbers:
        try:
            self._files.make_dir(self._folder)
            self._files.sync_dir(self._folder.rpartition("/")[0])
        except OSError as error:
            _log.error("[kernel] no folder for streams", key="stream_numbers", why=error.strerror)
        numbers = StreamNumbers(self._files, f"{self._folder}/numbers.json")
        if numbers.was_broken:
            _log.warning("[kernel] numbers of volatile streams unreadable: new epochs", key="stream_numbers")
        return numbers

    async def _open_durable(self, name: str, config: StreamConfig) -> None:
        age_ms = None if config.keep_age_s is None else int(config.keep_age_s * 1000)
        retention = Retention(config.keep_bytes, config.keep_messages, age_ms)
        try:
            log = await trio.to_thread.run_sync(self._open_log, name, retention)
        except (LogDamaged, OSError) as error:
            self.damaged[name] = reason_of(error) if isinstance(error, OSError) else "damaged"
            _log.error(
                "[kernel] stream can't be opened; nothing was changed. stream.delete moves it aside and begins anew",
                key="store_damaged",
                stream=name,
                why=str(error),
            )
            return
        if log.recovery.cut_bytes:
            _log.warning(
                "[kernel] torn tail of a stream's log truncated: no fsync had covered it",
                key="torn_tail",
                stream=name,
                torn_bytes=log.recovery.cut_bytes,
                next_seq=log.recovery.cut_at_seq,
            )
        stream: Stream[SubWire] = Stream(name, config, epoch=log.epoch, seq=log.last_seq, first=log.first_seq)
        channel = DurableChannel(
            stream, self._nursery, log=log, now_ms=self._now_ms, settle=self._settle, readers=self._readers
        )
        self.channels[name] = channel
        self._nursery.start_soon(channel.run)

    def _open_log(self, name: str, retention: Retention) -> StreamLog:
        return open_log(self._files, f"{self._folder}/{name}", fresh_epoch=secrets.token_hex(6), retention=retention)

    def _make_volatile(self, name: str, config: StreamConfig, *, is_configured: bool) -> Channel:
        numbers = self._known_numbers()
        epoch, seq = numbers.begin(name, secrets.token_hex(6))
        stream: Stream[SubWire] = Stream(name, config, epoch=epoch, seq=seq)
        channel = VolatileChannel(stream, self._nursery, is_configured=is_configured, numbers=numbers)
        self.channels[name] = channel
        return channel

    def _known_numbers(self) -> StreamNumbers:
        if self._numbers is None:
            raise RuntimeError("the shelf was not opened")
        return self._numbers

    def _now_ms(self) -> int:
        """Wall clock that doesn't jump while this kernel runs: retention by age must not follow a set clock."""
        return self._wall_ms + int(trio.current_time() * 1000)

    async def finish(self) -> None:
        """Make everything safe, and write the exact numbers. Cancel: what isn't safe yet was never acknowledged."""
        for channel in self.channels.values():
            await channel.finish()
        if self._numbers is not None:
            exact = {name: channel.stream.seq for name, channel in self.channels.items() if not channel.reads_log}
            try:
                await trio.to_thread.run_sync(self._numbers.close, exact)
            except OSError as error:
                _log.warning("[kernel] numbers of volatile streams not written", key="stream_numbers", why=str(error))

    # ---- which stream

    def find(self, name: str) -> Channel | None:
        """Return a stream that stands."""
        return self.channels.get(name)

    def find_or_make(self, name: str) -> Channel | None:
        """Return a stream, made when it doesn't stand; None when there is no room for another."""
        channel = self.channels.get(name)
        if channel is None:
            if len(self.channels) >= STREAMS_MAX and not self._make_room():
                self.refused += 1
                return None
            channel = self._make_volatile(name, self._default, is_configured=False)
        channel.used_at = trio.current_time()
        return channel

    def _make_room(self) -> bool:
        now = trio.current_time()
        unused = [
            channel
            for channel in self.channels.values()
            if not channel.is_configured and channel.is_unused and now - channel.used_at >= IDLE_S
        ]
        if not unused:
            return False
        oldest = min(unused, key=lambda channel: channel.used_at)
        self._known_numbers().put_away(oldest.stream.name, oldest.stream.seq)
        del self.channels[oldest.stream.name]
        return True

    async def delete(self, name: str) -> bool:
        """Close a stream's wires and forget it, its files too; a configured one begins anew. False: there is none.

        A damaged one is moved aside under a dated name, for a person to look at. Errors: OSError.
        """
        channel = self.channels.pop(name, None)
        was_damaged = self.damaged.pop(name, None) is not None
        if channel is None and not was_damaged:
            return False
        if channel is not None:
            channel.close_all(CLOSE_NORMAL, "deleted")
            await channel.finish()
        config = self._configs.get(name)
        if config is not None and config.durable:
            await trio.to_thread.run_sync(self._move_aside, name, was_damaged)
            await self._open_durable(name, config)
            return True
        self._known_numbers().forget(name)
        if config is not None or name == STREAM_DEFAULT:
            self._make_volatile(name, config or self._default, is_configured=True)
        return True

    def _move_aside(self, name: str, was_damaged: bool) -> None:
        """Move a log's folder out of the way; capitals name no stream. What was deleted on purpose goes for good."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = f"{self._folder}/{'DAMAGED' if was_damaged else 'DELETED'}-{name}-{stamp}-{secrets.token_hex(2)}"
        self._files.rename(f"{self._folder}/{name}", target)
        self._files.sync_dir(self._folder)
        if not was_damaged:
            self._files.remove_tree(target)

    # ---- what goes on

    def count(self, elapsed_s: float) -> None:
        """Work out rates; hold all rings together within their bound."""
        held = sum(channel.stream.frames.bytes for channel in self.channels.values())
        for channel in self.channels.values():
            channel.count(elapsed_s)
            channel.ring_bytes_max = RING_TIGHT_BYTES if held > STREAM_RINGS_BYTES else None
            if held > STREAM_RINGS_BYTES:
                channel.flush()

    def trouble(self) -> str | None:
        """Return what is wrong with a store, for /readyz."""
        for name, what in self.damaged.items():
            return f"stream {name}: store {what}"
        return next((word for channel in self.channels.values() if (word := channel.trouble()) is not None), None)
