"""The launcher's wire session, the pure half: when to come back, what a text is, what to send again.

Its own small one on purpose: a bug in a shared client would fell the modules, the launcher and the watchdog that
should rescue them at once. The vectors of the contract hold all of them to the same behaviour.
Source: spec 00 §2; spec 10 §3, §4, §7, §8.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from kite_launcher import _contract

Kind = Literal["answer", "request", "event", "notice", "bad"]
_OLD_ONLY: Final = {4000: 4010, 4029: 4020}  # numbers that exist in protocol 1's table alone
_OLD: Final = {**_OLD_ONLY, 4010: 4011}
_NO_CODE: Final = (1005, 1006)  # no close frame, or one without a code: the network, whatever it was


class Decision(NamedTuple):
    """What to do about one lost wire; `delay_s` is 0 when `retry` is False."""

    retry: bool
    delay_s: float
    strategy: str
    kind: str
    reason: str


def modern(code: int | None, protocol: int | None, close_reason: str) -> int | None:
    """Read protocol 1's numbers back into protocol 2's; before the auth answer only what is unmistakable."""
    if code is None or protocol == 2:
        return code
    if protocol is None:
        return _OLD_ONLY.get(code, code)
    if code == _contract.CLOSE_AUTH_MALFORMED and "timeout" in close_reason.lower():
        return _contract.CLOSE_AUTH_TIMEOUT
    return _OLD.get(code, code)


def decide(
    failure_code: int | None,
    attempt: int,
    *,
    random: Callable[[], float],
    protocol: int | None = None,
    close_reason: str = "",
    retry_after_s: float | None = None,
) -> Decision:
    """Decide what follows a lost wire: the internal column of the strategy table. `attempt` counts from 1."""
    code = modern(failure_code, protocol, close_reason)
    strategy, kind, what = "standard", "transport", "connection lost"
    if code is not None and code >= 1000 and code not in _NO_CODE:
        row = _contract.CLOSE.get(code)
        kind, what = ("unknown", f"close code {code} is unknown") if row is None else (row.kind, f"{row.name} ({code})")
        strategy = "standard" if row is None else row.strategy
    if strategy == "never":
        return Decision(False, 0.0, strategy, kind, f"{what}: waiting changes nothing")
    table = _contract.INTERNAL_COOLDOWN if strategy == "cooldown" else _contract.INTERNAL_STANDARD
    if table.max_tries is not None and attempt > table.max_tries:
        return Decision(False, 0.0, "never", kind, f"{what}: still so after {table.max_tries} tries")
    # The exponent is capped before use, so that no attempt number overflows.
    base = min(table.initial_s * table.factor ** min(attempt - 1, 64), table.max_s)
    jitter = base * table.jitter_ratio * random() if table.jitter_ratio else 0.0
    delay = max(min(base + jitter, table.max_s), retry_after_s or 0.0)
    return Decision(True, delay, strategy, kind, f"{what}: try {attempt} in {delay:.2f} s")


def read(text: str) -> tuple[Kind, dict[str, Any]]:
    """Read one text message; whatever is no JSON-RPC of the kernel's is "bad" with an empty object. Never raises."""
    try:
        frame = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return "bad", {}
    if not isinstance(frame, dict) or frame.get("jsonrpc") != "2.0":
        return "bad", {}
    method, has_id = frame.get("method"), "id" in frame
    if "method" not in frame:
        answered = has_id and (("result" in frame) != ("error" in frame))
        good = answered and _is_id(frame["id"]) and ("error" not in frame or _is_error(frame["error"]))
        return ("answer", frame) if good else ("bad", {})
    if not isinstance(method, str) or ("params" in frame and not isinstance(frame["params"], dict | list)):
        return "bad", {}
    if has_id:
        return ("request", frame) if _is_id(frame["id"]) else ("bad", {})
    if method != "event":
        return "notice", frame
    params = frame.get("params")
    named = isinstance(params, dict) and isinstance(params.get("event"), str)
    return ("event", frame) if named else ("bad", {})


def classify(text: str) -> Kind:
    """Say what one text message is taken for."""
    return read(text)[0]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _is_id(value: object) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _is_error(value: object) -> bool:
    return isinstance(value, dict) and type(value.get("code")) is int and isinstance(value.get("message"), str)


class Session:
    """What was sent and not yet acknowledged, so that a cut wire loses nothing (spec 10 §8). Bounded."""

    def __init__(self, *, frames_max: int, bytes_max: int) -> None:
        self._frames_max, self._bytes_max = frames_max, bytes_max
        self._name: str | None = None
        self._start(None)

    def _start(self, name: str | None) -> None:
        self._name = name
        self._kept: deque[tuple[int, str, int]] = deque()  # number, frame, size
        self._kept_bytes = 0
        self._sent = self._received = self._acknowledged = self._lost_to = 0

    def sent(self, frame: str) -> None:
        """Count and keep one text message that went out for the first time."""
        self._sent += 1
        size = len(frame.encode("utf-8", "surrogatepass"))
        self._kept.append((self._sent, frame, size))
        self._kept_bytes += size
        while len(self._kept) > self._frames_max or self._kept_bytes > self._bytes_max:
            number, _, dropped = self._kept.popleft()
            self._kept_bytes -= dropped
            self._lost_to = number

    def received(self) -> None:
        """Count one text message that came in."""
        self._received += 1

    def acknowledged(self, received: int) -> None:
        """Forget what the other side has; a count that goes back or ahead of what was sent changes nothing."""
        if not self._acknowledged < received <= self._sent:
            return
        self._acknowledged = received
        while self._kept and self._kept[0][0] <= received:
            self._kept_bytes -= self._kept.popleft()[2]

    def dump(self) -> dict[str, Any]:
        """Return all of it as plain data, for the next image of this process."""
        kept = [[number, frame] for number, frame, _ in self._kept]
        counts = [self._sent, self._received, self._acknowledged, self._lost_to]
        return {"name": self._name, "kept": kept, "counts": counts}

    def load(self, dump: dict[str, Any]) -> None:
        """Go on where `dump` was taken."""
        self._start(dump["name"])
        self._kept.extend(
            (number, frame, len(frame.encode("utf-8", "surrogatepass"))) for number, frame in dump["kept"]
        )
        self._kept_bytes = sum(size for _, _, size in self._kept)
        self._sent, self._received, self._acknowledged, self._lost_to = dump["counts"]

    @property
    def count(self) -> int:
        """How many text messages came in, for `received` of a pong."""
        return self._received

    def resume(self) -> dict[str, Any] | None:
        """Return what the next auth request offers, None when nothing can be promised."""
        if self._name is None or self._lost_to > self._acknowledged:
            return None
        return {"session": self._name, "received": self._received}

    def resumed(self, answer: dict[str, Any]) -> list[str] | None:
        """Take the auth result: frames to send again before anything new, or None: start over."""
        session, received = answer.get("session"), answer.get("received")
        if answer.get("resumed") is not True:
            self._start(session if isinstance(session, str) else None)
            return None
        fits = type(received) is int and max(self._acknowledged, self._lost_to) <= received <= self._sent
        if session != self._name or not fits:
            self._start(None)
            return None
        self.acknowledged(int(received))  # type: ignore[arg-type]  # `fits` says that it is one
        return [frame for _, frame, _ in self._kept]
