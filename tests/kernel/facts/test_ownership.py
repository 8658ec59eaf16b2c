"""Ownership, replicas and recovery over the desk: one owner an epoch, nothing late ever lands."""

from typing import Any

import pytest
import trio
from tests.support.facts import TIMES, Desk, guard_of

from kite_kernel._contract import E_CONFLICT, E_FENCED, E_INVALID_PARAMS, E_INVALID_REQUEST
from kite_kernel.core.facts import Refuse, decode, encode
from kite_kernel.core.recovery import route
from kite_kernel.store.memory import MemoryStore

K = "chat/7"


@pytest.fixture
async def desk() -> Desk:
    made = Desk(MemoryStore())
    await made.facts.load()
    await made.monitor.round()
    return made


async def takeover(desk: Desk, by: str = "r2") -> tuple[dict[str, Any], dict[str, Any]]:
    """R1 goes silent for good; `by` leases and claims its recovery. Returns the worker's guard and the offer."""
    worker = await desk.replica(by)
    guard = {"replica_id": worker["replica_id"], "replica_token": worker["token"]}
    await desk.pass_time(40, guard)
    (offer,) = (await desk.ok("recovery.lease", dispatcher="d1"))["recoveries"]
    claim = await desk.ok(
        "recovery.claim",
        recovery_id=offer["recovery_id"],
        token=offer["token"],
        checkpoint_epoch=offer["checkpoint_epoch"],
        replica_id=worker["replica_id"],
        replica_token=worker["token"],
    )
    return {**claim["guard"], "replica_token": worker["token"]}, offer


async def test_a_zombie_owner_s_late_writes_never_land(desk: Desk) -> None:
    old = await desk.claimed("r1", K)
    await desk.ok("ownership.write", key=K, guard=guard_of(old), append=[{"id": "m1", "text": "a"}])
    new, _ = await takeover(desk)
    await desk.ok("ownership.write", key=K, guard=guard_of(new), append=[{"id": "m2", "text": "b"}])
    before = await desk.ok("ownership.get", key=K)
    for change in ({"state": "done"}, {"append": [{"id": "m3"}]}, {"checkpoint": {"late": True}}):
        refusal = await desk.refused("ownership.write", E_FENCED, key=K, guard=guard_of(old), **change)
        assert refusal.data["current_epoch"] == 2
        assert refusal.reason in ("expired_replica", "stale_owner")
    assert await desk.ok("ownership.get", key=K) == before


async def test_of_a_hundred_claims_at_once_exactly_one_wins(desk: Desk) -> None:
    makers = [await desk.replica(f"q{number}") for number in range(100)]
    await desk.ok("ownership.create", key=K)
    answers: list[Any] = []

    async def claim(made: dict[str, Any]) -> None:
        answers.append(
            await desk.call("ownership.claim", key=K, replica_id=made["replica_id"], replica_token=made["token"])
        )

    async with trio.open_nursery() as nursery:
        for made in makers:
            nursery.start_soon(claim, made)
    won = [answer for answer in answers if not isinstance(answer, Refuse)]
    assert [answer["guard"]["epoch"] for answer in won] == [1]
    lost = [answer for answer in answers if isinstance(answer, Refuse)]
    assert {answer.reason for answer in lost} == {"running"}
    assert {answer.data["owner"]["replica_id"] for answer in lost} == {won[0]["guard"]["replica_id"]}


async def test_each_wrong_guard_is_refused_by_the_first_reason_that_applies(desk: Desk) -> None:
    guard = guard_of(await desk.claimed("r1", K))
    other = await desk.replica("r2")
    cases = [
        ({**guard, "token": "wrong"}, ("wrong_token",)),
        ({**guard, "epoch": 0}, ("stale_owner",)),
        ({**guard, "epoch": 2}, ("stale_owner",)),
        ({"replica_id": other["replica_id"], "token": other["token"], "epoch": 1}, ("wrong_token", "stale_owner")),
    ]
    for wrong, reasons in cases:
        refusal = await desk.refused("ownership.write", E_FENCED, key=K, guard=wrong, data={"x": 1})
        assert refusal.reason in reasons
    await desk.ok("ownership.release", key=K, guard=guard, state="idle")
    await desk.refused("ownership.write", E_FENCED, "not_running", key=K, guard=guard, data={"x": 1})


@pytest.mark.parametrize("epoch", [-1, True, "1", None, 2**63, 2**64])
async def test_an_epoch_that_is_no_number_of_an_epoch_is_named(desk: Desk, epoch: object) -> None:
    guard = {**guard_of(await desk.claimed("r1", K)), "epoch": epoch}
    refusal = await desk.refused("ownership.write", E_INVALID_PARAMS, key=K, guard=guard)
    assert refusal.data["field"] == "guard.epoch"


async def test_keys_are_literal_text_and_bad_ones_are_named(desk: Desk) -> None:
    for bad in ("", "k" * 10_000, "a\0b", 7, None):
        assert (await desk.refused("ownership.create", E_INVALID_PARAMS, key=bad)).data["field"] == "key"
    for key in ("x'); DROP TABLE facts;--", "%", "a_", "ab"):
        await desk.ok("ownership.create", key=key)
    listed = await desk.ok("ownership.list", prefix="a_")
    assert [row["key"] for row in listed["records"]] == ["a_"]
    assert [row["key"] for row in (await desk.ok("ownership.list", prefix="%"))["records"]] == ["%"]


async def test_expired_and_left_replicas_never_come_back(desk: Desk) -> None:
    guard = await desk.claimed("r1", K)
    gone = await desk.replica("r3")
    await desk.ok("replica.leave", replica_id="R3", token=gone["token"])
    await desk.pass_time(31)
    again = Desk(desk.facts.store, holder="k2", start=9000.0)
    await again.facts.load()
    for at in (desk, again):
        for name, token in (("R1", guard["replica_token"]), ("R3", gone["token"])):
            await at.refused("replica.heartbeat", E_FENCED, replica_id=name, token=token, tasks=0)
            await at.refused("replica.register", E_FENCED, replica_id=name)
            await at.refused("ownership.claim", E_FENCED, key=K, replica_id=name, replica_token=token)
        states = {row["replica_id"]: row["state"] for row in (await at.ok("replica.list"))["replicas"]}
        assert states == {"R1": "expired", "R3": "stopped"}


async def test_an_item_is_replaced_by_its_own_chain_alone_and_never_doubled(desk: Desk) -> None:
    first = await desk.claimed("r1", K)
    write = {"key": K, "guard": guard_of(first)}
    await desk.ok("ownership.write", **write, append=[{"id": "m1", "text": "ab"}])
    await desk.ok("ownership.write", **write, append=[{"id": "m1", "text": "abc"}])
    second, _ = await takeover(desk)
    write = {"key": K, "guard": guard_of(second)}
    await desk.ok("ownership.write", **write, append=[{"id": "m1", "text": "abcd"}])
    once = await desk.ok("ownership.write", **write, append=[{"id": "m2"}], nonce="n")
    assert await desk.ok("ownership.write", **write, append=[{"id": "m2"}], nonce="n") == once
    await desk.ok("ownership.release", key=K, guard=guard_of(second), state="idle")
    third = await desk.ok("ownership.claim", key=K, replica_id="R2", replica_token=second["replica_token"], nonce="c")
    refusal = await desk.refused(
        "ownership.write", E_INVALID_PARAMS, key=K, guard=third["guard"], append=[{"id": "m1", "text": "mine"}]
    )
    assert "m1" in refusal.message
    items = (await desk.ok("ownership.get", key=K))["data"]["items"]
    assert items == [{"id": "m1", "text": "abcd"}, {"id": "m2"}]
    same = await desk.ok("ownership.claim", key=K, replica_id="R2", replica_token=second["replica_token"], nonce="c")
    assert same["guard"] == third["guard"]


async def test_only_the_running_keys_of_the_lost_replica_are_interrupted(desk: Desk) -> None:
    guard = await desk.claimed("r1", "a1")
    other = await desk.claimed("r2", "b1")
    for key in ("a2", "a3", "a4", "a5"):
        await desk.ok("ownership.create", key=key)
        claim = await desk.ok("ownership.claim", key=key, replica_id="R1", replica_token=guard["replica_token"])
        if key in ("a4", "a5"):
            await desk.ok("ownership.release", key=key, guard=claim["guard"], state="done")
    await desk.pass_time(31, other)
    states = {row["key"]: row["state"] for row in (await desk.ok("ownership.list"))["records"]}
    assert states == {
        "a1": "interrupted", "a2": "interrupted", "a3": "interrupted", "a4": "done", "a5": "done", "b1": "running",
    }  # fmt: skip
    rows = (await desk.ok("recovery.list"))["recoveries"]
    assert {(row["key"], row["cause"], row["state"]) for row in rows} == {
        (key, "lost", "pending") for key in ("a1", "a2", "a3")
    }
    assert (await desk.ok("recovery.lease", limit=10))["recoveries"] == []
    await desk.pass_time(6, other)
    assert len((await desk.ok("recovery.lease", limit=10))["recoveries"]) == 3


async def test_a_beat_brings_a_suspect_back_and_no_recovery_is_made(desk: Desk) -> None:
    guard = await desk.claimed("r1", K)
    await desk.pass_time(16)
    assert (await desk.ok("replica.list"))["replicas"][0]["state"] == "suspect"
    assert await desk.beat(guard) == {"state": "active"}
    await desk.pass_time(10)
    assert (await desk.ok("replica.list"))["replicas"][0]["state"] == "active"
    assert (await desk.ok("recovery.list"))["recoveries"] == []


async def test_the_kernel_s_own_silence_judges_nobody(desk: Desk) -> None:
    await desk.claimed("r1", K)
    desk.now += 60.0
    await desk.monitor.round()
    await desk.pass_time(10)
    assert (await desk.ok("replica.list"))["replicas"][0]["state"] == "active"


async def test_a_pause_writes_the_record_before_the_state_and_a_repeat_after_a_crash_makes_no_second(
    desk: Desk,
) -> None:
    guard = await desk.claimed("r1", K)
    step, crashed = desk.facts.step, []

    async def crash_before_the_state(bucket: str, key: str, decide: Any) -> Any:
        if bucket == "owned" and not crashed:
            crashed.append(key)
            raise RuntimeError("kill -9")
        return await step(bucket, key, decide)

    desk.facts.step = crash_before_the_state  # type: ignore[method-assign]
    pause = {"key": K, "guard": guard_of(guard), "checkpoint": {"at": 3}, "open_call": {"id": "t1"}, "nonce": "p"}
    with pytest.raises(RuntimeError):
        await desk.call("ownership.pause", **pause)
    again = Desk(desk.facts.store, holder="k2", start=5000.0)
    await again.facts.load()
    await again.monitor.round()
    paused = await again.ok("ownership.pause", **pause)
    assert await again.ok("ownership.pause", **pause) == paused
    rows = (await again.ok("recovery.list"))["recoveries"]
    assert [(row["recovery_id"], row["cause"]) for row in rows] == [(paused["recovery_id"], "shutdown")]
    assert (await again.ok("ownership.get", key=K))["state"] == "interrupted"
    assert (await again.ok("recovery.lease"))["recoveries"] == []
    await again.pass_time(6)
    (offer,) = (await again.ok("recovery.lease"))["recoveries"]
    worker = await again.replica("w1")
    claim = await again.ok(
        "recovery.claim", recovery_id=offer["recovery_id"], token=offer["token"],
        checkpoint_epoch=offer["checkpoint_epoch"], replica_id="W1", replica_token=worker["token"],
    )  # fmt: skip
    assert (claim["checkpoint"], claim["cause"], claim["open_call"]) == ({"at": 3}, "shutdown", {"id": "t1"})
    assert claim["guard"]["epoch"] == 2


async def test_a_lease_that_ran_out_goes_to_another_and_the_late_worker_is_refused(desk: Desk) -> None:
    await desk.claimed("r1", K)
    worker = await desk.replica("w1")
    guard = {"replica_id": "W1", "replica_token": worker["token"]}
    await desk.pass_time(40, guard)
    (first,) = (await desk.ok("recovery.lease", dispatcher="d1"))["recoveries"]
    assert (await desk.ok("recovery.lease", dispatcher="d2"))["recoveries"] == []
    await desk.pass_time(31, guard)
    (second,) = (await desk.ok("recovery.lease", dispatcher="d2"))["recoveries"]
    assert second["recovery_id"] == first["recovery_id"]
    assert second["token"] != first["token"]
    bearer = {"replica_id": "W1", "replica_token": worker["token"]}
    late = {name: first[name] for name in ("recovery_id", "token", "checkpoint_epoch")}
    await desk.refused("recovery.claim", E_CONFLICT, "wrong_recovery", **late, **bearer)
    good = {**late, "token": second["token"]}
    await desk.refused("recovery.claim", E_CONFLICT, **{**good, "checkpoint_epoch": 0}, **bearer)
    await desk.refused("recovery.claim", E_CONFLICT, **{**good, "recovery_id": "nosuch"}, **bearer)
    await desk.ok("recovery.claim", **good, **bearer)
    await desk.refused("recovery.claim", E_CONFLICT, "running", **good, **bearer)
    assert [row["attempts"] for row in (await desk.ok("recovery.list"))["recoveries"]] == [2]


async def test_a_worker_that_dies_again_and_again_ends_visibly_abandoned(desk: Desk) -> None:
    await desk.claimed("r1", K)
    for number in range(1, 6):
        worker = await desk.replica(f"w{number}")
        guard = {"replica_id": worker["replica_id"], "replica_token": worker["token"]}
        offers: list[Any] = []
        for _ in range(200):
            await desk.pass_time(1, guard)
            await desk.beat(guard)
            offers = (await desk.ok("recovery.lease"))["recoveries"]
            if offers:
                break
        (offer,) = offers
        claim = await desk.ok(
            "recovery.claim", recovery_id=offer["recovery_id"], token=offer["token"],
            checkpoint_epoch=offer["checkpoint_epoch"], replica_id=worker["replica_id"], replica_token=worker["token"],
        )  # fmt: skip
        assert claim["guard"]["epoch"] == number + 1
        await desk.ok("ownership.write", key=K, guard=claim["guard"], append=[{"id": "m1", "text": "x" * number}])
    for _ in range(200):
        await desk.pass_time(1)
        assert (await desk.ok("recovery.lease"))["recoveries"] == []
        if any(event == "recovery.abandoned" for event, _ in desk.told):
            break
    rows = (await desk.ok("recovery.list"))["recoveries"]
    assert [(row["state"], row["attempts"]) for row in rows] == [("abandoned", 5)]
    shown = await desk.ok("ownership.get", key=K)
    assert (shown["state"], len(shown["data"]["items"])) == ("failed", 1)


async def test_a_completed_recovery_leaves_its_key_to_the_owner(desk: Desk) -> None:
    await desk.claimed("r1", K)
    guard, offer = await takeover(desk)
    await desk.ok("recovery.complete", recovery_id=offer["recovery_id"], guard=guard_of(guard), outcome="done")
    await desk.ok("ownership.release", key=K, guard=guard_of(guard), state="done")
    assert [row["state"] for row in (await desk.ok("recovery.list"))["recoveries"]] == ["done"]
    await desk.refused("ownership.claim", E_CONFLICT, "finished", key=K, replica_id="R2",
                       replica_token=guard["replica_token"])  # fmt: skip


async def test_no_answer_and_no_event_holds_a_token(desk: Desk) -> None:
    await desk.claimed("r1", K)
    await takeover(desk)
    for method in ("replica.list", "ownership.list", "recovery.list"):
        assert b"token" not in encode(await desk.ok(method))
    for bucket in ("replica", "owned", "recovery", "leader"):
        assert b"token" not in encode(await desk.ok("fact.list", bucket=bucket))
    assert "token" not in repr(desk.told)


async def test_a_record_has_a_bound_and_stays_readable(desk: Desk) -> None:
    guard = guard_of(await desk.claimed("r1", K))
    refusal = None
    for number in range(1200):
        answer = await desk.call("ownership.write", key=K, guard=guard, append=[{"id": f"m{number}", "t": "x" * 1000}])
        if isinstance(answer, Refuse):
            refusal = answer
            break
    assert refusal is not None
    assert refusal.code == E_INVALID_PARAMS
    assert "1048576" in refusal.message
    assert (await desk.ok("ownership.get", key=K))["state"] == "running"


async def test_bounds_are_said_and_the_longest_ended_replicas_are_forgotten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kite_kernel.methods.replica.REPLICAS_MAX", 3)
    monkeypatch.setattr("kite_kernel.methods.monitor.REPLICAS_MAX", 2)
    monkeypatch.setattr("kite_kernel.methods.ownership.KEYS_MAX", 2)
    made = [await desk.replica(f"q{number}") for number in range(3)]
    assert (await desk.refused("replica.register", E_INVALID_REQUEST, "limit")).data["limit"] == 3
    for gone in made:
        desk.now += 1.0
        await desk.ok("replica.leave", replica_id=gone["replica_id"], token=gone["token"])
    await desk.pass_time(2)
    assert [row["replica_id"] for row in (await desk.ok("replica.list"))["replicas"]] == ["Q1", "Q2"]
    await desk.replica("q9")
    for key in ("a", "b"):
        await desk.ok("ownership.create", key=key)
    await desk.refused("ownership.create", E_INVALID_REQUEST, "limit", key="c")


def test_numbers_keep_their_text_through_a_record() -> None:
    text = b'{"a":1.10,"b":1e400,"c":18446744073709551617,"d":[-0.0,"1.10"],"e":9007199254740993}'
    assert encode(decode(text)) == text


def test_only_the_keys_of_a_replica_that_leaves_move() -> None:
    names = ["r1", "r2", "r3", "r4", "r5"]
    before = {f"key{number}": route(f"key{number}", names) for number in range(500)}
    after = {key: route(key, [name for name in names if name != "r3"]) for key in before}
    assert {key for key in before if before[key] != after[key]} == {key for key in before if before[key] == "r3"}
    assert route("key1", reversed(names)) == before["key1"]
    assert TIMES.expire_s > TIMES.suspect_s
