"""What all browsers of this relay share: accounts, limits, the one connection to the kernel, the audit trail.

Source: spec 80 §1, cases X-27, X-28, X-31 … X-33.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final

import trio

from kite_modules.relay.limits import Bucket, Window
from kite_modules.sdk import CallError, Kite, log

if TYPE_CHECKING:
    from kite_modules.relay.accounts import Accounts, User
    from kite_modules.relay.browser import Browser
    from kite_modules.relay.fanout import Fanout
    from kite_modules.relay.options import Options
    from kite_modules.relay.screen import Screen

HASHES_AT_ONCE: Final = 2  # each takes 46 MiB and a core for 40 ms
IN_FLIGHT_MAX: Final = 800  # of all browsers together: below the kernel's 1024 for the relay's connection
SAID_S: Final = 60.0
SAID_MAX: Final = 1000
METHOD_SHOWN: Final = 128


class House:
    """The relay's state. One per process."""

    def __init__(self, kite: Kite, accounts: Accounts, options: Options, fanout: Fanout, screen: Screen) -> None:
        self.kite = kite
        self.accounts = accounts
        self.options = options
        self.fanout = fanout
        self.screen = screen
        self.window = Window()
        self.hashing = trio.CapacityLimiter(HASHES_AT_ONCE)
        self.browsers: set[Browser] = set()
        self.in_flight = 0
        self.in_flight_max = IN_FLIGHT_MAX
        self.frame_bytes_max = 1 << 20
        self.counts: Counter[str] = Counter()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._said: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._refusals: OrderedDict[str, tuple[float, int]] = OrderedDict()

    @property
    def connected(self) -> bool:
        """True while the kernel is there."""
        return self.kite.state.value == "open"

    def allow(self, user: str) -> float | None:
        """Count a request of a user; None = allowed, else seconds until the next is."""
        now = trio.current_time()
        bucket = self._buckets.get(user)
        if bucket is None:
            bucket = self._buckets[user] = Bucket(now=now)
        self._buckets.move_to_end(user)
        if len(self._buckets) > SAID_MAX:
            self._buckets.popitem(last=False)
        return bucket.take(now=now)

    def sessions_living(self) -> set[str]:
        """Return the hashes of the sessions that have not ended."""
        return self.accounts.living(idle_s=self.options.session_idle, max_s=self.options.session_max)

    # ---------------------------------------------------------------- what is told

    def audit(self, user: User, method: str, verdict: str, address: str, *, reason: str = "") -> None:
        """Tell the audit trail of one request. Refusals for haste are told once a second, with their number."""
        row: dict[str, Any] = {"user": user.name, "role": user.role, "method": method[:METHOD_SHOWN]}
        row |= {"verdict": verdict, "address": address}
        if reason:
            row["reason"] = reason
        if reason == "rate":
            now = trio.current_time()
            last, count = self._refusals.get(user.name, (float("-inf"), 0))
            if now - last < 1.0:
                self._refusals[user.name] = (last, count + 1)
                return
            self._refusals[user.name] = (now, 0)
            if len(self._refusals) > SAID_MAX:
                self._refusals.popitem(last=False)
            row["more"] = count
        self.publish("relay.request", row)

    def alarm(self, kind: str, address: str, why: str, **more: Any) -> None:
        """Raise an alarm; the same of one address once a minute."""
        if self._first(kind, address):
            log.say(logging.WARNING, f"alarm: {kind}", address=address, why=why, **more)
            self.publish("relay.alarm", {"kind": kind, "address": address, "why": why, **more})

    def note(self, what: str, address: str, **more: Any) -> None:
        """Log a refusal; the same of one address once a minute."""
        self.counts[what] += 1
        if self._first(what, address):
            log.say(logging.INFO, what, address=address, **more)

    def _first(self, what: str, address: str) -> bool:
        now = time.monotonic()
        key = (what, address)
        if now - self._said.get(key, float("-inf")) < SAID_S:
            return False
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > SAID_MAX:
            self._said.popitem(last=False)
        return True

    def publish(self, event: str, data: dict[str, Any]) -> None:
        """Publish without waiting; what finds the line full is counted and logged."""
        try:
            self.kite.publish_nowait(event, {**data, "time": time.time()})
        except CallError as error:
            self.counts["unpublished"] += 1
            log.say(logging.WARNING, f"{event} was not published: {error}")
