"""A desk of facts under a test's control: tokens that count up, a clock that the test moves, every engine behind it."""

from __future__ import annotations

import itertools
from typing import Any

from kite_kernel.core.facts import Refuse
from kite_kernel.edge.fact_plane import METHODS
from kite_kernel.methods.desk import Caller, Facts, Times
from kite_kernel.methods.monitor import Monitor
from kite_kernel.store.port import FactStore

TIMES = Times(heartbeat_s=5, suspect_s=15, expire_s=30, quiet_s=5, lease_s=30, attempts=5)


class Desk:
    """Calls methods as a module would; `now` is moved by hand, the monitor goes round when told."""

    def __init__(self, store: FactStore, *, holder: str = "k1", start: float = 1000.0, seed: str = "") -> None:
        self.now = start
        self.told: list[tuple[str, dict[str, Any]]] = []
        numbers = itertools.count(1)
        self.facts = Facts(
            store,
            TIMES,
            holder=holder,
            clock=lambda: self.now,
            stamp=lambda in_s: f"2026-01-01T00:00:00Z+{self.now + in_s:.0f}",
            make_token=lambda: f"{seed}{holder}-token-{next(numbers):06d}",
            tell=lambda event, data: self.told.append((event, data)),
        )
        self.monitor = Monitor(self.facts, interval_s=1.0)

    async def call(self, method: str, *, caller: str = "r1", **params: Any) -> dict[str, Any] | Refuse:
        return await METHODS[method](self.facts, Caller(caller, "module"), params)

    async def ok(self, method: str, *, caller: str = "r1", **params: Any) -> dict[str, Any]:
        answer = await self.call(method, caller=caller, **params)
        assert not isinstance(answer, Refuse), answer
        return answer

    async def refused(self, method: str, code: int, reason: str | None = None, **params: Any) -> Refuse:
        answer = await self.call(method, **params)
        assert isinstance(answer, Refuse), answer
        assert answer.code == code, answer
        assert reason is None or answer.reason == reason, answer
        assert answer.outcome == "not_sent"
        return answer

    async def replica(self, name: str) -> dict[str, Any]:
        return await self.ok("replica.register", caller=name, replica_id=name.upper())

    async def claimed(self, name: str, key: str) -> dict[str, Any]:
        """Register a replica, create the key, claim it; returns the guard."""
        made = await self.replica(name)
        await self.ok("ownership.create", key=key)
        claim = await self.ok("ownership.claim", key=key, replica_id=made["replica_id"], replica_token=made["token"])
        return {**claim["guard"], "replica_token": made["token"]}

    async def beat(self, guard: dict[str, Any]) -> dict[str, Any] | Refuse:
        return await self.call(
            "replica.heartbeat", replica_id=guard["replica_id"], token=guard["replica_token"], tasks=1
        )

    async def pass_time(self, seconds: float, *beating: dict[str, Any]) -> None:
        """Let time pass in seconds, the monitor going round each, these replicas beating every five."""
        for second in range(int(seconds)):
            self.now += 1.0
            if second % 5 == 4:
                for guard in beating:
                    await self.beat(guard)
            await self.monitor.round()


def guard_of(claim: dict[str, Any]) -> dict[str, Any]:
    return {name: claim[name] for name in ("replica_id", "token", "epoch")}
