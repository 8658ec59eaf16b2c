"""Every engine behind the seam behaves like one plain dict with revisions: a state machine drives both at once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kite_kernel.store.memory import MemoryStore
from kite_kernel.store.port import Answer, Committed, Conflict, Fact
from kite_kernel.store.sqlite_file import SqliteFile, Step

BUCKETS = st.sampled_from(("owned", "replica"))
KEYS = st.sampled_from(("a", "ab", "a_", "%", "é", "e\u0301"))
VALUES = st.binary(max_size=40)
OFFSETS = st.sampled_from((0, 0, 0, -1, 1))


class Engines(RuleBasedStateMachine):
    """The model: (bucket, key) → (revision, value). What it says, both engines must say."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kite-model-"))
        self.model: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.highest = 0
        self.memory = MemoryStore()
        self._open()

    def _open(self) -> None:
        self.file = SqliteFile(self.folder / "facts.db", new_id="s", stamp="t", say=lambda _level, _text: None)
        self.file.open()
        assert self.file.fault is None

    def teardown(self) -> None:
        self.file.close()
        shutil.rmtree(self.folder)

    def _same(self, step: Step, wanted: Answer) -> None:
        (found,) = self.file.execute([step], now=0.0)

        async def ask() -> Answer:
            if step.kind == "create":
                return await self.memory.create(step.bucket, step.key, step.value)
            if step.kind == "update":
                return await self.memory.update(step.bucket, step.key, step.value, step.revision)
            return await self.memory.delete(step.bucket, step.key, step.revision)

        assert trio.run(ask) == found == wanted

    def _write(self, kind: str, bucket: str, key: str, value: bytes, expected: int | None) -> None:
        stands = self.model.get((bucket, key))
        revision = None if stands is None else stands[0]
        step = Step(kind, bucket, key, value, expected or 0)
        if revision != expected:
            self._same(step, Conflict(revision))
            return
        self.highest += 1
        self._same(step, Committed(self.highest))
        if kind == "delete":
            del self.model[bucket, key]
        else:
            self.model[bucket, key] = (self.highest, value)

    @rule(bucket=BUCKETS, key=KEYS, value=VALUES)
    def create(self, bucket: str, key: str, value: bytes) -> None:
        self._write("create", bucket, key, value, None)

    @rule(bucket=BUCKETS, key=KEYS, value=VALUES, offset=OFFSETS)
    def update(self, bucket: str, key: str, value: bytes, offset: int) -> None:
        self._write("update", bucket, key, value, self.model.get((bucket, key), (1, b""))[0] + offset)

    @rule(bucket=BUCKETS, key=KEYS, offset=OFFSETS)
    def delete(self, bucket: str, key: str, offset: int) -> None:
        self._write("delete", bucket, key, b"", self.model.get((bucket, key), (1, b""))[0] + offset)

    @rule()
    def reopen(self) -> None:
        self.file.close()
        self._open()

    @rule(bucket=BUCKETS, prefix=st.sampled_from(("", "a", "%", "_", "é")))
    def lists(self, bucket: str, prefix: str) -> None:
        wanted = tuple(
            Fact(bucket, key, value, revision)
            for (where, key), (revision, value) in sorted(self.model.items())
            if where == bucket and key.startswith(prefix)
        )
        (found,) = self.file.execute([Step("list", bucket, prefix)], now=0.0)

        async def ask() -> object:
            return await self.memory.list(bucket, prefix)

        assert found == trio.run(ask) == wanted

    @invariant()
    def reads_are_what_was_written(self) -> None:
        for (bucket, key), (revision, value) in self.model.items():
            (found,) = self.file.execute([Step("get", bucket, key)], now=0.0)
            assert found == Fact(bucket, key, value, revision)


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
