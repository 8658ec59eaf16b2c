"""The small rooms: replay, keys, pending, batch, near names, quality. Each law once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pure_hub import PureHub

from kite_kernel.core.batch import Batch
from kite_kernel.core.near import nearest
from kite_kernel.core.once import Once
from kite_kernel.core.quality import Comings, Prediction, Pulse, assess, jitter, predict, quantile
from kite_kernel.core.replay import Replay
from kite_kernel.core.settings import Timing
from kite_kernel.core.websocket import text_frame

# --- replay ---


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=5), max_size=20),
    st.integers(1, 30),
    st.lists(st.integers(0, 100), max_size=5),
)
def test_a_replay_gives_back_whole_frames_from_any_one_on(chunks: list[list[int]], bound: int, acks: list[int]) -> None:
    replay, sent = Replay(), []
    for chunk in chunks:
        frames = [text_frame(b"x" * size) for size in chunk]
        sent += frames
        replay.add(len(frames), b"".join(frames))
        replay.trim(bound, 1 << 20)
        assert replay.frames >= min(bound, len(sent))
    for ack in acks:
        had = replay.frames
        replay.acknowledge(min(ack, replay.frames))
        assert replay.frames >= min(ack, had)
    assert replay.size_bytes == len(replay.last(replay.frames))
    for wanted in range(replay.frames + 1):
        assert replay.last(wanted) == b"".join(sent[len(sent) - wanted :])


def test_a_replay_is_bounded_in_bytes_too() -> None:
    replay = Replay()
    for _ in range(100):
        replay.add(1, text_frame(b"x" * 1000))
        replay.trim(1000, 10_000)
    assert replay.size_bytes <= 10_000
    replay.clear()
    assert (replay.frames, replay.size_bytes, replay.last(0)) == (0, 0, b"")


# --- keys ---


def test_keys_are_bounded_and_the_oldest_go() -> None:
    once = Once()
    for n in range(10_500):
        once.begin(("b", "c.run", str(n)), now=0.0)
        once.settle(("b", "c.run", str(n)), b"x")
    assert len(once) == 10_000
    assert once.find(("b", "c.run", "0"), now=1.0) is None
    assert once.find(("b", "c.run", "10499"), now=1.0) is not None
    once.forget_caller("b")
    assert len(once) == 0
    assert once._bytes == 0


def test_remembered_answers_are_bounded_in_bytes() -> None:
    once = Once()
    for n in range(100):
        once.begin(("b", f"m{n}", "k"), now=0.0)
        once.settle(("b", f"m{n}", "k"), b"x" * (1 << 20))
        once.begin(("b", f"n{n}", "k"), now=0.0)
    assert once._bytes <= (64 << 20) + (1 << 20) + 300


def test_a_key_is_forgotten_after_five_minutes() -> None:
    once = Once()
    once.begin(("b", "m", "k"), now=0.0)
    once.settle(("b", "m", "k"), b"x")
    assert once.find(("b", "m", "k"), now=299.0) is not None
    assert once.find(("b", "m", "k"), now=301.0) is None
    assert len(once) == 0


# --- batches ---


def test_a_batch_keeps_the_order_of_its_members_and_says_its_answers_once() -> None:
    said: list[bytes] = []
    batch = Batch(said.append)
    first, second = batch.slot(), batch.slot()
    second(b"2")
    batch.seal()
    assert said == []
    first(b"1")
    first(b"1")
    assert said == [b"[1,2]"]


def test_a_batch_of_notifications_says_nothing() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    a.send([{"jsonrpc": "2.0", "method": "c.echo"}, {"jsonrpc": "2.0", "method": "event.publish", "params": {}}])
    assert a.frames() == []
    assert len(c.frames()) == 1


def test_batches_are_answered_member_by_member() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c", methods=["fast", "never"])
    a.send("[]")
    a.send("[1]")
    a.send(["x"] * 1001)
    one, array, long = a.frames()
    assert one["error"]["data"]["reason"] == "empty_batch"
    assert [row["error"]["code"] for row in array] == [-32600]
    assert long["error"]["data"]["reason"] == "batch_too_long"
    a.send(
        [
            {"jsonrpc": "2.0", "id": 1, "method": "c.fast"},
            {"jsonrpc": "2.0", "id": 2, "method": "c.never", "meta": {"timeout": 1}},
            {"jsonrpc": "2.0", "id": 3, "method": "d.x"},
            {"jsonrpc": "2.0", "method": "c.fast"},
            {"foo": 1},
            {"jsonrpc": "2.0", "id": 4, "method": "event.publish", "params": {"event": "x"}},
        ]
    )
    kid = c.frames()[0]["id"]
    c.send({"jsonrpc": "2.0", "id": kid, "result": "done"})
    assert a.frames() == []
    hub.sleep(1.1)
    (rows,) = a.frames()
    assert [row["id"] for row in rows] == [1, 2, 3, None, 4]
    assert rows[0]["result"] == "done"
    assert [row["error"]["code"] for row in rows[1:4]] == [-32003, -32001, -32600]
    assert rows[4]["result"] == {"delivered": 0}


def test_answers_may_come_as_a_batch() -> None:
    hub = PureHub()
    a, c = hub.ready("a"), hub.ready("c")
    for n in range(2):
        a.send({"jsonrpc": "2.0", "id": n, "method": "c.echo"})
    c.send([{"jsonrpc": "2.0", "id": row["id"], "result": "r"} for row in c.frames()])
    assert c.frames() == []
    assert [row["id"] for row in a.frames()] == [0, 1]


# --- near names ---


def test_near_names_are_near_and_few() -> None:
    assert nearest("resise", ["resize", "upload", "rotate"])[0] == "resize"
    assert nearest("zzz", ["a", "b", "c", "d"]) == ["a", "b", "c"]
    assert nearest("x" * 10_000, ["a"]) == ["a"]
    assert nearest("x", []) == []


# --- quality ---

TIMING = Timing()


def pulse(rtts: list[float], unanswered: int = 0) -> Pulse:
    made = Pulse()
    for rtt in rtts:
        made.note(rtt, None, None, 0.0)
    made.unanswered = unanswered
    return made


def judge(
    rtts: list[float], unanswered: int = 0, reconnects: int = 0, pressure: int = 0, connected: bool = True
) -> Any:
    return assess(
        pulse(rtts, unanswered), timing=TIMING, reconnects_hour=reconnects, pressure=pressure, connected=connected
    )


def test_a_good_connection_is_healthy_and_stable() -> None:
    found = judge([0.001, 0.002, 0.001] * 5)
    assert found.score > 99
    assert found.grade == "healthy"
    assert found.prediction == Prediction(found.prediction.risk, False, found.prediction.why)


@pytest.mark.parametrize(
    ("given_", "grade"),
    [
        ({"unanswered": 1}, "degraded"),
        ({"pressure": 2}, "degraded"),
        ({"unanswered": 3, "pressure": 2}, "unhealthy"),
        ({"connected": False}, "unhealthy"),
        ({"reconnects": 6}, "healthy"),
        ({"reconnects": 6, "pressure": 1}, "degraded"),
    ],
)
def test_grades_follow_the_told_formula(given_: dict[str, Any], grade: str) -> None:
    assert judge([0.001] * 8, **given_).grade == grade


@given(
    st.lists(st.floats(0, 100), max_size=40), st.integers(0, 10), st.integers(0, 2000), st.integers(0, 2), st.booleans()
)
def test_scores_stay_in_their_range_and_never_rise_by_a_miss(
    rtts: list[float], unanswered: int, reconnects: int, pressure: int, connected: bool
) -> None:
    found = judge(rtts, unanswered, reconnects, pressure, connected)
    assert 0 <= found.score <= 100
    assert 0 <= found.prediction.risk <= 1
    worse = judge(rtts, unanswered + 1, reconnects, pressure, connected)
    assert worse.score <= found.score
    assert worse.prediction.risk >= found.prediction.risk


def trace(kind: str, seed: int) -> tuple[list[float | None], int | None]:
    """A recorded kind of connection: round trips in seconds (None: unanswered), and where it dropped."""
    rng = random.Random(seed)
    calm: list[float | None] = [abs(rng.gauss(0.002, 0.0005)) for _ in range(20)]
    if kind == "calm":
        return calm + [abs(rng.gauss(0.002, 0.0005)) for _ in range(20)], None
    if kind == "spike":  # one slow answer, then well again
        return [*calm, 0.4, *calm], None
    if kind == "choking":  # slower and slower until nothing comes
        rising: list[float | None] = [0.01 * 3**n * rng.uniform(0.9, 1.1) for n in range(6)]
        return [*calm, *rising, None, None, None], len(calm) + len(rising) + 3
    if kind == "blip":  # a miss, then well again
        return [*calm, None, *calm], None
    return [*calm, None, None, None], len(calm) + 3  # gone at once


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["calm", "spike", "choking", "blip", "gone"])
def test_a_drop_is_foretold_before_the_third_miss_and_calm_is_not_alarmed(kind: str, seed: int) -> None:
    samples, dropped_at = trace(kind, seed)
    rtts: list[float] = []
    misses, alarms = 0, []
    for at, sample in enumerate(samples):
        if sample is None:
            misses += 1
        else:
            misses = 0
            rtts.append(sample)
        if predict(rtts[-32:], misses, timing=TIMING).drop:
            alarms.append(at)
    if dropped_at is None:
        assert len(alarms) <= (1 if kind == "blip" else 0)
    else:
        assert alarms
        assert alarms[0] <= dropped_at - 2
        if kind == "choking":
            assert alarms[0] < dropped_at - 3  # before the first miss


def test_wall_clocks_that_jump_are_marked_and_not_averaged() -> None:
    made = Pulse()
    made.note(0.01, 1000.0, 1000.005, 1000.01)
    assert made.told()["outbound_ms"] == 5.0
    made.note(0.01, 1000.0, 900.0, 1000.01)
    assert made.told()["outbound_ms"] is None
    assert made.absurd == 1
    made.note(0.01, "x", True, 1000.01)
    assert made.absurd == 1


def test_reconnects_of_the_last_hour_are_told_apart() -> None:
    comings = Comings()
    for n in range(3):
        comings.note(float(n))
    assert (comings.hour(10.0), comings.total) == (3, 3)
    assert (comings.hour(3601.5), comings.total) == (1, 3)


def test_quantiles_and_jitter_of_few_samples() -> None:
    assert quantile([], 50) is None
    assert quantile([1.0], 95) == 1.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 50) == 2.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 95) == 4.0
    assert jitter([1.0]) is None
    assert jitter([1.0, 3.0, 2.0]) == 1.5
