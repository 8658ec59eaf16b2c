"""Door, wire and codec of a real kernel against the Autobahn cases, groups 1-7, 9 and 10, each over a real socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import trio
from kosoku import FailureError, run_fuzzingclient
from tests.support.echo import echo_server

if TYPE_CHECKING:
    from kosoku._kosoku import CaseResult

GROUPS = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"]
BINARY = ["1.2.*", "9.2.*", "9.4.*", "9.6.*", "9.8.*"]  # the hub speaks text only: these must end with 1003
TEXT_CASES = 266
BINARY_CASES = 35
RUN_S = 100


def run(port: int, cases: list[str], excluded: list[str] | None) -> list[CaseResult]:
    """Run cases in a thread (the suite is an asyncio one) and return every result, failed ones too."""

    async def drive() -> list[CaseResult]:
        client = run_fuzzingclient(f"ws://127.0.0.1:{port}", cases, excluded, concurrency=8)
        return list(await asyncio.wait_for(client, RUN_S))

    try:
        return asyncio.run(drive())
    except FailureError as failed:
        return list(failed.results)


async def results(cases: list[str], excluded: list[str] | None = None) -> list[CaseResult]:
    async with echo_server() as port:
        return await trio.to_thread.run_sync(run, port, cases, excluded)


async def test_every_case_of_text_and_control_frames_passes() -> None:
    done = await results(GROUPS, BINARY)
    assert {case.case_id: (case.result, case.result_close) for case in done if not case.passed} == {}
    assert len(done) == TEXT_CASES


async def test_no_text_case_passes_only_by_leniency() -> None:
    """6.4.* ask for a bad prefix to be refused before its frame ends; a late refusal would be NON-STRICT."""
    done = await results(["2.*", "3.*", "4.*", "5.*", "6.*"], ["5.19", "5.20"])
    assert {case.case_id: case.behavior.value for case in done if case.behavior.value != "OK"} == {}
    assert len(done) > 150


async def test_every_case_of_binary_messages_ends_with_1003() -> None:
    done = await results(BINARY)
    assert {case.case_id: case.remote_close_code for case in done if case.remote_close_code != 1003} == {}
    assert len(done) == BINARY_CASES
