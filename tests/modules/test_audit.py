"""The audit trail: its chain, its file, its module and its command. Source: spec 80 §3, cases X-31, X-35, X-36."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kite_launcher._contract import CONFIG
from kite_modules.audit import __main__ as stock
from kite_modules.audit.chain import Head, Verdict, judge, seal
from kite_modules.audit.mask import DATA_BYTES_MAX, fit, without_secrets
from kite_modules.audit.options import Options
from kite_modules.audit.trail import Places, Trail, query, read_head, verify
from kite_modules.sdk import CallError, Kite
from kite_modules.sdk.testing import Hub

AT = "2026-11-30T09:12:13.123456Z"
ROWS = 1000
WAIT_S = 30.0


def lines_of(count: int) -> tuple[list[bytes], Head]:
    head, lines = Head(), []
    for number in range(1, count + 1):
        line, head = seal(head, at=AT, event="relay.request", source="relay", data={"user": "ada", "n": number})
        lines.append(line)
    return lines, head


def places_in(folder: Path) -> Places:
    return Places.of_instance(folder)


def written(folder: Path, count: int) -> Places:
    places = places_in(folder)
    trail = Trail(places, stamp=lambda: AT)
    trail.append([("relay.request", "relay", {"user": "ada", "n": number}) for number in range(1, count + 1)])
    trail.close()
    return places


def kite(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "kite_modules.cli.main", "audit", *words, "--state-dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# ---------------------------------------------------------------------- the chain


def test_a_whole_chain_is_whole() -> None:
    lines, head = lines_of(20)
    assert judge(lines, head) == Verdict(20, head)


def test_any_one_changed_byte_names_its_row() -> None:
    lines, head = lines_of(5)
    for at in range(len(lines[2]) - 1):
        for flip in (1, 32):
            changed = bytearray(lines[2])
            changed[at] ^= flip
            changed_lines = b"".join([*lines[:2], bytes(changed), *lines[3:]]).splitlines(keepends=True)
            assert judge(changed_lines, head).row == 3, (at, flip)


@pytest.mark.parametrize("gone", range(1, 21))
def test_a_removed_row_is_named(gone: int) -> None:
    lines, head = lines_of(20)
    found = judge(lines[: gone - 1] + lines[gone:], head)
    assert found.row == gone
    assert "missing" in found.why


def test_two_swapped_rows_name_the_first() -> None:
    lines, head = lines_of(20)
    lines[6], lines[11] = lines[11], lines[6]
    assert judge(lines, head).row == 7


def test_a_row_that_was_written_twice_is_named() -> None:
    lines, head = lines_of(8)
    assert judge([*lines[:4], lines[3], *lines[4:]], head).row == 5


def test_a_cut_tail_is_found_by_the_head_alone() -> None:
    lines, head = lines_of(20)
    found = judge(lines[:10], head)
    assert found.row == 11
    assert "20" in found.why
    assert judge(lines[:10], read_back(lines[9])).whole


def read_back(line: bytes) -> Head:
    value = json.loads(line)
    return Head(value["seq"], value["hash"])


@pytest.mark.parametrize("forged", [1, 7, 20])
def test_a_row_sealed_anew_is_named(forged: int) -> None:
    lines, head = lines_of(20)
    before = read_back(lines[forged - 2]) if forged > 1 else Head()
    lines[forged - 1], _ = seal(before, at=AT, event="relay.request", source="relay", data={"user": "eve"})
    assert judge(lines, head).row == forged


def test_a_whole_chain_written_anew_is_found_by_the_head() -> None:
    _, head = lines_of(20)
    lines, _ = lines_of(19)
    line, _ = seal(read_back(lines[-1]), at=AT, event="x", source="relay", data=None)
    assert judge([*lines, line], head).row == 20


def test_a_missing_head_is_no_whole_trail() -> None:
    lines, _ = lines_of(3)
    assert not judge(lines, None).whole
    assert judge([], None).whole


def test_a_row_that_was_being_written_is_no_damage() -> None:
    lines, _ = lines_of(3)
    found = judge([*lines[:2], lines[2][:40]], read_back(lines[1]))
    assert found.whole
    assert found.torn_bytes == 40


# ---------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("hurt", "row"),
    [
        (lambda lines: [*lines[:499], lines[499].replace(b'"ada"', b'"adb"'), *lines[500:]], 500),
        (lambda lines: lines[:499] + lines[500:], 500),
        (lambda lines: [*lines[:499], lines[500], lines[499], *lines[501:]], 500),
        (lambda lines: lines[:-10], ROWS - 9),
        (lambda lines: [], 1),
    ],
    ids=["changed", "removed", "swapped", "cut", "emptied"],
)
def test_the_command_names_the_first_bad_row_and_no_start_mends_it(
    tmp_path: Path, hurt: Callable[[list[bytes]], list[bytes]], row: int
) -> None:
    places = written(tmp_path, ROWS)
    whole = kite(tmp_path, "verify")
    assert (whole.returncode, whole.stderr) == (0, "")
    places.rows.write_bytes(b"".join(hurt(places.rows.read_bytes().splitlines(keepends=True))))
    for _ in range(2):  # before and after the module opened it again and wrote on
        told = kite(tmp_path, "verify", "--json")
        answer = json.loads(told.stdout)
        assert (told.returncode, answer["ok"], answer["row"]) == (1, False, row)
        assert f"row {row}" in kite(tmp_path, "verify").stderr
        trail = Trail(places, stamp=lambda: AT)
        assert trail.damage.row == row
        trail.append([("relay.request", "relay", {})])
        trail.close()


def test_a_trail_without_its_head_stays_suspect_after_a_start(tmp_path: Path) -> None:
    places = written(tmp_path, 10)
    places.head.unlink()
    for _ in range(2):
        trail = Trail(places, stamp=lambda: AT)
        trail.append([("x", "y", None)])
        trail.close()
        assert verify(places).row == 10


def test_a_torn_row_goes_and_the_trail_goes_on(tmp_path: Path) -> None:
    places = written(tmp_path, 3)
    with places.rows.open("ab") as file:
        file.write(b'{"seq":4,"at":')
    assert verify(places).whole
    trail = Trail(places, stamp=lambda: AT)
    assert trail.append([("x", "y", None)]).seq == 4
    trail.close()
    assert verify(places) == Verdict(4, read_head(places.head) or Head())


def test_rows_beyond_the_head_are_whole_after_a_crash(tmp_path: Path) -> None:
    places = written(tmp_path, 3)
    old = places.head.read_bytes()
    trail = Trail(places, stamp=lambda: AT)
    trail.append([("x", "y", None)])
    trail.close()
    places.head.write_bytes(old)
    assert verify(places).rows == 4
    assert verify(places).whole


def test_a_trail_cut_while_it_is_open_is_noticed_at_the_next_row(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    trail = Trail(places, stamp=lambda: AT)
    trail.append([("x", "y", number) for number in range(20)])
    lines = places.rows.read_bytes().splitlines(keepends=True)
    places.rows.write_bytes(b"".join(lines[:10]))
    trail.append([("x", "y", None)])
    trail.close()
    assert verify(places).row == 11
    assert json.loads(places.rows.read_bytes().splitlines()[10])["event"] == "audit.damaged"


def test_a_trail_put_in_the_others_place_while_it_is_open_is_noticed(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    trail = Trail(places, stamp=lambda: AT)
    trail.append([("x", "y", number) for number in range(3)])
    places.rows.unlink()
    trail.append([("x", "y", None)])
    trail.close()
    assert verify(places).row == 1


def test_a_trail_has_one_writer_and_files_are_private(tmp_path: Path) -> None:
    places = written(tmp_path, 1)
    trail = Trail(places, stamp=lambda: AT)
    with pytest.raises(BlockingIOError):
        Trail(places, stamp=lambda: AT)
    trail.close()
    assert {path.stat().st_mode & 0o777 for path in (places.rows, places.head)} == {0o600}


def test_a_failed_write_leaves_no_row_and_may_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = places_in(tmp_path)
    trail = Trail(places, stamp=lambda: AT)
    trail.append([("x", "y", 1)])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        trail.append([("x", "y", 2)])
    monkeypatch.undo()
    assert trail.append([("x", "y", 2)]).seq == 2
    trail.close()
    assert verify(places).rows == 2


def test_no_trail_is_exit_3(tmp_path: Path) -> None:
    assert kite(tmp_path, "verify").returncode == 3


def test_query_gives_the_newest_rows_in_order(tmp_path: Path) -> None:
    places = written(tmp_path, 30)
    found = query(places.rows, wants=lambda row: row["data"]["n"] % 2 == 0, limit=3, before=21)
    assert [row["seq"] for row in found] == [16, 18, 20]


# ---------------------------------------------------------------------- what is masked


@pytest.mark.parametrize("name", ["token", "replica_token", "password", "totp_secret", "session", "Cookie", "guard"])
def test_secrets_by_name_are_left_out(name: str) -> None:
    canary = "canary-9d8f7e6c"
    assert canary not in json.dumps(without_secrets({"a": [{"b": {name: canary}}]}))


def test_a_password_in_a_url_is_left_out() -> None:
    assert without_secrets({"why": "nats://ada:hunter2@host:4222 refused"})["why"] == "nats://ada:***@host:4222 refused"


def test_a_huge_row_is_cut_and_says_so() -> None:
    found = fit({"text": "x" * (DATA_BYTES_MAX + 1)})
    assert found["cut"]
    assert len(json.dumps(found)) < DATA_BYTES_MAX


# ---------------------------------------------------------------------- the module


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "modules" / "audit"
    monkeypatch.setenv("KITE_STATE_DIR", str(folder))
    return tmp_path


REQUEST: dict[str, Any] = {"user": "view1", "role": "viewer", "method": "launcher.stop", "verdict": "refused"}


@asynccontextmanager
async def served() -> AsyncIterator[Kite]:
    """The real module beside a kernel in memory, on the real clock: its disk is real. Gives the relay's client."""
    options = {"events": ["relay.>"], "queue": 100}
    async with (
        Hub() as hub,
        hub.running(stock.module, name="audit", options=options) as own,
        hub.client("relay") as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stock.main, own)
        with trio.fail_after(WAIT_S):
            while not await rows_of(client, "audit.begun"):
                await trio.sleep(0.01)
            yield client
        nursery.cancel_scope.cancel()


async def rows_of(client: Kite, event: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = (await client.call("audit.query", {"event": event}))["rows"]
    except CallError:  # the trail is not open yet
        return []
    return found


async def test_a_remote_request_becomes_a_row_with_user_role_method_and_verdict(own_folder: Path) -> None:
    async with served() as client:
        await client.publish("relay.request", REQUEST)
        with trio.fail_after(WAIT_S):
            while not (rows := await rows_of(client, "relay.request")):
                await trio.sleep(0.01)
        assert rows[0]["data"] == REQUEST
        assert rows[0]["source"] == "relay"
        assert (await client.call("audit.verify"))["ok"]
    assert verify(places_in(own_folder)).whole


async def test_append_answers_once_the_row_stands_and_names_the_caller(own_folder: Path) -> None:
    async with served() as client:
        answer = await client.call("audit.append", {"event": "vault.opened", "data": {"pin_token": "s3cr3t-canary"}})
        head = read_head(places_in(own_folder).head)
        assert head is not None
        assert head.seq >= answer["seq"]
        (row,) = await rows_of(client, "vault.opened")
        assert (row["source"], row["data"]) == ("relay", {"pin_token": "***"})
    assert b"s3cr3t" not in places_in(own_folder).rows.read_bytes()


@pytest.mark.parametrize("event", ["audit.damaged", "audit.x", "", "x" * 201])
async def test_nobody_may_write_rows_in_the_trails_own_name(own_folder: Path, event: str) -> None:
    async with served() as client:
        with pytest.raises(CallError):
            await client.call("audit.append", {"event": event})


def test_the_options_are_those_of_the_contract() -> None:
    rows = CONFIG["audit"]
    assert rows["events"]["default"] == Options().events
    assert rows["queue"]["default"] == Options().queue


async def test_a_full_line_is_counted_and_the_number_becomes_a_row(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    writer = stock.Writer(Trail(places, stamp=lambda: AT), 10)
    offered = [writer.offer("x", "y", number) for number in range(15)]
    assert offered.count(None) == 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        with trio.fail_after(WAIT_S):
            while writer.waiting:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    (lost,) = query(places.rows, wants=lambda row: row["event"] == "audit.lost", limit=10)
    assert lost["data"]["rows"] == 5
    assert verify(places).rows == 11
