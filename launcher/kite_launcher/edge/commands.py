"""The launcher's methods: the same for the control socket and, as RPC module `launcher`, for the wire.

Each is bounded by the times of the modules that it names. A refusal is an answer with its exit code and the way out.
Source: spec 50 §4; 05 §3; cases S-12 … S-17, S-35, S-58, S-79.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import trio

from kite_launcher.core.child import Child, State, story
from kite_launcher.core.gate import is_settled
from kite_launcher.core.launch import EXIT_BUG, EXIT_NO, EXIT_OK, EXIT_USAGE, RefusedError
from kite_launcher.core.report import Facts, row
from kite_launcher.edge.house import House
from kite_launcher.edge.unit import Unit

START_WAIT_S: Final = 4.0  # `start` shows how it went when that is known soon; readiness may take longer
STOP_SLACK_S: Final = 2.5  # KILL, the proof, and a busy machine on top of stop_timeout
WAIT_MAX_S: Final = 86400.0
OWN: Final = ("kernel", "watchdog")
# By hand on this machine alone: a token for somebody, or another program in the launcher's place.
LOCAL_ONLY: Final = frozenset({"token", "upgrade"})

Say = Callable[[str, str], None]


class Commands:
    """Executes methods; `supervisor` parts come in as callables, so that this room decides nothing about them."""

    def __init__(
        self,
        house: House,
        units: dict[str, Unit],
        *,
        facts: Callable[[], Facts],
        status: Callable[[], dict[str, Any]],
        save_wanted: Callable[[], str | None],
        down: Callable[[str, float | None], Awaitable[dict[str, Any]]],
        reload: Callable[[bool, str], Awaitable[dict[str, Any]]],
        upgrade: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        token: Callable[[str], Awaitable[str | None]],
        file_changed: Callable[[], Awaitable[bool]],
    ) -> None:
        self._house, self._units = house, units
        self._facts, self._status, self._save_wanted = facts, status, save_wanted
        self._down, self._reload, self._upgrade = down, reload, upgrade
        self._token, self._file_changed = token, file_changed
        self._listeners: set[Say] = set()
        self._methods: dict[str, Callable[[dict[str, Any], str, Say], Awaitable[dict[str, Any]]]] = {
            "status": self._do_status,
            "start": self._do_start,
            "stop": self._do_stop,
            "restart": self._do_restart,
            "down": self._do_down,
            "reload": self._do_reload,
            "why": self._do_why,
            "wait": self._do_wait,
            "token": self._do_token,
            "upgrade": self._do_upgrade,
            "ping": self._do_ping,
        }
        house.on_progress = self.progress

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that others may call over the wire."""
        return tuple(name for name in self._methods if name not in LOCAL_ONLY)

    def progress(self, name: str, text: str) -> None:
        """Tell everybody who waits for an order."""
        self._house.journal.info(text, name=name)
        for say in list(self._listeners):
            say(name, text)

    async def by_hand(self, method: str, params: Any, say: Say) -> dict[str, Any]:
        """Execute a method for the control socket."""
        return await self._execute(method, params, "by hand", say)

    async def by_wire(self, method: str, params: Any, caller: str) -> dict[str, Any]:
        """Execute a method for a module that called it through the hub."""
        if method in LOCAL_ONLY:
            return _error(-32004, f"{method} is only for `kite-launch` on this machine", EXIT_NO)
        return await self._execute(method, params, caller or "a module", lambda _name, _text: None)

    async def _execute(self, method: str, params: Any, caller: str, say: Say) -> dict[str, Any]:
        execute = self._methods.get(method)
        if execute is None:
            near = difflib.get_close_matches(method, self._methods, 1)
            return _error(-32601, f"no method {method!r}", EXIT_USAGE, f"did you mean {near[0]}?" if near else "")
        if not isinstance(params, dict):
            return _error(-32602, "params must be an object", EXIT_USAGE)
        self._listeners.add(say)
        try:
            return {"result": await execute(params, caller, say)}
        except RefusedError as refused:
            it = refused.refusal
            code = -32602 if it.exit == EXIT_USAGE else -32000
            return _error(code, it.text, it.exit, it.hint, **({"lines": list(it.lines)} if it.lines else {}))
        except Exception as error:
            # A bug in one order must not take the supervision of everything else down.
            self._house.journal.error("bug in an order", method=method, why=repr(error))
            return _error(-32603, f"bug: {type(error).__name__}: {error}", EXIT_BUG, "please report this")
        finally:
            self._listeners.discard(say)

    # -- whom --------------------------------------------------------------------------------------------------

    def _named(self, params: dict[str, Any], *, own: bool = False) -> list[Unit]:
        names = params.get("names")
        if names is None and isinstance(params.get("module"), str):
            names = [params["module"]]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise RefusedError(EXIT_USAGE, "names: a list of module names is needed")
        found: dict[str, Unit] = {}
        for name in names:
            for unit in self._resolve(name, own=own):
                found[unit.name] = unit
        return list(found.values())

    def _resolve(self, name: str, *, own: bool) -> list[Unit]:
        """Find the units of a name: one, or all replicas of it."""
        if name in OWN and not own:
            raise RefusedError(EXIT_USAGE, f"{name} is Kite's own and no module", "`kite down` stops the instance")
        unit = self._units.get(name)
        if unit is not None:
            return [unit]
        replicas = [unit for other, unit in self._units.items() if other.partition("@")[0] == name]
        if replicas:
            return replicas
        near = difflib.get_close_matches(name, self._units, 1)
        raise RefusedError(
            EXIT_USAGE, f"no module {name!r}", f"did you mean {near[0]}?" if near else "see `kite status`"
        )

    def _rows(self, units: Iterable[Unit]) -> list[dict[str, Any]]:
        facts = self._facts()
        return [row(unit.child, facts) for unit in units]

    # -- the methods -------------------------------------------------------------------------------------------

    async def _do_status(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        return self._status()

    async def _do_ping(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        return {"pong": True}

    async def _do_start(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        units = self._named(params)
        for unit in units:
            if unit.child.refusers:
                pids = ", ".join(str(identity.pid) for identity in unit.child.refusers)
                raise RefusedError(EXIT_NO, f"{unit.name}: pid {pids} of its last run refuses to die", "end that first")
        for unit in units:
            unit.record_trouble = None
            unit.want(caller, fresh=True)
        trouble = self._save_wanted()
        deadline = trio.current_time() + START_WAIT_S + max(_stopping_s(unit) for unit in units)
        await self._house.changed.until(lambda: all(_started(unit) for unit in units), deadline)
        return self._started_answer(units, trouble)

    def _started_answer(self, units: list[Unit], trouble: str | None) -> dict[str, Any]:
        notes = [trouble] if trouble is not None else []
        notes += [unit.record_trouble for unit in units if unit.record_trouble is not None]
        bad = [unit for unit in units if unit.child.state in (State.FAILED, State.BACKOFF) or unit.child.refusers]
        answer: dict[str, Any] = {"modules": self._rows(units), "exit": EXIT_NO if bad or notes else EXIT_OK}
        if notes:
            answer["notes"] = [f"started, but not on record: {note}" for note in dict.fromkeys(notes)]
        return answer

    async def _do_stop(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        units = self._named(params)
        for unit in units:
            unit.child.by_hand = True
        trouble = self._save_wanted()
        tied = self._tied_to({unit.name for unit in units})
        for unit in tied:
            unit.order_stop(f"{caller}: what it requires is stopped", then="blocked")
        await self._until_still(tied)
        for unit in units:
            unit.order_stop(caller)
            unit.child.by_hand = True
        await self._until_still(units)
        left = [unit for unit in units if unit.busy]
        answer: dict[str, Any] = {"modules": self._rows(units), "exit": EXIT_NO if left else EXIT_OK}
        if left:
            answer["notes"] = [f"{unit.name}: {unit.child.why}" for unit in left]
        elif trouble is not None:
            answer["notes"] = [f"stopped, but a new launcher would not know it: {trouble}"]
        return answer

    def _tied_to(self, names: set[str]) -> list[Unit]:
        """Return the running units that require one of these, and those that require them in turn."""
        found: dict[str, Unit] = {}
        grew = True
        while grew:
            grew = False
            for unit in self._units.values():
                if unit.name not in names and unit.busy and names.intersection(unit.spec.requires):
                    names = names | {unit.name}
                    found[unit.name] = unit
                    grew = True
        return list(found.values())

    async def _until_still(self, units: list[Unit]) -> None:
        if units:
            bound = trio.current_time() + max(_stopping_s(unit) for unit in units) + STOP_SLACK_S
            await self._house.changed.until(lambda: all(not unit.busy or unit.child.refusers for unit in units), bound)

    async def _do_restart(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        units = self._named(params, own=True)
        reason = str(params.get("reason", ""))[:200]
        by_watchdog = caller == "watchdog"
        before = {unit.name: unit.child.run for unit in units}
        for unit in units:
            if by_watchdog:
                if not unit.child.wanted or unit.child.by_hand:
                    raise RefusedError(EXIT_NO, f"{unit.name} was stopped by hand", "`kite start` starts it")
                unit.order_restart("watchdog", counted="watchdog", detail=reason)
            elif not unit.order_restart(f"{caller} {reason}".strip()):
                unit.want(caller, fresh=True)
        if not by_watchdog:
            self._save_wanted()
        bound = START_WAIT_S + STOP_SLACK_S + max(unit.spec.stop_timeout_s for unit in units)

        def done(unit: Unit) -> bool:
            again = unit.child.run != before[unit.name] and _started(unit)
            return again or unit.child.state in (State.FAILED, State.BACKOFF) or bool(unit.child.refusers)

        await self._house.changed.until(lambda: all(done(unit) for unit in units), trio.current_time() + bound)
        answer = self._started_answer(units, None)
        if await self._file_changed():
            answer["notes"] = [
                *answer.get("notes", []),
                "kite.toml has changed since; this is the running configuration (`kite reload` applies the new one)",
            ]
        return answer

    async def _do_down(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        return await self._down(caller, _seconds(params, "timeout_s"))

    async def _do_reload(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        return await self._reload(bool(params.get("dry_run", False)), caller)

    async def _do_upgrade(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        return await self._upgrade(params)

    async def _do_why(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise RefusedError(EXIT_USAGE, "name: the name of a module is needed")
        unit = self._resolve(name, own=True)[0]
        return story(unit.child, rule=unit.spec.rule, now=trio.current_time())

    async def _do_wait(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        units = self._named(params, own=True)
        state = params.get("state", "ready")
        if state not in ("ready", "settled", *(item.value for item in State)):
            raise RefusedError(EXIT_USAGE, f"no state {state!r}", "ready, or a state that `status` shows")
        timeout_s = _seconds(params, "timeout_s")
        deadline = trio.current_time() + (60.0 if timeout_s is None else min(timeout_s, WAIT_MAX_S))

        def over() -> bool:
            return all(self._is(unit, state) for unit in units) or any(self._never(unit, state) for unit in units)

        await self._house.changed.until(over, deadline)
        good = all(self._is(unit, state) for unit in units)
        return {"modules": self._rows(units), "exit": EXIT_OK if good else EXIT_NO}

    def _is(self, unit: Unit, state: str) -> bool:
        if state == "settled":
            return is_settled(unit.name, self._house.specs, self._house.children)
        return unit.child.ready if state == "ready" else unit.child.state.value == state

    def _never(self, unit: Unit, state: str) -> bool:
        """Say whether waiting for this can't help any more."""
        if self._is(unit, state) or unit.busy or unit.child.next_try is not None:
            return False
        return state not in ("waiting", "backoff") and is_settled(unit.name, self._house.specs, self._house.children)

    async def _do_token(self, params: dict[str, Any], caller: str, say: Say) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str):
            raise RefusedError(EXIT_USAGE, "name: the name of a module is needed")
        token = await self._token(name)
        if token is None:
            near = difflib.get_close_matches(name, self._units, 1)
            raise RefusedError(EXIT_USAGE, f"no module {name!r}", f"did you mean {near[0]}?" if near else "")
        return {"token": token}


def _started(unit: Unit) -> bool:
    """True when a start has shown what it came to, or waits for others."""
    child: Child = unit.child
    if child.ready or child.refusers or child.state in (State.FAILED, State.BACKOFF, State.STOPPED):
        return True
    return child.state is State.WAITING and not unit.busy and not unit.gate().open


def _stopping_s(unit: Unit) -> float:
    return unit.spec.stop_timeout_s if unit.busy else 0.0


def _seconds(params: dict[str, Any], name: str) -> float | None:
    value = params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise RefusedError(EXIT_USAGE, f"{name}: a number of seconds is needed")
    return float(value)


def _error(code: int, message: str, exit_code: int, hint: str = "", **more: Any) -> dict[str, Any]:
    data = {"exit": exit_code, "hint": hint, "reason": "refused", "outcome": "not_sent", **more}
    return {"error": {"code": code, "message": message, "data": data}}
