"""What the relay answers itself: who one is, sessions, events, the console's screen, the tail of a stream.

Source: spec 80 §1, §2; 05 §7 (event.subscribe).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from kite_modules import _contract
from kite_modules.relay import frames
from kite_modules.relay.fanout import PATTERNS_MAX
from kite_modules.sdk.blame import where_it_failed
from kite_modules.sdk.events import check_pattern
from kite_modules.sdk.stream import StreamClosed, StreamReset

if TYPE_CHECKING:
    from kite_modules.relay.accounts import User
    from kite_modules.relay.desk import Desk

TAILS_MAX: Final = 4  # streams that one browser reads at once
TAIL_TEXT_MAX: Final = 8000  # characters of one record that a page is shown
_POLICIES: Final = ("close", "drop_oldest", "latest")


class WrongParamsError(Exception):
    """A parameter is not what it must be; `field` names it."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


def _object(params: Any) -> dict[str, Any]:
    if not isinstance(params, dict):
        raise WrongParamsError("params")
    return params


async def whoami(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Return name and role."""
    return {"user": user.name, "role": user.role, "module_id": desk.house.kite.module_id}


async def logout(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """End this session; its wires are closed with 4001."""
    desk.house.accounts.end_session(desk.session)
    desk.nursery.start_soon(_close_soon, desk)
    return {}


async def _close_soon(desk: Desk) -> None:
    desk.wire.close(_contract.CLOSE_AUTH_FAILED, "logged out")


async def sessions(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Return one's own sessions; an admin's are everybody's."""
    rows = desk.house.accounts.sessions_of(None if user.role == "admin" else user.name)
    return {"sessions": [{**row, "mine": row["id"] == desk.session[:12]} for row in rows]}


async def revoke(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """End a session by its short id: one's own; an admin any."""
    short = _object(params).get("id")
    if not isinstance(short, str):
        raise WrongParamsError("id")
    rows = desk.house.accounts.sessions_of(None if user.role == "admin" else user.name)
    owner = next((str(row["user"]) for row in rows if row["id"] == short), None)
    return {"ended": 0 if owner is None else desk.house.accounts.end_sessions(owner, short)}


# -------------------------------------------------------------------- events


def _patterns(params: Any) -> list[str]:
    events = params.get("events") if isinstance(params, dict) else params[0] if params else None
    if not isinstance(events, list) or not all(isinstance(event, str) for event in events):
        raise WrongParamsError("events")
    for event in events:
        try:
            check_pattern(event)
        except ValueError:
            raise WrongParamsError("events") from None
    return events


async def subscribe(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Hear events of these patterns."""
    events = _patterns(params)
    policy = params.get("policy", "close") if isinstance(params, dict) else "close"
    if policy not in _POLICIES:
        raise WrongParamsError("policy")
    wanted = desk.ear.patterns | dict.fromkeys(events, policy)
    if len(wanted) > PATTERNS_MAX:
        raise WrongParamsError("events")
    desk.ear.patterns = wanted
    desk.house.fanout.changed()
    return {"events": list(wanted)}


async def unsubscribe(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Hear them no more."""
    for event in _patterns(params):
        desk.ear.patterns.pop(event, None)
    desk.house.fanout.changed()
    return {"events": list(desk.ear.patterns)}


# -------------------------------------------------------------------- the console's screen


async def watch(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Return the whole screen; from now on `relay.overview` and `relay.events` tell what changes."""
    return await desk.house.screen.watch(desk.wire, _object(params))


async def unwatch(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Tell no more."""
    desk.house.screen.leave(desk.wire)
    return {}


# -------------------------------------------------------------------- streams


async def tail(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Read a stream: its records come as `relay.record {tail, seq, data}` until `relay.untail {tail}`."""
    wish = _object(params)
    name, last, epoch = wish.get("stream"), wish.get("last"), wish.get("epoch")
    if not isinstance(name, str) or not name or "/" in name or "?" in name:
        raise WrongParamsError("stream")
    if last is not None and (type(last) is not int or last < 0):
        raise WrongParamsError("last")
    if epoch is not None and not isinstance(epoch, str):
        raise WrongParamsError("epoch")
    if len(desk.tails) >= TAILS_MAX:
        raise WrongParamsError("stream")
    known = await desk.house.kite.call("stream.stats", {"stream": name})  # refuses what does not exist
    number = max(desk.tails, default=0) + 1
    scope = desk.tails[number] = trio.CancelScope()
    desk.nursery.start_soon(_read, desk, number, scope, name, last, epoch)
    return {"tail": number, "stats": known}


async def _read(
    desk: Desk, number: int, scope: trio.CancelScope, name: str, last: int | None, epoch: str | None
) -> None:
    end: dict[str, Any] = {"tail": number}
    try:
        with scope:
            async with desk.house.kite.stream(name).subscribe(last=last, epoch=epoch) as records:
                while True:
                    try:
                        record = await anext(records)
                    except StreamReset as reset:
                        desk.wire.send(
                            frames.notice("relay.record", {"tail": number, "reset": True, "why": str(reset)})
                        )
                        continue
                    shown = {"tail": number, "seq": record.seq, "data": record.data[:TAIL_TEXT_MAX]}
                    await desk.wire.wait_room()  # a stream is read from where one stands: it can wait for a slow page
                    desk.wire.send(frames.notice("relay.record", shown))
    except StreamClosed as closed:
        end["why"] = str(closed)
    except StopAsyncIteration:
        end["why"] = "the stream ended"
    except Exception as error:  # a fault costs this tail, not the page
        desk.house.note(
            "a tail ended by a fault", desk.address, fault=type(error).__name__, where=where_it_failed(error)
        )
        end["why"] = "a fault of the relay's own"
    finally:
        desk.tails.pop(number, None)
    desk.wire.send(frames.notice("relay.record", {**end, "end": True}))


async def untail(desk: Desk, user: User, params: Any) -> dict[str, Any]:
    """Read it no more."""
    number = _object(params).get("tail")
    scope = desk.tails.get(number) if isinstance(number, int) else None
    if scope is not None:
        scope.cancel()
    return {"ended": scope is not None}


METHODS: Final[dict[str, Callable[[Desk, Any, Any], Awaitable[Any]]]] = {
    "relay.whoami": whoami,
    "relay.logout": logout,
    "relay.sessions": sessions,
    "relay.revoke": revoke,
    "relay.watch": watch,
    "relay.unwatch": unwatch,
    "relay.tail": tail,
    "relay.untail": untail,
    "event.subscribe": subscribe,
    "event.unsubscribe": unsubscribe,
}
