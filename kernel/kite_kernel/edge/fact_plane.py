"""Joins the facts to a kernel: the store's task, the monitor, the methods, the numbers, and why it may not be ready.

A method of facts waits for the disk in a task of its own, bounded in number; the hub goes on meanwhile, and goes on
without facts when the store is in trouble. Source: spec 70, 20 §9, cases F-24, F-26.
"""

from __future__ import annotations

import datetime
import re
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
import trio

from kite_kernel._contract import E_FORBIDDEN, E_OVERLOADED
from kite_kernel.core.asking import LATER, Answer, Ask, Refused
from kite_kernel.core.events import Publish
from kite_kernel.core.facts import Refuse, decode, encode, invalid, unavailable
from kite_kernel.methods import fact, ownership, recovery, replica
from kite_kernel.methods.desk import Caller, Facts, Times
from kite_kernel.methods.monitor import Monitor
from kite_kernel.store.port import Unavailable
from kite_kernel.store.sqlite import SqliteStore
from kite_kernel.store.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kite_kernel.edge.kernel import Kernel

    Method = Callable[[Facts, Caller, dict[str, Any]], Awaitable[dict[str, Any] | Refuse]]

_log = structlog.get_logger()
_WAITING_MAX: Final = 1024  # requests in hand; beyond it they are told to come back
_COPY_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_ROUNDS_PER_BEAT: Final = 5  # the monitor looks this often within one heartbeat

METHODS: Final[dict[str, Method]] = {
    "replica.register": replica.register,
    "replica.heartbeat": replica.heartbeat,
    "replica.leave": replica.leave,
    "replica.list": replica.list_replicas,
    "ownership.create": ownership.create,
    "ownership.claim": ownership.claim,
    "ownership.write": ownership.write,
    "ownership.release": ownership.release,
    "ownership.pause": ownership.pause,
    "ownership.get": ownership.get,
    "ownership.list": ownership.list_keys,
    "recovery.list": recovery.list_recoveries,
    "recovery.lease": recovery.lease,
    "recovery.claim": recovery.claim,
    "recovery.complete": recovery.complete,
    "fact.get": fact.get,
    "fact.list": fact.list_facts,
}


class _Kernel:
    """Who publishes the events of the facts."""

    quoted = b'"kernel"'


class FactPlane:
    """The facts of one kernel over the file `facts.db` of its state directory."""

    def __init__(self, kernel: Kernel, state_dir: Path) -> None:
        rows = kernel.config.ownership
        stamp = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        file = SqliteFile(state_dir / "facts.db", new_id=secrets.token_hex(16), stamp=stamp, say=_say)
        self._kernel = kernel
        self._incoming = state_dir / "backups" / "incoming"
        self._waiting = 0
        self.store = SqliteStore(file, clock=time.monotonic)
        times = Times(
            heartbeat_s=rows["heartbeat"],
            suspect_s=rows["suspect"],
            expire_s=rows["expire"],
            quiet_s=rows["quiet"],
            lease_s=rows["lease"],
            attempts=rows["attempts"],
        )
        self.facts = Facts(
            self.store,
            times,
            holder=secrets.token_hex(16),
            clock=trio.current_time,
            stamp=_utc_in,
            make_token=lambda: secrets.token_urlsafe(24),
            tell=self._tell,
        )
        self._monitor = Monitor(self.facts, interval_s=min(1.0, times.heartbeat_s / _ROUNDS_PER_BEAT))
        self._monitored = bool(rows["monitor"])

    async def start(self) -> None:
        """Open the store and join everything to the kernel; ends with the kernel's nursery."""
        kernel = self._kernel
        await kernel.nursery.start(self.store.run)
        await self.facts.load()
        if self._monitored:
            kernel.nursery.start_soon(self._monitor.run)
        for name, method in {**METHODS, "fact.backup": self._backup}.items():
            kernel.hub.handlers[name] = partial(self._take, method)
        kernel.pages.troubles.append(lambda: None if self.store.fault is None else f"facts: {self.store.fault.reason}")
        kernel.pages.lines.append(self._lines)

    def _take(self, method: Method, ask: Ask) -> Answer:
        if self._waiting >= _WAITING_MAX:
            return Refused(E_OVERLOADED, "too_many_in_flight", retry_after=1.0)
        self._waiting += 1
        self._kernel.nursery.start_soon(self._answer, method, ask)
        return LATER

    async def _answer(self, method: Method, ask: Ask) -> None:
        try:
            params = _exact(ask)
            answer = await method(self.facts, Caller(ask.peer.id, ask.peer.role), params)
            if isinstance(answer, Refuse):
                refused = Refused(answer.code, answer.reason, outcome=answer.outcome, message=answer.message)
                refused.data = answer.data
                ask.answer(refused)
            else:
                ask.answer(encode(answer))
            self._kernel.hand.settle()
        finally:
            self._waiting -= 1

    async def _backup(self, facts: Facts, caller: Caller, params: dict[str, Any]) -> dict[str, Any] | Refuse:
        """Copy the store into `backups/incoming/NAME.db` of the state directory, for who keeps snapshots."""
        del facts
        if caller.role == "module" and caller.module_id != "backup":
            return Refuse(E_FORBIDDEN, "no_permission", "only the module backup and operators copy the facts")
        name = params.get("name")
        if not isinstance(name, str) or not _COPY_NAME.fullmatch(name):
            return invalid("name", "must be 1 to 64 letters, digits or -")
        copied = await self.store.copy(self._incoming / f"{name}.db")
        if isinstance(copied, Unavailable):
            return unavailable(copied.reason, copied.why)
        _log.info(f"[kernel] facts copied for {caller.module_id}", key="fact.backup", facts=copied.facts)
        size = {"facts": copied.facts, "bytes": copied.size_bytes}
        return {"path": str(copied.path), "revision": copied.revision, **size}

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        """Publish to whoever subscribed; alarms are log lines, too."""
        if event == "recovery.abandoned":
            _log.error(f"[kernel] recovery of {data['key']} abandoned: {data['why']}", key=event, **_fields(data))
        elif event == "replica.expired":
            _log.warning(f"[kernel] replica {data['replica_id']} expired", key=event, **_fields(data))
        wish = Publish(event=event, data=msgspec.Raw(encode(data)))
        hub = self._kernel.hub
        hub.events.publish(_Kernel(), wish, encode(event), now=trio.current_time())  # type: ignore[arg-type]
        self._kernel.hand.settle()

    def _lines(self) -> list[str]:
        counts, facts = self.facts.counts, self.facts
        numbers = {
            "kite_recovery_backlog": len(facts.recoveries),
            "kite_takeover_seconds": round(counts.takeover_s_last, 3),
            "kite_cas_conflicts_total": counts.conflicts,
            "kite_claims_total": counts.claims,
            "kite_guarded_writes_total": counts.writes,
            "kite_fenced_total": counts.fenced,
            "kite_replicas_expired_total": counts.expired,
            "kite_recoveries_claimed_total": counts.recovered,
            "kite_recoveries_abandoned_total": counts.abandoned,
            "kite_replicas_active": len(facts.active_replicas()),
            "kite_fact_batches_total": self.store.batches,
            "kite_fact_steps_total": self.store.steps,
            "kite_fact_steps_refused_total": self.store.refused,
        }
        return [f"{name} {value}" for name, value in numbers.items()]


def _exact(ask: Ask) -> dict[str, Any]:
    """Return the params with every number as it was written; those by position were named by the contract."""
    params = decode(ask.raw) if ask.raw else {}
    return params if isinstance(params, dict) else ask.params


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    return {("fact_key" if name == "key" else name): value for name, value in data.items()}


def _say(level: str, text: str) -> None:
    getattr(_log, level)(f"[kernel] {text}", key="facts")


def _utc_in(seconds: float) -> str:
    at = datetime.datetime.now(tz=datetime.UTC) + datetime.timedelta(seconds=seconds)
    return at.isoformat(timespec="milliseconds")
