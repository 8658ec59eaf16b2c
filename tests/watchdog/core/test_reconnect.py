"""The reconnect decision beyond what the vectors hold: wrong arguments. The law itself is `vectors/backoff.json`."""

from __future__ import annotations

from typing import Any

import pytest

from kite_watchdog.core.reconnect import decide


@pytest.mark.parametrize(
    ("code", "attempt", "name"),
    [
        (None, 0, "attempt"),
        (None, -1, "attempt"),
        (None, True, "attempt"),
        (None, 1.5, "attempt"),
        ("4012", 1, "failure"),
    ],
)
def test_wrong_arguments_are_refused_by_name(code: Any, attempt: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        decide(code, attempt, random=lambda: 0.0)


def test_a_close_frame_without_a_code_is_a_network_loss() -> None:
    without, lost = decide(1005, 1, random=lambda: 0.0), decide(None, 1, random=lambda: 0.0)
    assert (without.retry, without.delay_s, without.kind) == (lost.retry, lost.delay_s, lost.kind)


def test_chance_is_asked_at_most_once() -> None:
    asked = []

    def chance() -> float:
        asked.append(1)
        return 0.5

    decide(None, 3, random=chance)
    decide(4001, 3, random=chance)
    assert len(asked) == 1
