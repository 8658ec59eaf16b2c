"""One JSON-RPC batch: its answers are collected and sent as one array once the last is there.

Source: JSON-RPC 2.0 §6, spec 10-wire §5, cases W-13, W-14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Batch:
    """Collects answers in any order and keeps the order of the members. A batch of notifications says nothing."""

    __slots__ = ("_answers", "_open", "_sealed", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._answers: list[bytes | None] = []
        self._open = 0
        self._sealed = False

    def slot(self) -> Callable[[bytes], None]:
        """Reserve the place of one answer; the returned function fills it once."""
        at = len(self._answers)
        self._answers.append(None)
        self._open += 1

        def fill(body: bytes) -> None:
            if at < len(self._answers) and self._answers[at] is None:
                self._answers[at] = body
                self._open -= 1
                self._finish()

        return fill

    def seal(self) -> None:
        """All members are known."""
        self._sealed = True
        self._finish()

    def _finish(self) -> None:
        if self._sealed and not self._open and self._answers:
            self._send(b"[" + b",".join(answer for answer in self._answers if answer is not None) + b"]")
            self._answers = []
