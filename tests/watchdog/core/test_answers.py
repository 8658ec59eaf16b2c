"""What a module answers is judged, never believed. Source: spec 60 §1, 05 §3, §9."""

from __future__ import annotations

import msgspec
import pytest

from kite_watchdog.core.answers import HEALTH_BYTES_MAX, sample_of
from kite_watchdog.core.frames import Answer, Reply, parse
from kite_watchdog.core.health import Kind


def answered(text: str) -> Kind | None:
    sample = sample_of(Answer(result=text.encode()), due_s=5.0)
    return sample.kind if sample is not None else None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"status":"ok"}', Kind.GOOD),
        ('{"status":"ok","why":null,"details":{"a":[1]}}', Kind.GOOD),
        ('{"status":"degraded","why":"slow"}', Kind.DEGRADED),
        ('{"status":"failing","why":"no database"}', Kind.FAILING),
        ("null", Kind.MALFORMED),
        ("true", Kind.MALFORMED),
        ('"ok"', Kind.MALFORMED),
        ("[]", Kind.MALFORMED),
        ('{"status":true}', Kind.MALFORMED),
        ('{"status":["ok"]}', Kind.MALFORMED),
        ('{"status":"OK"}', Kind.MALFORMED),
        ('{"status":"ok","why":7}', Kind.MALFORMED),
        ('{"state":"ok"}', Kind.MALFORMED),
        ("", Kind.MALFORMED),
        ("[" * 60_000, Kind.MALFORMED),
    ],
)
def test_only_the_three_words_count(text: str, kind: Kind) -> None:
    assert answered(text) is kind


def test_ten_megabytes_are_a_fault_and_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(msgspec.json, "decode", never)
    assert answered('{"status":"ok","why":"' + "x" * 10_000_000 + '"}') is Kind.MALFORMED


def test_an_answer_at_the_limit_is_still_read() -> None:
    text = '{"status":"ok","details":"'
    assert answered(text + "x" * (HEALTH_BYTES_MAX - len(text) - 2) + '"}') is Kind.GOOD


def test_a_modules_words_are_made_fit_for_a_log_line() -> None:
    sample = sample_of(
        Answer(result=msgspec.json.encode({"status": "degraded", "why": "a\n\x1b[31m" + "b" * 999})), due_s=5
    )
    assert sample is not None
    assert "\n" not in sample.why
    assert "\x1b" not in sample.why
    assert len(sample.why) < 320


def error(code: int, reason: str = "", outcome: str = "") -> Kind | None:
    data = {"reason": reason, "outcome": outcome} if reason else None
    frame = parse(
        msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "m", "data": data}}).decode()
    )
    assert isinstance(frame, Reply)
    sample = sample_of(frame.answer, due_s=5.0)
    return sample.kind if sample is not None else None


@pytest.mark.parametrize(
    ("code", "reason", "outcome", "kind"),
    [
        (-32003, "deadline", "unknown", Kind.TIMEOUT),
        (-32001, "offline", "not_sent", Kind.AWAY),
        (-32001, "unknown_module", "not_sent", Kind.AWAY),
        (-32001, "debounce", "not_sent", None),  # a short cut is told to nobody
        (-32001, "not_ready", "not_sent", None),
        (-32002, "connection_lost", "unknown", None),  # the kernel will say offline, if it is
        (-32005, "queue_full", "not_sent", None),
        (-32601, "unknown_method", "not_sent", None),  # it took its health back
        (-32601, "", "", Kind.ERROR),  # it lists health and then denies it
        (-32003, "", "", Kind.ERROR),  # a module that makes the kernel's number up
        (1, "", "", Kind.ERROR),
    ],
)
def test_who_made_the_error_decides_what_it_says(code: int, reason: str, outcome: str, kind: Kind | None) -> None:
    assert error(code, reason, outcome) is kind


def test_no_answer_at_all_says_nothing_about_the_module() -> None:
    assert sample_of(Answer(error=-32003, lost=True), due_s=5.0) is None
