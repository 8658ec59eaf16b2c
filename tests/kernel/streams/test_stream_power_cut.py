"""The log of a durable stream keeps every acknowledged message, whatever the disk does to the rest."""

import random

import attrs
import pytest
from tests.support.power_cut import PowerCut, PowerCutFiles

from kite_kernel.store.stream_log import Entry, LogFailed, Retention, StreamLog
from kite_kernel.store.stream_open import open_log

FOLDER = "/state/streams/ticks"


@attrs.define
class World:
    """What the publishers know: what was acknowledged, and what may or may not stand."""

    rng: random.Random
    disk: PowerCutFiles
    retention: Retention
    epoch: str | None = None
    acked: dict[int, bytes] = attrs.field(factory=dict)
    maybe: dict[int, set[bytes]] = attrs.field(factory=dict)
    ids: dict[bytes, int] = attrs.field(factory=dict)
    counter: int = 0
    now_ms: int = 1_000_000

    def open(self) -> StreamLog:
        log = open_log(self.disk, FOLDER, fresh_epoch=f"e{self.rng.random()}", retention=self.retention)
        return log

    def group(self, log: StreamLog) -> list[Entry]:
        entries = []
        for at in range(self.rng.choice([1, 1, 2, 5, 20])):
            self.counter += 1
            data = b"%d:" % self.counter + b"x" * self.rng.choice([0, 3, 90, 700])
            message_id = b"id-%d" % self.counter if self.rng.random() < 0.3 else None
            entries.append(Entry(log.last_seq + 1 + at, data, message_id))
        return entries

    def publish(self, log: StreamLog) -> None:
        entries = self.group(log)
        self.now_ms += self.rng.choice([0, 1, 50])
        for entry in entries:
            self.maybe.setdefault(entry.seq, set()).add(entry.data)
        try:
            log.append(entries, now_ms=self.now_ms)
        except LogFailed as failed:
            if failed.outcome == "not_sent":
                for entry in entries:
                    self.maybe[entry.seq].discard(entry.data)
            return
        for entry in entries:
            self.acked[entry.seq] = entry.data
            self.maybe.pop(entry.seq, None)
            if entry.message_id:
                self.ids[entry.message_id] = entry.seq
        log.retain(now_ms=self.now_ms)

    def check(self, log: StreamLog) -> None:
        if self.epoch is not None and self.acked:
            assert log.epoch == self.epoch
        self.epoch = log.epoch
        newest = max(self.acked, default=0)
        assert log.last_seq >= newest
        for seq in range(newest + 1, log.last_seq + 1):  # not acknowledged, yet it stands: then from now on it does
            possible = self.maybe.pop(seq)
            self.acked[seq] = dict(self.read(log)).get(seq, b"let go by retention")
            assert self.acked[seq] in possible or seq < log.first_seq
        self.maybe.clear()
        found = self.read(log)
        assert [seq for seq, _ in found] == list(range(log.first_seq, log.last_seq + 1))
        for seq, data in found:
            assert data == self.acked[seq]
        for message_id, seq in self.ids.items():
            assert log.find(message_id) in ((seq,) if seq >= log.first_seq else (seq, None))

    def read(self, log: StreamLog) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        after = log.first_seq - 1
        while after < log.last_seq:
            piece = log.read(after, upto=log.last_seq, bytes_max=self.rng.choice([1, 500, 100_000]))
            assert piece
            found += piece
            after = piece[-1][0]
        return found


def live_through(seed: int) -> World:
    """One life of a log: three starts, each with publishes, a fault now and then, and a cut at a random call."""
    rng = random.Random(seed)
    retention = Retention(rng.choice([4096, 20_000, 10**9]), rng.choice([None, None, 7]), rng.choice([None, 200]))
    world = World(rng, PowerCutFiles(rng), retention)
    for _ in range(3):
        world.disk.cut_at = world.disk.calls + rng.randint(1, 60)
        try:
            log = world.open()
            world.check(log)
            while True:
                if rng.random() < 0.05:
                    world.disk.fail_syncs = 1
                world.disk.room_bytes = rng.randint(0, 3000) if rng.random() < 0.05 else None
                world.publish(log)
        except PowerCut:
            world.disk.power_cut()
    world.check(world.open())
    return world


@pytest.mark.parametrize("block", range(4))
def test_no_acknowledged_message_is_lost_in_any_power_cut(block: int) -> None:
    acked = 0
    for seed in range(block * 500, block * 500 + 500):
        try:
            acked += len(live_through(seed).acked)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert acked > 5000  # the lives were worth living
