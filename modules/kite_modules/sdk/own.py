"""Owning things: one process at a time writes a key, and stops by itself before another may.

    async with kite.replica() as replica:
        async with replica.own("chat/7") as session:
            await session.append({"id": "m1", "text": "…"})

A replica is one process start. It beats; when it can't beat for so long that others may soon expire it (by its own
clock, which counts suspend), or is told so, it is fenced: every owned block is cancelled first, then comes `Fenced`.
Source: spec 70 §2-3, 05 §7, 00 §16, cases F-01, F-09, F-33.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from kite_modules import _contract
from kite_modules.sdk.errors import CallError, KiteError

if TYPE_CHECKING:
    from kite_modules.sdk.client import Kite

MARGIN: Final = 0.2  # of the expiry: covers clocks that run 5 % apart, the way of a beat, and the time to cancel
_CLOSING_S: Final = 5.0  # how long the last words of a block may take
_RETRY_S: Final = 0.2


class Fenced(KiteError):
    """This replica owns nothing any more; a new process start gets a new id. Whose fault: nobody's."""


def boot_clock() -> float:
    """Return seconds since boot, suspend included, where the system tells it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@attrs.frozen
class Offer:
    """A recovery that this dispatcher holds for `lease_s`: claim it by `replica.recover(offer)`."""

    recovery_id: str
    key: str
    token: str
    checkpoint_epoch: int
    cause: str
    route_key: str | None
    target: str | None
    lease_s: float


class Session:
    """One owned key in one epoch. `data` and `checkpoint` are what was read at the claim, kept in step by `write`."""

    def __init__(self, replica: Replica, claim: dict[str, Any], recovery_id: str | None = None) -> None:
        self._replica = replica
        self._guard: dict[str, Any] = claim["guard"]
        self.key: str = claim["key"]
        self.epoch: int = claim["guard"]["epoch"]
        self.data: dict[str, Any] = claim["data"]
        self.checkpoint: Any = claim["checkpoint"]
        self.recovery_id = recovery_id
        self.cause: str | None = claim.get("cause")
        self.interrupted_call: Any = claim.get("open_call")
        """The tool call that the stop itself cut, if that is what happened; it may run again under its own id."""
        self.open_call: Any = None
        self._finish = "idle"
        self._closed = False

    @property
    def fenced(self) -> trio.Event:
        """Set when this owner may not write any more; the block is cancelled by then."""
        return self._replica.fenced

    def finish(self, state: str) -> None:
        """Say how the key is left when the block ends: idle, done or failed."""
        if state not in ("idle", "done", "failed"):
            raise ValueError(f"state must be idle, done or failed, not {state!r}")
        self._finish = state

    async def write(
        self, *, data: dict[str, Any] | None = None, append: list[dict[str, Any]] | None = None, checkpoint: Any = ...
    ) -> int:
        """Write under the guard; returns the revision. A lost answer is asked for again, and counts once.

        Raises: Fenced; CallError for a refusal that repeating would not change. Cancel: it may have been written.
        """
        change: dict[str, Any] = {}
        if data is not None:
            change["data"] = data
        if append is not None:
            change["append"] = append
        if checkpoint is not ...:
            change["checkpoint"] = checkpoint
        answer = await self._guarded("ownership.write", change)
        self.data = {**self.data, **(data or {})}
        if append:
            items = {item["id"]: item for item in self.data.get("items", ())}
            items.update({item["id"]: item for item in append})
            self.data["items"] = list(items.values())
        if checkpoint is not ...:
            self.checkpoint = checkpoint
        return int(answer["revision"])

    async def append(self, *items: dict[str, Any]) -> int:
        """Add items (each with an `id`), or replace those of this chain of owners in place."""
        return await self.write(append=list(items))

    @asynccontextmanager
    async def tool_call(self, call_id: str, **details: Any) -> AsyncGenerator[None, None]:
        """Mark a tool call as the open one: a stop in the middle hands it on under its own id."""
        self.open_call = {"id": call_id, **details}
        yield
        self.open_call = None

    async def _guarded(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._replica.call(method, {"key": self.key, "guard": self._guard, **params})

    async def close(self, *, paused: bool, failed: bool) -> None:
        """Say the last word: pause for another owner, or release as `finish` said."""
        if self._closed or self.fenced.is_set():
            return
        self._closed = True
        if paused:
            await self._guarded("ownership.pause", {"checkpoint": self.checkpoint, "open_call": self.open_call})
            return
        if self.recovery_id is not None:
            outcome = {"recovery_id": self.recovery_id, "guard": self._guard, "outcome": "done"}
            await self._replica.call("recovery.complete", outcome)
        await self._guarded("ownership.release", {"state": "failed" if failed else self._finish})


class Replica:
    """One process start that may own things. Made by `kite.replica()`."""

    def __init__(
        self, kite: Kite, *, meta: dict[str, Any] | None = None, clock: Callable[[], float] = boot_clock
    ) -> None:
        self._kite = kite
        self._meta = meta
        self._clock = clock
        self._scopes: set[trio.CancelScope] = set()
        self._token = ""
        self._beat_at = 0.0
        self._heartbeat_s = self._expire_s = 1.0
        self.replica_id = ""
        self.fenced = trio.Event()
        self.why = ""
        self.tasks = 0
        self._idle = trio.Event()
        self._left = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Replica, None]:
        """Register, beat, and leave when the block ends. Raises: Fenced."""
        asked_at = self._clock()
        params = {} if self._meta is None else {"meta": self._meta}
        made = await self._kite.call("replica.register", params)
        self.replica_id, self._token = made["replica_id"], made["token"]
        self._heartbeat_s, self._expire_s = made["heartbeat_s"], made["expire_s"]
        self._beat_at = asked_at
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._watch_own_clock)
            nursery.start_soon(self._leave_at_stop)
            self._scopes.add(nursery.cancel_scope)
            try:
                yield self
            except Exception as error:
                failure = error  # raised again outside the nursery, which would wrap it in a group
            finally:
                self._scopes.discard(nursery.cancel_scope)
                if not self.fenced.is_set():
                    await self._leave()
                nursery.cancel_scope.cancel()
        if self.fenced.is_set():
            raise self._fenced() from failure
        if failure is not None:
            raise failure

    def _fenced(self) -> Fenced:
        return Fenced(f"replica {self.replica_id} is fenced: {self.why}")

    def fence(self, why: str) -> None:
        """Own nothing from now on: writing stops here, then everything that is owned is cancelled."""
        if not self.fenced.is_set():
            self.why = why
            self.fenced.set()
            for scope in list(self._scopes):
                scope.cancel()

    async def _beat(self) -> None:
        while not self.fenced.is_set():
            await trio.sleep(self._heartbeat_s)
            asked_at = self._clock()
            params = {"replica_id": self.replica_id, "token": self._token, "tasks": self.tasks}
            try:
                await self._kite.call("replica.heartbeat", params, timeout=self._heartbeat_s)
            except CallError as error:
                if error.code == _contract.E_FENCED:
                    self.fence(f"the kernel says {error.reason}")
            else:
                self._beat_at = asked_at  # when it was sent: the answer may have taken its time

    async def _watch_own_clock(self) -> None:
        """Fence before others may: counted from the last beat that was surely heard, on a clock that counts suspend."""
        limit_s = self._expire_s * (1 - MARGIN)
        while not self.fenced.is_set():
            silent_s = self._clock() - self._beat_at
            if silent_s >= limit_s:
                self.fence(f"no beat was heard for {silent_s:.1f} s")
                return
            await trio.sleep(min(limit_s - silent_s, self._heartbeat_s / 2))

    async def _leave_at_stop(self) -> None:
        """A module that is told to end leaves as soon as nothing is owned any more; its wire waits for that."""
        with self._kite.held_open():
            await self._kite.stopping.wait()
            while self.tasks:
                self._idle = trio.Event()
                await self._idle.wait()
            await self._leave()

    async def _leave(self) -> None:
        if self._left:
            return
        self._left = True
        with trio.move_on_after(_CLOSING_S, shield=True):
            try:
                await self._kite.call(
                    "replica.leave", {"replica_id": self.replica_id, "token": self._token}, timeout=_CLOSING_S
                )
            except CallError:
                return  # the monitor will see it silent

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Call a step of ownership until its fate is known: repeated under one nonce, so that it counts once.

        Raises: Fenced; CallError for a refusal.
        """
        steps = {**params, "nonce": secrets.token_hex(12)} if method != "recovery.complete" else params
        while True:
            if self.fenced.is_set():
                raise self._fenced()
            try:
                answer: dict[str, Any] = await self._kite.call(method, steps)
            except CallError as error:
                if error.code == _contract.E_FENCED:
                    self.fence(f"{method}: {error.reason}")
                    raise self._fenced() from error
                if error.code not in (_contract.E_CONNECTION_LOST, _contract.E_DEADLINE, _contract.E_STORE_UNAVAILABLE):
                    raise
                await trio.sleep(_RETRY_S)
            else:
                return answer

    @asynccontextmanager
    async def own(
        self, key: str, *, create: bool = True, route_key: str | None = None
    ) -> AsyncGenerator[Session, None]:
        """Own a key for the time of the block.

        Leaving it releases the key (see `Session.finish`); an exception leaves it failed; a graceful stop of the module
        cancels the block and pauses the key with its checkpoint, for another replica to go on.
        Raises: CallError −32007 when another owns it; Fenced.
        """
        if create:
            await self._create(key, route_key)
        bearer = {"replica_id": self.replica_id, "replica_token": self._token}
        claim = await self.call("ownership.claim", {"key": key, **bearer})
        async with self._owned(Session(self, claim)) as session:
            yield session

    async def _create(self, key: str, route_key: str | None) -> None:
        wish = {"key": key} if route_key is None else {"key": key, "route_key": route_key}
        try:
            await self._kite.call("ownership.create", wish)
        except CallError as error:
            if error.code != _contract.E_CONFLICT:
                raise

    @asynccontextmanager
    async def recover(self, offer: Offer) -> AsyncGenerator[Session, None]:
        """Own an interrupted key for the time of the block, and complete its recovery at the end.

        Raises: CallError −32007 when another was first; Fenced.
        """
        bearer = {"replica_id": self.replica_id, "replica_token": self._token}
        link = {"recovery_id": offer.recovery_id, "token": offer.token, "checkpoint_epoch": offer.checkpoint_epoch}
        claim = await self.call("recovery.claim", {**link, **bearer})
        async with self._owned(Session(self, claim, offer.recovery_id)) as session:
            yield session

    @asynccontextmanager
    async def _owned(self, session: Session) -> AsyncGenerator[Session, None]:
        failure: Exception | None = None
        self.tasks += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pause_at_stop, nursery.cancel_scope)
            self._scopes.add(nursery.cancel_scope)
            try:
                yield session
            except Exception as error:
                failure = error
            finally:
                self._scopes.discard(nursery.cancel_scope)
                with trio.move_on_after(_CLOSING_S, shield=True):
                    await session.close(paused=self._kite.stopping.is_set(), failed=failure is not None)
                self.tasks -= 1
                self._idle.set()
                nursery.cancel_scope.cancel()
        if self.fenced.is_set():
            raise self._fenced() from failure
        if failure is not None:
            raise failure

    async def _pause_at_stop(self, scope: trio.CancelScope) -> None:
        await self._kite.stopping.wait()
        scope.cancel()

    @asynccontextmanager
    async def recoveries(self, *, every_s: float = 5.0) -> AsyncGenerator[trio.MemoryReceiveChannel[Offer], None]:
        """Receive the recoveries that are leased to this replica: at once when the kernel names it, else by asking.

        async with replica.recoveries() as offers:
            async for offer in offers: ...
        """
        named = trio.Event()
        sending, receiving = trio.open_memory_channel[Offer](0)

        async def listen() -> None:
            nonlocal named
            async with self._kite.subscribe("recovery.dispatch", policy="drop_oldest") as events:
                async for event in events:
                    if isinstance(event.data, dict) and event.data.get("target") == self.replica_id:
                        named.set()

        async def ask() -> None:
            nonlocal named
            while not self.fenced.is_set():
                with trio.move_on_after(every_s):
                    await named.wait()
                named = trio.Event()
                for offer in await self._lease():
                    await sending.send(offer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            nursery.start_soon(ask)
            yield receiving
            nursery.cancel_scope.cancel()

    async def _lease(self) -> list[Offer]:
        """Lease one at a time: a lease runs from the moment it is given."""
        try:
            found = await self._kite.call("recovery.lease", {"dispatcher": self.replica_id, "limit": 1})
        except CallError:
            return []
        return [Offer(**offer) for offer in found["recoveries"]]
